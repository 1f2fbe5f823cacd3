"""Records of earlier versions beside those of this one."""

import shutil
from pathlib import Path

import pytest

from tasks.task import load_task
from tests.transfer.test_eval_precision import KNN
from transfer.changes import CHANGES, between
from transfer.cli import pretraining_names, pretraining_recipe, task_names
from transfer.groups import grouped
from transfer.pretrain import _method_of
from transfer.protocols import differing, digest
from transfer.records import Record
from transfer.report import main as report
from transfer.run import main

OLD = Path(__file__).parent / "older" / "knn_version1.json"
PROTOCOL = "d1d8c57632ceeb459b03e9ed3e705a93ff114fc4fa077b7258e05b701ad73b19"
"""Of that record, as the version that wrote it says it."""


def versions() -> dict[str, int]:
    from backbones.pretrain.method import load_method

    found = {name: load_task(name).version for name in task_names()}
    methods = {_method_of(pretraining_recipe(name)) for name in pretraining_names()}
    return found | {f"pretrain-{name}": load_method(name).version for name in methods}


def test_every_version_above_the_first_says_what_it_changed() -> None:
    wanted = {(task, step) for task, version in versions().items() for step in range(2, version + 1)}
    assert CHANGES.keys() == wanted
    assert between("reid", [2, 1]) == [f"reid, version 2: {CHANGES['reid', 2]}"]
    assert between("reid", [2]) == between("reid", []) == []


def test_an_older_record_keeps_its_protocol_and_is_told_apart_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Record.read(OLD)
    assert digest(old) == PROTOCOL
    words = [*KNN, "--out", str(tmp_path)]
    assert main(words) == 0
    (path,) = tmp_path.glob("*/record.json")
    new = Record.read(path)
    assert new.task_version == 2
    assert digest(new) != PROTOCOL
    assert {"task_version", "eval_precision"} <= differing([old, new]).keys()
    assert "precision" not in differing([old, new]), "it says nothing where nothing trains"
    groups, notes = grouped([old, new])
    assert [group.protocol for group in groups] == ["a", "b"]
    assert notes[0].startswith("a: task_version 1, eval_precision as precision")
    assert notes[-1] == f"knn, version 2: {CHANGES['knn', 2]}"

    folder = tmp_path / old.run_id
    folder.mkdir()
    shutil.copy(OLD, folder / "record.json")
    capsys.readouterr()
    assert report([str(tmp_path), "--smoke", "--dirty"]) == 0
    assert CHANGES["knn", 2] in capsys.readouterr().out
    assert main(words) == 0, "and never stands in for a run of this version"
    assert len(list(tmp_path.glob("*/record.json"))) == 2
