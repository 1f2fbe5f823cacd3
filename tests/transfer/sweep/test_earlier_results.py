"""The state of a dataset's files, by which a sweep knows whether the command of a finished job must run again."""

import os
from pathlib import Path

import pytest

from transfer.sweep.earlier_results import data_paths, path_state


@pytest.mark.parametrize("named", ["{folder}/labels/val.json", "{folder}/labels/*.json"])
def test_files_outside_the_folder_that_a_yaml_names_count(named: str, tmp_path: Path) -> None:
    labels = tmp_path / "labels" / "val.json"
    for folder in (tmp_path / "images", labels.parent):
        folder.mkdir()
    labels.write_text("{}")
    (tmp_path / "images" / "1.jpg").write_bytes(b"x")
    own = tmp_path / "mine.yaml"
    own.write_text(f"format: coco\nroot: {tmp_path / 'images'}\nval_annotations: {named.format(folder=tmp_path)}\n")
    before, times = [path_state(path) for path in data_paths(str(own), None)], labels.stat()
    assert [path_state(path) for path in data_paths(str(own), None)] == before
    labels.write_text("[]")
    os.utime(labels, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [path_state(path) for path in data_paths(str(own), None)] != before
