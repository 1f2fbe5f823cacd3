import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from backbones.runtime import scratch
from backbones.runtime.scratch import remove_left, scratch_folder


def test_a_folder_of_a_killed_process_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    for name in (".all.zip-killed.tmp", ".all.zip-2-other.tmpx", ".other.zip-a.tmp"):
        (tmp_path / name / "run").mkdir(parents=True)
    with scratch_folder(tmp_path, "all.zip") as first:
        assert not (tmp_path / ".all.zip-killed.tmp").exists()
        with scratch_folder(tmp_path, "all.zip") as second:
            (first / "a").touch()
            assert first != second
        assert [path.name for path in first.iterdir()] == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".all.zip-2-other.tmpx", ".other.zip-a.tmp"]


def test_without_locks_nothing_of_others_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(scratch.fcntl, "flock", refused)
    (tmp_path / ".a-b.tmp").mkdir()
    with scratch_folder(tmp_path, "a") as made:
        assert made.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [".a-b.tmp"]


def test_a_folder_that_was_taken_for_left_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Path] = []
    lock = fcntl.flock

    def late(handle: int, how: int) -> None:
        if not taken:
            taken.append(Path(f"/proc/self/fd/{handle}").readlink())
            taken[0].rmdir()
        lock(handle, how)

    monkeypatch.setattr(scratch.fcntl, "flock", late)
    with scratch_folder(tmp_path, "a") as made:
        assert made.is_dir()
        assert made not in taken
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_was_removed_before_it_was_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Path] = []
    make = tempfile.mkdtemp

    def removed_at_once(**given: Any) -> str:
        made = make(**given)
        if not taken:
            taken.append(Path(made))
            taken[0].rmdir()
        return made

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", removed_at_once)
    with scratch_folder(tmp_path, "a") as made:
        assert made.is_dir()
        assert made not in taken
    assert not [*tmp_path.iterdir()]


def test_old_neighbours_of_a_file_are_removed(tmp_path: Path) -> None:
    for name in (".t.csv.1.tmp", ".t.csv.2.tmp", ".u.csv.1.tmp"):
        (tmp_path / name).touch()
    for name in (".t.csv.1.tmp", ".u.csv.1.tmp"):
        os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    remove_left(tmp_path / "t.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".t.csv.2.tmp", ".u.csv.1.tmp"]
