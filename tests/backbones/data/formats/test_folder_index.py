"""The index of large class folders: the same split without a listing, and never an old one."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.formats import folder_index, folders
from backbones.data.spec import DatasetSpec

SPEC = DatasetSpec(name="mine", format="image_folder", version=None)


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_index, "INDEXED", 5)
    monkeypatch.setattr("backbones.data.classification.REMEMBERED", 5)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The class folders that were listed."""
    seen: list[str] = []
    scan = folders.scan_images

    def scanned(folder: Path) -> folders.ClassFolder:
        seen.append(folder.name)
        return scan(folder)

    monkeypatch.setattr(folders, "scan_images", scanned)
    return seen


def draw(path: Path, grey: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (grey,) * 3).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            for number in range(4):
                draw(tmp_path / "set" / split / label / f"{number}.png", 10 * number + (split == "val"))
    age(tmp_path / "set")
    return tmp_path / "set"


def age(root: Path) -> None:
    """As if the folders had been filled a while ago; an index of what has just changed is not kept."""
    for folder in root.glob("*/*"):
        os.utime(folder, (folder.stat().st_mtime - 60,) * 2)


def opened(root: Path) -> ClassificationData:
    return open_classification(SPEC, root)


def facts(data: ClassificationData) -> list[object]:
    assert data.train is not None
    assert data.val is not None
    splits = [(list(s.names), s.labels.tolist(), s.sizes.tolist(), s.place(1)) for s in (data.train, data.val)]
    return [data.digest, data.classes, data.counts, splits, np.asarray(data.train.read(2)).tolist()]


def test_the_second_opening_lists_nothing(root: Path, listed: list[str]) -> None:
    first = facts(opened(root))
    assert sorted(listed) == ["cat", "cat", "dog", "dog"]
    listed.clear()
    assert facts(opened(root)) == first
    assert not listed


def test_a_changed_folder_is_listed_again(root: Path, listed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, digests = root / "train" / "dog", {opened(root).digest}
    for change in (
        lambda: draw(folder / "9.png", 7),
        (folder / "9.png").unlink,
        lambda: (folder / "3.png").rename(folder / "7.png"),
        lambda: draw(root / "new.png", 200, 31) or (root / "new.png").replace(folder / "7.png"),
    ):
        change()
        listed.clear()
        digests.add(opened(root).digest)
        assert sorted(listed) == ["cat", "dog"]
        assert f"{root / 'train'}: has changed since its index was made; reading" in capsys.readouterr().err
        age(root)
        opened(root)
    assert len(digests) == 4
