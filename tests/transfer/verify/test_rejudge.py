"""What today's rule says of histories: made up, in the shape of those that trainings left."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from backbones.engine.outcome import Signs, judge
from tests.transfer.records.recorded import made
from transfer.records.record import OLDER_RULE, Record
from transfer.records.store import Store
from transfer.verify.__main__ import main
from transfer.verify.rejudge import rejudged

LEVEL = math.log(97)
DEAD = {"loss": [6.0] * 140, "identity_loss": [LEVEL + 2e-4] * 140, "spread": [0.3] * 20 + [1e-5] * 120}
ALIVE = {**DEAD, "identity_loss": [LEVEL - 0.02 * step for step in range(140)]}


def stored(root: Path, columns: dict[str, list[float]], outcome: dict[str, Any], **given: Any) -> Record:
    """A run of reid with this history."""
    record = made(outcome=outcome, dataset={"counts": {"train": {"identities": 97}}}, **given)
    folder = root / record.run_id
    folder.mkdir(parents=True)
    rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
    lines = [json.dumps({"step": step, "epoch": step / 7, **row, "lr": 0.1}) for step, row in enumerate(rows, 1)]
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
    return Store(root).write(record, "", {})


def by_rule(columns: dict[str, list[float]], **given: Any) -> dict[str, Any]:
    signs = Signs(statistic="identity_loss", chance=LEVEL)
    return {**asdict(judge(columns, signs, len(columns["loss"]))), **given}


def test_the_record_of_an_older_rule_is_not_judged_and_its_history_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Features equal from the twentieth step on, and identities at ln 97: it had been called completed."""
    record = stored(tmp_path, DEAD, {"status": "completed", "reason": "", "step": 140})
    assert (record.status, record.reason, record.not_judged) == ("not_judged", OLDER_RULE, True)
    assert not record.training_failed
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    assert main([str(tmp_path), "--rejudge"]) == 1
    said = capsys.readouterr().out
    assert "completed in the record, collapsed today: the features of a batch became equal" in said
    assert "0 of 1 runs keep their status" in said
    assert before == {path: path.read_bytes() for path in tmp_path.glob("*/*")}


def test_a_record_of_todays_rule_keeps_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, columns in enumerate((DEAD, ALIVE)):
        stored(tmp_path, columns, by_rule(columns), seed=seed)
    skipped = {name: [*column[:70], math.inf, *column[70:]] for name, column in ALIVE.items()}
    record = stored(tmp_path, skipped, by_rule(ALIVE, step=141), seed=2)
    path = tmp_path / record.run_id / "history.jsonl"
    path.write_text(path.read_text().replace("Infinity", "null"))
    stored(tmp_path, DEAD, by_rule(DEAD, status="collapsed", signs=None, reason="degenerate ranking"), seed=3)
    stored(tmp_path, DEAD, {"status": "nonfinite", "reason": "loss became nan", "step": 140}, seed=4)
    assert main([str(tmp_path), "--rejudge"]) == 0
    assert "5 of 5 runs keep their status" in capsys.readouterr().out


def test_a_history_cut_short_or_without_its_statistic_is_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "short", {name: column[:99] for name, column in DEAD.items()}, by_rule(DEAD))
    assert main([str(tmp_path / "short"), "--rejudge"]) == 1
    assert "not_judged today: history.jsonl has 99 of 140 steps" in capsys.readouterr().out
    stored(tmp_path / "lacking", {"loss": DEAD["loss"]}, by_rule(DEAD))
    assert main([str(tmp_path / "lacking"), "--rejudge"]) == 1
    assert "not_judged today: not every step has identity_loss" in capsys.readouterr().out


def test_older_records_of_the_triplet_loss_alone_or_without_counts(tmp_path: Path) -> None:
    triplet = {**DEAD, "triplet_loss": [0.69 - 0.004 * step for step in range(140)]}
    old = {"status": "completed", "reason": "", "step": 140}
    options = {"epochs": 20, "lr": 0.1, "identity_weight": 0, "margin": None}
    record = stored(tmp_path, triplet, old, options=options)
    assert rejudged(tmp_path / record.run_id, record).status == "completed"
    unknown = replace(record, dataset={}, options=options | {"identity_weight": 1})
    assert rejudged(tmp_path / record.run_id, unknown).status == "not_judged"
    nothing = stored(tmp_path / "none", {"loss": []}, old | {"step": 0}, seed=1)
    assert rejudged(tmp_path / "none" / nothing.run_id, nothing).status == "not_judged"
