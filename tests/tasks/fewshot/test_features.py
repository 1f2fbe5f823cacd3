"""Support sets; features of images, and their store on disk: under kill -9, two processes at once, and torchrun."""

import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.backbone import create
from tasks.fewshot import features as module
from tasks.fewshot.features import Extractor, Stored, encoder, locked_file, read_features, write_features
from tasks.fewshot.task import SupportSets, draw_support_sets, images_digest
from tests.processes import Command, run_by_ranks, wait_for
from tests.runs import record
from tests.support import context
from tests.tasks.support import digits
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData, open_classification
from transfer.data.formats.users_reader import ArraySplit
from transfer.data.spec import DatasetSpec
from transfer.data.splits.integrity import content_digests
from transfer.engine.context import Context

VIEW = {"size": 32, "resize": 32, "resize_mode": "squash", "block": None, "eval_batch_size": 8}


def extractor(here: Context, view: dict[str, Any] | None = None, name: str = "tiny", **overrides) -> Extractor:
    torch.manual_seed(0)
    options: Any = SimpleNamespace(**(VIEW | (view or {})))
    return Extractor(create(name, img_size=32, **overrides).eval(), options, here)


def extracted(tmp_path: Path, indices, precision: str = "fp32", shift: float = 0.0, **given):
    split = digits(4).val
    taker = extractor(context(features=tmp_path / "features", eval_precision=precision), **given)
    next(taker.backbone.parameters()).data.view(-1)[0] += shift
    contents = content_digests(split, np.arange(len(split)))
    return taker.features(split, np.asarray(indices), contents, "digits test"), taker, split


def test_features_are_those_of_each_image_in_the_order_asked(tmp_path) -> None:
    indices = [5, 0, 39, 5, 17, *range(20, 36)]
    found, taker, split = extracted(tmp_path, indices)
    pixels = torch.stack([split.read_pixels(index) for index in indices])
    with torch.no_grad():
        torch.testing.assert_close(found, taker.backbone.pooled(pixels / 255), atol=1e-5, rtol=1e-5)
    assert taker.computed == taker.images == len({*indices})


def test_the_second_time_nothing_is_computed_and_the_rest_is_added(tmp_path) -> None:
    first, taker, _ = extracted(tmp_path, range(20))
    spent = taker.context.cost.extraction
    assert spent["extraction_seconds"] > 0
    assert spent["found_hours"] == 0
    again, taker, _ = extracted(tmp_path, range(20))
    assert taker.computed == 0
    assert torch.equal(first, again)
    found = taker.context.cost.extraction
    assert found["extraction_seconds"] == spent["extraction_seconds"], "it counts with the run that finds it"
    cores = torch.get_num_threads() + taker.context.workers
    assert found["found_hours"] == pytest.approx(cores * spent["extraction_seconds"] / 3600)
    more, taker, _ = extracted(tmp_path, range(40))
    assert taker.computed == 20
    assert torch.equal(more[:20], first)


def test_other_weights_other_views_and_other_precisions_are_other_features(tmp_path) -> None:
    extracted(tmp_path, range(8))
    views = ({"resize_mode": "bicubic"}, {"resize": 40}, {"block": 0})
    parts = {"stem": "conv"}, {"precision": "bf16"}, {"shift": 1e-3}
    for given in (*({"view": view} for view in views), *parts):
        assert extracted(tmp_path, range(8), **given)[1].computed == 8


def test_arrays_that_other_code_decodes_have_other_features(tmp_path: Path) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.full((32, 32, 3), ord(name), np.uint8))
    found = []
    for source, factor in (("first", 1), ("second", 2), ("first", 1)):
        decode = partial(lambda path, factor: np.load(path) * np.uint8(factor), factor=factor)
        split = ArraySplit.of("val", tmp_path, ["a.npy", "b.npy"], decode=decode, source=source)
        taker = extractor(context(features=tmp_path / "features"), {"resize_mode": "fast"})
        found.append(taker.features(split, np.arange(2), content_digests(split), "arrays"))
    assert taker.computed == 0
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_features_behind_a_block_are_pooled_as_the_model_pools() -> None:
    images = torch.rand(3, 3, 32, 32)
    for pool in ("cls", "gap"):
        backbone = create("tiny", img_size=32, pool=pool).eval()
        with torch.no_grad():
            torch.testing.assert_close(encoder(backbone, -1)(images), backbone.pooled(images))
            tokens = backbone.tokens(images, norm=True)[2]
            expected = tokens[:, 0] if pool == "cls" else tokens.mean(1)
            torch.testing.assert_close(encoder(backbone, 0)(images), expected)


