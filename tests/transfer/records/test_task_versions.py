"""Records of earlier versions beside those of this one."""

import shutil
from pathlib import Path

import pytest

from tasks.task import load_task
from tests.transfer.evaluation.test_eval_precision import KNN
from transfer.cli.command import pretraining_names, pretraining_recipe, task_names
from transfer.cli.recipe_method import method_of
from transfer.records.grouping import grouped
from transfer.records.protocol import digest, displayed_fields, distinguishing_fields, protocol
from transfer.records.record import Record
from transfer.records.task_versions import CHANGES, between
from transfer.report.__main__ import main as report
from transfer.run import main

OLD = Path(__file__).parent / "older" / "knn_version1.json"
PROTOCOL = {
    "task": "knn", "task_version": 1, "dataset": "toy_digits", "dataset_version": "1", "skipped": 0,
    "precision": "fp32", "smoke": True, "subset": 20, "size": 32, "resize": 32, "k": 5,
    "other_k": [1], "temperature": 0.07,
    "dataset_digest": "90e4d67e2ac30fb57f4d49d7c1ed46f9b948d462e772757b835da955db93781f",
}  # fmt: skip
"""Of that record, as the version that wrote it says it, but for `eval_batch`, which changes no score."""


def versions() -> dict[str, int]:
    from backbones.pretrain.method import load_method

    found = {name: load_task(name).version for name in task_names()}
    methods = {method_of(pretraining_recipe(name)) for name in pretraining_names()}
    return found | {f"pretrain-{name}": load_method(name).version for name in methods}


def test_every_version_above_the_first_says_what_it_changed() -> None:
    wanted = {(task, step) for task, version in versions().items() for step in range(2, version + 1)}
    assert CHANGES.keys() == wanted
    assert between("reid", [2, 1]) == [f"reid, version 2: {CHANGES['reid', 2]}"]
    assert between("reid", [2**63, 1, 10**40]) == between("reid", [2, 1]), "a stranger's record may hold any number"
    assert between("reid", [2]) == between("reid", []) == []


def test_an_older_record_keeps_its_protocol_and_is_told_apart_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Record.read(OLD)
    assert protocol(old) == PROTOCOL
    words = [*KNN, "--out", str(tmp_path)]
    assert main(words) == 0
    (path,) = tmp_path.glob("*/record.json")
    new = Record.read(path)
    assert new.task_version == 2
    assert digest(new) != digest(old)
    differing = distinguishing_fields(map(displayed_fields, (old, new)))
    assert {"task_version", "eval_precision"} <= differing.keys()
    assert "precision" not in differing, "it says nothing where nothing trains"
    comparability = grouped([old, new], {}).comparability
    first, second = comparability.groups
    assert (first.letter, second.letter) == ("a", "b")
    assert (dict(first.fields)["task_version"], dict(second.fields)["task_version"]) == (1, 2)
    assert comparability.task_versions == [f"knn, version 2: {CHANGES['knn', 2]}"]

    folder = tmp_path / old.run_id
    folder.mkdir()
    shutil.copy(OLD, folder / "record.json")
    capsys.readouterr()
    assert report([str(tmp_path), "--smoke", "--dirty"]) == 0
    assert CHANGES["knn", 2] in " ".join(capsys.readouterr().out.split())
    assert main(words) == 0, "and never stands in for a run of this version"
    assert len(list(tmp_path.glob("*/record.json"))) == 2
