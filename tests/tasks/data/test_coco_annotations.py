import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.data.cache import cache_folder
from tasks.data import coco_annotations
from tasks.data.coco_annotations import read_split
from tests.tasks.data.coco_tree import written


@pytest.fixture(autouse=True)
def small_files_are_indexed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(coco_annotations, "INDEXED", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settled(file: Path, seconds: float = 100) -> Path:
    """Give a file a time at which its content is certain to be that of its stamp."""
    stat = file.stat()
    os.utime(file, (stat.st_atime, stat.st_mtime - seconds))
    return file


def plain(file: Path) -> dict[str, Any]:
    """Everything that is read of a file."""
    split, classes, dropped = read_split("train", file, file.parent)
    columns = {name: getattr(split, name) for name in vars(split) if isinstance(getattr(split, name), np.ndarray)}
    return {
        "columns": {name: (column.dtype, column.tolist()) for name, column in columns.items()},
        "images": list(split.images),
        "segmentations": list(split.segmentations),
        "rest": (split.content, classes, dropped),
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return settled(written(tmp_path / "coco") / "annotations" / "instances_train2017.json")


def parses(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are parsed from now on."""
    parsed, parse = [], coco_annotations._parse
    monkeypatch.setattr(
        coco_annotations, "_parse", lambda file, content: (parsed.append(file), parse(file, content))[1]
    )
    return parsed


def test_the_index_gives_what_the_file_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = parses(monkeypatch)
    read, indexed = plain(file), plain(file)
    assert parsed == [file]
    assert read == indexed
    assert len(read["images"]) == 4


def test_an_incomplete_index_is_ignored(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plain(file)
    parsed = parses(monkeypatch)
    next((cache_folder() / "indexes").glob("*/label.npy")).unlink()
    assert plain(file) == whole
    assert parsed == [file]
