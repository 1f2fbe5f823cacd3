"""Weights that another command replaces while one of several seeds or datasets is at work."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from backbones.backbone import create
from backbones.weights.export import export
from transfer.evaluation import evaluator
from transfer.evaluation.planned_run import PlannedRun
from transfer.records.record import Record
from transfer.records.store import Store
from transfer.run import main as run

ALIKE = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs", "1"]
SEEDS = ["--seeds", "0", "1"]


def exported(path: Path) -> Path:
    """Write new weights with a config, in place of those that are there."""
    shutil.rmtree(path, ignore_errors=True)
    return export(create("tiny"), path)


def records(out: Path) -> dict[str, dict[str, Any]]:
    """Return all records by the ids of their runs."""
    found = (json.loads(path.read_bytes()) for path in out.glob("*/record.json"))
    return {record["run_id"]: record for record in found}


@pytest.mark.nightly
def test_no_run_trains_from_weights_that_its_record_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, out = exported(tmp_path / "weights"), tmp_path / "runs"
    first_id = create("tiny", weights=str(weights)).weights_id
    finish = evaluator.finish

    def replaced_after_the_first(planned: PlannedRun, record: Record, store: Store) -> None:
        finish(planned, record, store)
        if len(records(out)) == 1:
            exported(tmp_path / "weights")

    command = ["reid", *SEEDS, "--test-dataset", "toy_msmt17", *ALIKE, "--weights", str(weights), "--out", str(out)]
    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "finish", replaced_after_the_first)
        assert run(command) == 1
    said = capsys.readouterr().err
    assert f"{weights}: modified while the command was running (" in said
    second_id = create("tiny", weights=str(weights)).weights_id
    assert second_id != first_id
    before = records(out)
    trained = [record for record in before.values() if record["weights_id"] == first_id]
    assert [(record["seed"], record["dataset"]["name"]) for record in trained] == [(0, "toy_market")]
    assert all(record in trained or record["weights_id"] == trained[0]["export"] for record in before.values())

    assert run(command) == 0
    new = [record for name, record in records(out).items() if name not in before]
    from_weights = [record for record in new if "trained_on" not in record["details"]]
    assert {record["weights_id"] for record in from_weights} == {second_id}
    assert len(from_weights) == 2