def test_what_decides_a_feature_is_hashed_wherever_it_lies() -> None:
    sources = module.feature_sources()
    needed = ["backbones/attention.py", "backbones/kernels/blocked.py", "backbones/weights/load.py"]
    needed += ["transfer/data/loading/images.py", "transfer/data/loading/augment.py", "tasks/fewshot/features.py"]
    needed += ["transfer/core/exports.py"]
    assert set(needed) <= set(sources)


KEY = {"backbone": "b", "features": {"size": 32}, "precision": "fp32", "images": "i", "code": "c"}
ROWS = np.array([0, 3, 9])
CONTENT = Stored(ROWS, np.stack([ROWS, -ROWS], axis=1).astype(np.float32), np.array([1.0, 2.0, 3.0]))


def place(store: Path, key: dict = KEY) -> Path:
    with locked_file(store, key, lambda: None) as path:
        return path


def test_every_part_of_the_key_counts(tmp_path: Path) -> None:
    assert place(tmp_path) == place(tmp_path, dict(reversed(KEY.items())))
    assert len({place(tmp_path, {**KEY, name: "other"}) for name in KEY} | {place(tmp_path)}) == 1 + len(KEY)


@pytest.mark.parametrize("offset", [3, -70, -10, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, offset: int) -> None:
    path = place(tmp_path)
    write_features(path, CONTENT, {})
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_features(path)


def test_a_full_disk_names_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"No space left on device.*with --feature-cache"):
        write_features(place(tmp_path), CONTENT, {})
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


WORDS = ["fewshot", "--backbone", "tiny", "--smoke", "--dataset", "toy_digits", "--threads", "1"]


def start(folder: Path, *more: str, log: str = "log") -> Command:
    words = [*WORDS, "--out", str(folder / "out"), "--feature-cache", str(folder / "features"), *more]
    return Command("transfer.run", words, folder / log)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("features/*.safetensors"))


def assert_same_features(one: Path, two: Path, within: float = 0.0) -> None:
    assert [path.name for path in files(one)] == [path.name for path in files(two)]
    for mine, theirs in zip(files(one), files(two)):
        np.testing.assert_array_equal(read_features(mine).rows, read_features(theirs).rows)
        np.testing.assert_allclose(read_features(mine).features, read_features(theirs).features, rtol=0, atol=within)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(folder)
    assert process.wait() == 0, process.stderr
    return folder


@pytest.mark.nightly
def test_an_extraction_that_is_killed_leaves_nothing_half_written(tmp_path: Path, undisturbed: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: bool(files(tmp_path)))
    process.kill(signal.SIGKILL)
    assert start(tmp_path).wait() == 0
    assert_same_features(tmp_path, undisturbed)
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.scores == expected.scores
    assert found.details["features"]["computed"] < expected.details["features"]["computed"]
    assert expected.cost["found_hours"] == 0 < found.cost["found_hours"], "what was found counts"


@pytest.mark.nightly
def test_two_processes_fill_one_store(tmp_path: Path, undisturbed: Path) -> None:
    both = [start(tmp_path), start(tmp_path, "--probe", "knn", "--out", str(tmp_path / "other"), log="other_log")]
    for process in both:
        assert process.wait() == 0, process.stderr
    assert_same_features(tmp_path, undisturbed)
    assert record(tmp_path / "out").scores == record(undisturbed / "out").scores


@pytest.mark.nightly
def test_two_ranks_share_the_extraction_and_the_draws(tmp_path: Path, undisturbed: Path) -> None:
    words = [*WORDS, "--out", str(tmp_path / "out"), "--feature-cache", str(tmp_path / "features")]
    run_by_ranks("transfer.run", words, tmp_path / "log")
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.run_key == expected.run_key
    assert found.environment["world_size"] == 2
    assert found.cost["found_hours"] == 0 < found.cost["extraction_seconds"]
    assert found.scores == expected.scores
    assert_same_features(tmp_path, undisturbed, 1e-5)  # other batches round otherwise on some processors


def folder_of(tmp_path, sizes: dict[str, int], test: int = 2):
    """A folder with this many different images of each class, all of them noise."""
    random = np.random.default_rng(0)
    for split, counts in (("train", sizes), ("test", dict.fromkeys(sizes, test))):
        for name, count in counts.items():
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number:03d}.png")
    return tmp_path


def opened(folder) -> ClassificationData:
    spec = DatasetSpec(name="noise", format="image_folder", root=(str(folder),), overlap="allow")
    return open_classification(spec, None)


