"""A published ratio of hours beside that of one's own pairs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.report.published.runs import run_of, shown_table
from transfer.records.store import Run
from transfer.sweep.definition.grid import SweepJob, expand
from transfer.sweep.definition.sweep_file import read_sweep


def cells(**options: Any) -> list[SweepJob]:
    found = [cell for cell in expand(read_sweep("pointwise_figure4", "full")) if cell.step.name == "i21k"]
    return [cell for cell in found if all(cell.options[name] == value for name, value in options.items())]


def timed(tmp_path: Path, hours: float, seed: int = 0, gate: str = "off", **given: Any) -> Run:
    (cell,) = cells(patch=8, attention="relu", alpha=1, gate="off" if gate == "off" else "sigmoid")
    cell = replace(cell, seed=seed, options=cell.options | {"gate": gate})
    environment = {"device_type": "cuda", "device": "a GPU", **given.pop("environment", {})}
    return run_of(cell, tmp_path, 700, cost={"device_hours": hours}, environment=environment, **given)


def cost_of(runs: list[Run]) -> list[dict[str, Any]]:
    lines, _ = shown_table(runs, "pointwise", "figure4")
    return [line for line in lines if line["published"]]


def test_a_pair_of_runs_stands_beside_the_published_cost(tmp_path: Path) -> None:
    runs = [timed(tmp_path, 200), timed(tmp_path, 216, gate="sigmoid")]
    (line,) = cost_of(runs)
    assert (line["published"], line["own"], line["difference"]) == ("+9.3 %", "+8.0 %", "-1.3")
    assert line["hours"] == "216 against 200 GPU"
    assert line["not comparable because"] == ""
    assert line["reading"] == "alpha 1, printed not stated; gate sigmoid, printed not stated"
    assert line["runs"].split() == [runs[1].record.run_id, runs[0].record.run_id]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"environment": {"device": "another"}}, "device another against a GPU"),
        ({"smoke": True}, None),
        ({"changed": {"epochs": 3}}, None),
    ],
)
def test_only_pairs_that_are_alike_are_compared(tmp_path: Path, given: dict[str, Any], reason: str | None) -> None:
    (line,) = cost_of([timed(tmp_path, 200), timed(tmp_path, 216, gate="sigmoid", **given)])
    assert (line["own"], line["not comparable because"]) == (("+8.0 %", reason) if reason else ("", ""))
