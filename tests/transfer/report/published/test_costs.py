"""A published ratio of hours beside that of one's own pairs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.report.published.runs import run_of, shown_table
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import read_sweep
from transfer.records.store import Run


def cells(**options: Any) -> list[SweepJob]:
    found = [cell for cell in expand(read_sweep("pointwise_figure4", "full")) if cell.step.name == "i21k"]
    return [cell for cell in found if all(cell.options[name] == value for name, value in options.items())]


def counted(tmp_path: Path, gflops: float, seed: int = 0, gate: str = "off", **given: Any) -> Run:
    (cell,) = cells(patch=8, attention="relu", alpha=1, gate="off" if gate == "off" else "sigmoid")
    cell = replace(cell, seed=seed, options=cell.options | {"gate": gate})
    return run_of(cell, tmp_path, 700, cost={"gflops": gflops, "device_hours": 9 - 2 * gflops}, **given)


def cost_of(runs: list[Run]) -> list[dict[str, Any]]:
    lines, _ = shown_table(runs, "pointwise", "figure4")
    return [line for line in lines if line["published"]]


def test_a_pair_of_runs_stands_beside_the_published_cost_by_its_operations(tmp_path: Path) -> None:
    runs = [counted(tmp_path, 2.0), counted(tmp_path, 2.16, gate="sigmoid")]
    (line,) = cost_of(runs)
    assert (line["published"], line["own GMACs"], line["own"]) == ("+9.3 % hours", "1.08 vs. 1", "+8.0 % MACs")
    assert line["not comparable because"] == ""
    assert line["reading"] == "alpha 1, printed not stated; gate sigmoid, printed not stated"
    assert line["runs"].split() == [runs[1].record.run_id, runs[0].record.run_id]


@pytest.mark.parametrize("given", [{"smoke": True}, {"changed": {"epochs": 3}}])
def test_only_pairs_that_are_alike_are_compared(tmp_path: Path, given: dict[str, Any]) -> None:
    (line,) = cost_of([counted(tmp_path, 2.0), counted(tmp_path, 2.16, gate="sigmoid", **given)])
    assert (line["own"], line["not comparable because"]) == ("", "")