def contents(sets: SupportSets, draw: int, shots: int) -> set[bytes]:
    return {sets.train[index] for index in sets.support(draw, shots)}


@pytest.mark.parametrize("rule", ["digest", "bigvision"])
def test_sets_are_nested_cover_every_class_and_differ_between_draws(tmp_path, rule) -> None:
    data = opened(folder_of(tmp_path, {"a": 12, "b": 9, "c": 30}))
    sets = draw_support_sets(data, rule=rule, draws=3, shots=(10, 1, 5), select=2)
    for draw in range(3):
        one, five, ten = (sets.support(draw, shots) for shots in (1, 5, 10))
        assert {*one} < {*five} < {*ten}
        assert np.bincount(data.train.labels[five]).tolist() == [5, 5, 5]
        assert np.bincount(data.train.labels[ten]).tolist() == [10, 9, 10]
        assert not {*ten} & {*sets.selection(draw)}
        assert np.bincount(data.train.labels[sets.selection(draw)]).tolist() == [2, 0, 2]
        assert {*ten} | {*sets.selection(draw)} <= {*sets.needed()}
    assert len({tuple(sorted(sets.support(draw, 5))) for draw in range(3)}) == 3
    facts = sets.facts(data.train.labels)
    assert facts["classes_with_fewer"] == {"1": 0, "5": 0, "10": 1}
    assert facts["images"] == {"1": 3, "5": 15, "10": 29}


def test_a_digest_draw_knows_no_file_names(tmp_path) -> None:
    before = opened(folder_of(tmp_path / "x", {"a": 12, "b": 9}))
    sets = draw_support_sets(before, rule="digest", draws=2, shots=(1, 5))
    for number, path in enumerate(sorted((tmp_path / "x/train/a").iterdir(), reverse=True)):
        path.rename(path.with_name(f"renamed{number:02d}.png"))
    (tmp_path / "x/train/b").rename(tmp_path / "x/train/B0")
    (tmp_path / "x/test/b").rename(tmp_path / "x/test/B0")
    after = opened(tmp_path / "x")
    assert after.classes != before.classes
    renamed = draw_support_sets(after, rule="digest", draws=2, shots=(1, 5))
    for draw, shots in ((0, 1), (0, 5), (1, 1), (1, 5)):
        assert contents(renamed, draw, shots) == contents(sets, draw, shots)
    assert renamed.digest == sets.digest
    assert draw_support_sets(after, rule="digest", draws=2, shots=(1, 4)).digest != sets.digest
    assert draw_support_sets(after, rule="bigvision", draws=2, shots=(1, 5)).digest != sets.digest


def test_an_image_that_occurs_twice_is_drawn_once_and_counted(tmp_path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    for copy in ("train/a/copy.png", "train/b/other.png", "test/b/leak.png"):
        (folder / copy).write_bytes((folder / "train/a/000.png").read_bytes())
    sets = draw_support_sets(opened(folder), rule="digest", draws=1, shots=(4,))
    assert len(sets.support(0, 4)) == 3 + 4
    duplicates = sets.facts(opened(folder).train.labels)["duplicates"]
    assert duplicates == {"train": 2, "train_of_several_classes": 1, "test_also_in_train": 1, "test": 0}


def test_a_class_without_training_images(tmp_path) -> None:
    data = opened(folder_of(tmp_path, {"a": 3, "b": 3}))
    data = replace(data, train=data.train.select(np.arange(3)))
    with pytest.raises(UserError, match=r"noise: 1 class.* no training image to draw: b"):
        draw_support_sets(data, rule="digest", draws=1, shots=(1,))


def test_the_digest_of_the_images_sees_contents_labels_and_order(tmp_path) -> None:
    data = opened(folder_of(tmp_path, {"a": 3, "b": 3}))
    digest = images_digest(data, ordered=False)
    backwards = replace(data, train=data.train.select(np.arange(6)[::-1]))
    assert images_digest(backwards, ordered=False) == digest
    assert images_digest(backwards, ordered=True) != images_digest(data, ordered=True)
    relabelled = replace(data, train=replace(data.train, labels=data.train.labels[::-1].copy()))
    assert images_digest(relabelled, ordered=False) != digest
    assert images_digest(replace(data, val=data.train), ordered=False) != digest
    path = tmp_path / "test/b/000.png"
    path.write_bytes((tmp_path / "test/b/001.png").read_bytes())
    assert images_digest(opened(tmp_path), ordered=False) != digest
