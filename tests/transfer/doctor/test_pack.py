"""`python -m transfer.doctor pack`: the same images in the same order, sealed, and whole or not opened."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.formats.packed import check_pack
from backbones.data.spec import resolve_dataset
from backbones.data.splits.subsets import take_per_class
from backbones.errors import UserError
from tests.runs import history
from transfer.doctor import pack as module
from transfer.doctor.__main__ import main
from transfer.pretrain import main as pretrain


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes of drawn JPEG and PNG files of several sizes, and a YAML that names them."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 5)):
        for label in ("ant", "bee", "cat"):
            folder = tmp_path / "set" / split / label
            folder.mkdir(parents=True)
            for number in range(count):
                sides = (int(generator.integers(20, 60)), int(generator.integers(20, 60)))
                coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), dtype=np.uint8))
                coarse.resize(sides).save(folder / f"{number}.{'png' if number % 3 == 0 else 'jpg'}")
    (tmp_path / "mine.yaml").write_text("format: image_folder\nroot: set\nlicense: none\n")
    return tmp_path


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIB", 4000)


def packed(root: Path, *words: str) -> int:
    return main(["pack", str(root / "mine.yaml"), "--to", str(root / "packed"), "--shard-mib", "1", *words])


def opened(path: Path) -> ClassificationData:
    return open_classification(resolve_dataset(str(path)), None)


def splits(data: ClassificationData) -> list[Any]:
    assert data.train is not None
    assert data.val is not None
    return [data.train, data.val]


def test_images_order_and_support_sets_are_those_of_the_folder(root: Path) -> None:
    assert packed(root) == 0
    folder, parquet = opened(root / "mine.yaml"), opened(root / "packed" / "mine.yaml")
    assert parquet.classes == folder.classes
    assert (parquet.version, parquet.name) == (folder.version, folder.name)
    for a, b in zip(splits(folder), splits(parquet), strict=True):
        assert a.labels.tolist() == b.labels.tolist()
        assert [a.encoded(index) for index in range(len(a))] == [b.encoded(index) for index in range(len(b))]
        few = [take_per_class(split, 4) for split in (a, b)]
        contents = [[split.content_digest(index) for index in range(len(split))] for split in few]
        assert contents[0] == contents[1]
    assert len([*(root / "packed").glob("train-*.parquet")]) > 2


def test_training_on_a_pack_is_training_on_the_folder(root: Path) -> None:
    assert packed(root) == 0
    losses = []
    for name in ("mine.yaml", "packed/mine.yaml"):
        out = root / f"runs_{len(losses)}"
        words = ["--backbone", "tiny", "--smoke", "--dataset", str(root / name), "--batch", "8", "--out", str(out)]
        words += ["--weights-to", str(out / "weights"), "--epochs", "2", "--workers", "0"]
        assert pretrain(["cifar_deit", *words]) in (0, 3)
        losses.append([line["loss"] for line in history(out) if "loss" in line])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 8


def test_the_datasets_library_opens_it(root: Path) -> None:
    from datasets import load_dataset

    assert packed(root) == 0
    files = {"train": str(root / "packed" / "train-*.parquet"), "test": str(root / "packed" / "val-*.parquet")}
    found = load_dataset("parquet", data_files=files, cache_dir=str(root / "hub"))
    assert found["train"].features["label"].names == ["ant", "bee", "cat"]
    first = splits(opened(root / "mine.yaml"))[0].read(0)
    assert np.array_equal(np.asarray(found["train"][0]["image"].convert("RGB")), np.asarray(first))


def test_an_interrupted_pack_is_refused_and_goes_on(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The process is killed while it writes its third file."""
    code = f"""
import os, sys
from transfer.doctor import pack
pack.MIB = 4000
write, count = pack.ParquetWriter.write_table, []
def dying(self, *given, **more):
    count.append(1)
    if len(count) == 3:
        os.kill(os.getpid(), 9)
    write(self, *given, **more)
pack.ParquetWriter.write_table = dying
pack.pack([{str(root / "mine.yaml")!r}, "--to", {str(root / "packed")!r}, "--shard-mib", "1"])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == -9
    before = {path: path.stat().st_mtime_ns for path in (root / "packed").glob("*.parquet")}
    assert len(before) == 2
    (root / "packed" / "mine.yaml").write_text("format: parquet\nroot: .\ntrain: train-*.parquet\n")
    with pytest.raises(UserError, match=r"packing .* has not ended \(2 shards so far\); `python -m transfer"):
        opened(root / "packed" / "mine.yaml")
    assert packed(root) == 0
    assert "2 files are there; going on" in capsys.readouterr().err
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    whole = root / "whole"
    assert main(["pack", str(root / "mine.yaml"), "--to", str(whole), "--shard-mib", "1"]) == 0
    assert [*whole.glob("*.parquet")]
    for path in whole.glob("*.parquet"):
        assert path.read_bytes() == (root / "packed" / path.name).read_bytes()
    assert not [*(root / "packed").glob(".*")]


def test_a_pack_that_was_killed_at_its_first_file_goes_on(root: Path) -> None:
    (root / "packed").mkdir()
    (root / "packed" / ".pack.json.1.tmp").touch()
    assert packed(root) == 0
    assert not [*(root / "packed").glob(".*")]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_file_is_named_and_written_again(root: Path, damage: str) -> None:
    assert packed(root) == 0
    path = sorted((root / "packed").glob("train-*.parquet"))[1]
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-10])
    with pytest.raises(UserError, match=path.name):
        opened(root / "packed" / "mine.yaml")
    assert packed(root) == 0
    assert path.read_bytes() == content
    assert len(splits(opened(root / "packed" / "mine.yaml"))[0]) == 36


def test_resized_images_are_another_version(root: Path) -> None:
    assert packed(root, "--shorter-side", "30") == 0
    folder, small = opened(root / "mine.yaml"), opened(root / "packed" / "mine.yaml")
    assert small.version == "published, shorter side 30, JPEG quality 95"
    for a, b in zip(splits(folder)[0].labels, splits(small)[0].labels, strict=True):
        assert a == b
    for index in range(36):
        before, after = splits(folder)[0].read(index).size, splits(small)[0].read(index).size
        if min(before) <= 30:
            assert after == before
        else:
            assert min(after) == 30
            assert max(after) == round(max(before) * 30 / min(before))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "takes one data set, not 0"),
        (["toy_digits"], "--to is missing"),
        (["toy_digits", "--to", "full"], "is not empty, and holds no pack"),
        (["toy_market", "--to", "new"], "format market1501 does not serve for classification"),
        (["toy_digits", "--to", "new", "--shorter-side", "0"], "--shorter-side 0: must be 1 or more"),
    ],
)
def test_bad_words(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("dear")
    assert main(["pack", *words]) in (1, 2)
    assert message in capsys.readouterr().err


def test_another_pack_is_not_mixed_in(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert packed(root) == 0
    assert packed(root, "--shorter-side", "25") == 1
    assert "holds a pack of" in capsys.readouterr().err
    seal = json.loads((root / "packed" / "pack.json").read_text())
    assert (seal["complete"], seal["shorter_side"]) == (True, None)
    (root / "packed" / "pack.json").write_text("{}")
    assert packed(root) == 1
    assert "pack.json: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("of_shard", "change"),
    [
        (True, {"bytes": None}),
        (True, {"bytes": "x"}),
        (True, {"sha256": 5}),
        (False, {"complete": "no"}),
        (False, {"dataset": 1}),
    ],
)
def test_a_seal_with_entries_of_other_types_is_refused(
    of_shard: bool, change: dict[str, object], tmp_path: Path
) -> None:
    shard: dict[str, object] = {"rows": 1, "bytes": 1, "sha256": "a"}
    seal = {"form": 1, "dataset": "a", "source_digest": "a", "shorter_side": None, "shard_mib": 1, "complete": True}
    shards = {"train.parquet": shard | change if of_shard else shard}
    (tmp_path / "pack.json").write_text(json.dumps(seal | {"shards": shards} | ({} if of_shard else change)))
    with pytest.raises(UserError, match=r"pack\.json: cannot be read \(.* pack the data set again"):
        check_pack(tmp_path)
