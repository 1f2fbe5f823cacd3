"""Weights that another command replaces while one of several seeds is at work."""

import json
import shutil
from pathlib import Path

import pytest

from backbones.backbone import create
from backbones.checkpoints.exports import export
from transfer.evaluation import evaluator
from transfer.evaluation.planned_run import PlannedRun
from transfer.records.record import Record
from transfer.records.store import Store
from transfer.run import main as run


def test_no_seed_trains_from_weights_that_its_record_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (export(create("tiny"), tmp_path / name) for name in ("first", "second"))
    weights = shutil.copytree(first, tmp_path / "weights")
    finish = evaluator.finish

    def replaced_after_the_first(planned: PlannedRun, record: Record, store: Store) -> None:
        finish(planned, record, store)
        shutil.rmtree(weights)
        shutil.copytree(second, weights)

    command = ["reid", "--backbone", "tiny", "--smoke", "--weights", str(weights), "--out", str(tmp_path / "runs")]
    command += ["--threads", "1", "--workers", "0", "--epochs", "1", "--seeds", "0", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "finish", replaced_after_the_first)
        assert run(command) == 1
    said = capsys.readouterr().err
    assert "replaced while this command was at work" in said
    assert "start it again" in said
    records = [json.loads(path.read_bytes()) for path in (tmp_path / "runs").glob("*/record.json")]
    assert [record["seed"] for record in records] == [0]
    assert run(command) == 0
    second_id = create("tiny", weights=str(second)).weights_id
    records = [json.loads(path.read_bytes()) for path in (tmp_path / "runs").glob("*/record.json")]
    assert [record["weights_id"] for record in records if record["seed"] == 1] == [second_id]
    assert len(records) == 3
