import os
import time
from pathlib import Path

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


def test_old_neighbours_of_a_file_are_removed(tmp_path: Path) -> None:
    for name in (".t.csv.1.tmp", ".t.csv.2.tmp", ".u.csv.1.tmp"):
        (tmp_path / name).touch()
    for name in (".t.csv.1.tmp", ".u.csv.1.tmp"):
        os.utime(tmp_path / name, (time.time() - 3600,) * 2)
    remove_left(tmp_path / "t.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".t.csv.2.tmp", ".u.csv.1.tmp"]
