from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from tests.runs import history, record
from tests.transfer.data.layouts import spec, write_folders, write_parquet
from transfer.core.errors import Stopped, UserError
from transfer.core.seeding import seeded
from transfer.data.classification import open_classification
from transfer.data.loading.images import ReidTestTransform, to_pixels
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.split import FileSplit
from transfer.pretrain import main

CROP = v2.Compose([v2.RandomResizedCrop(8, antialias=True), v2.PILToTensor()])
KEYS = [(2, 3, 0), (2, 3, 1), (0, 14, 0), (5, 7, 2), (2, 4, 0)]


@pytest.fixture
def root(tmp_path):
    root = write_folders(tmp_path / "set")
    Image.new("L", (30, 20), 77).save(root / "train" / "cat" / "grey.png")
    return root


def train(root, **given):
    return open_classification(spec("image_folder", root, **given), None).train


def test_augmentation_is_a_function_of_seed_epoch_image_and_repeat(root):
    split = train(root)
    images = SplitDataset(split, CROP, seed=5)
    for key in KEYS:
        image, label = images[key]
        with seeded(5, *key):
            assert torch.equal(image, CROP(Image.open(split.path(key[1])).convert("RGB")))
        assert label == split.labels[key[1]]
    for other in (images[2, 3, 1], images[3, 3, 0], SplitDataset(split, CROP, seed=6)[2, 3, 0]):
        assert not torch.equal(images[2, 3, 0][0], other[0])
    assert len(images) == len(split) == 16


def test_a_plain_index_draws_nothing(root):
    split = train(root)
    state = torch.get_rng_state()
    (image, _) = SplitDataset(split, ReidTestTransform((32, 16)))[np.int64(1)]
    assert torch.equal(image, ReidTestTransform((32, 16))(split.read(1)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture(params=["folder", "parquet"])
def split(root, tmp_path, arrow_cache, request):
    split = train(root)
    if request.param == "folder":
        return split
    rows = [(split.encoded(index), int(split.labels[index])) for index in range(len(split))]
    write_parquet(tmp_path / "rows" / "train.parquet", rows)
    return open_classification(spec("parquet", tmp_path / "rows"), None).train


def test_preloaded_equals_read_and_takes_no_more_reading(split):
    plain = [np.asarray(split.read(index)) for index in range(len(split))]
    dataset = SplitDataset(split, v2.PILToTensor(), preload=True)
    split.decoded = lambda index: pytest.fail("read again")
    assert split.pixels is not None
    for index, expected in enumerate(plain):
        np.testing.assert_array_equal(np.asarray(split.read(index)), expected)
        np.testing.assert_array_equal(dataset[index][0].permute(1, 2, 0).numpy(), expected)
    image = split.read(0)
    image.putpixel((0, 0), (1, 2, 3))
    np.testing.assert_array_equal(np.asarray(split.read(0)), plain[0])
    SplitDataset(split, CROP)


def test_what_is_too_large_is_not_kept(root):
    split, total = train(root), 3 * (15 * 12 * 16 + 30 * 20)
    split.preload(total - 1)
    assert split.pixels is None
    split.preload(total)
    assert split.pixels is not None
    assert SplitDataset(train(root), CROP, preload=False).split.pixels is None


@pytest.mark.parametrize("preload", [True, False])
def test_workers_give_what_one_process_does(split, preload):
    dataset = SplitDataset(split, CROP, preload=preload)
    alone = [dataset[key] for key in KEYS]
    for worked, (image, label) in zip(DataLoader(dataset, None, sampler=KEYS, num_workers=2), alone, strict=True):
        assert torch.equal(worked[0], image)
        assert torch.equal(worked[1], label)


def draw(folder: Path, count: int, damaged: tuple[int, ...]) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number:02d}.png" for number in range(count)]
    for number, name in enumerate(names):  # the two splits of a set have other shades of green
        Image.new("RGB", (16, 16), (number, len(str(folder)), 0)).save(folder / name)
        if number in damaged:
            (folder / name).write_bytes((folder / name).read_bytes()[:50])
    return names


@pytest.fixture
def dataset(tmp_path: Path) -> Callable[[int], SplitDataset]:
    """Twelve images of which the third, fourth and last are damaged, whose labels are their numbers."""
    names = draw(tmp_path, 12, (2, 3, 11))

    def made(limit: int) -> SplitDataset:
        split = FileSplit("train", np.arange(12), names, np.ones(12, dtype=np.int64), tmp_path)
        data = SplitDataset(split, to_pixels, preload=False)
        if limit:
            data.replace_damaged(limit)
        return data

    return made


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_is_replaced_by_the_next_readable_one(
    dataset: Callable[[int], SplitDataset], workers: int
) -> None:
    data = dataset(3)
    keys = [[(epoch, index, 0)] for epoch in range(2) for index in range(12)]
    items: list[tuple[Tensor, Tensor]] = list(DataLoader(data, batch_sampler=keys, num_workers=workers))
    labels = [int(label) for _, label in items]
    assert labels == [0, 1, 4, 4, *range(4, 11), 0] * 2
    assert [int(image[0, 0, 0, 0]) for image, _ in items] == labels
    assert sorted(data.replaced_images()) == [2, 3, 11]


def test_one_more_than_the_limit_is_an_error(dataset: Callable[[int], SplitDataset]) -> None:
    data = dataset(2)
    assert int(data[2][1]) == int(data[3][1]) == int(data[2][1]) == 4
    with pytest.raises(UserError, match=r"11\.png.*2 corrupt images were replaced, as --max-replaced allows"):
        data[11]
    with pytest.raises(UserError, match=r"02\.png: cannot be read"):
        dataset(0)[2]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A training on a set with one damaged image that counts as too large to be checked before."""
    monkeypatch.setattr("transfer.data.classification.CHECKED_AT_ONCE", 10)
    monkeypatch.setattr("transfer.data.splits.dataset.LIMIT", 0)
    for split in ("train", "val"):
        for label in ("ant", "bee"):
            draw(tmp_path / "set" / split / label, 12, (5,) if (split, label) == ("train", "bee") else ())
    (tmp_path / "mine.yaml").write_text("format: image_folder\nroot: set\n")
    monkeypatch.chdir(tmp_path)
    words = (
        "cifar_deit --backbone tiny --smoke --dataset mine.yaml --batch-size 8 --epochs 1 --warmup-epochs 0 --workers 1"
    )
    return [*words.split(), *["--export-dir", "weights", "--max-replaced", "1", "--checkpoint-seconds", "0"]]


@pytest.mark.parametrize(
    "interrupted",
    [
        "",
        "pretrain.supervised.training.validate",
        pytest.param("trained_weights.export_backbone", marks=pytest.mark.nightly),
    ],
)
def test_a_run_names_them_in_its_record(
    words: list[str], interrupted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was interrupted after it met them: in its last epoch, or between its training and its record."""
    if interrupted:

        def interrupt(*_: object, **__: object) -> None:
            raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(f"backbones.{interrupted}", interrupt)
            assert main(words) == 143
    assert main(words) in (0, 3)
    kept = record(tmp_path / "runs")
    assert "1 damaged training image(s) were replaced by the next readable one: bee/05.png" in kept.notes
    assert kept.details["replaced_images"] == ["bee/05.png"]
    assert len([line for line in history(tmp_path / "runs") if "loss" in line]) == 3
