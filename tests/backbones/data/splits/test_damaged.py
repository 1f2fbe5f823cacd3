"""Damaged images in a training: named, counted, and replaced up to a limit, in loader processes too."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from backbones.data.loading.images import to_pixels
from backbones.data.splits.dataset import SplitDataset
from backbones.data.splits.split import FileSplit
from backbones.errors import Stopped, UserError
from tests.runs import history, record
from transfer.pretrain import main


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
    monkeypatch.setattr("backbones.data.classification.CHECKED_AT_ONCE", 10)
    monkeypatch.setattr("backbones.data.splits.dataset.LIMIT", 0)
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
    ["", "pretrain.supervised.validate", pytest.param("engine.context.Context.export", marks=pytest.mark.nightly)],
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
