"""Losses by step, thinned."""

from pathlib import Path

import pandas as pd

from tests.runs import ended
from tests.transfer.report.figures.plots import rows
from tests.transfer.report.page.pages import make_run, write_history
from transfer.records.run_set import RunSet
from transfer.report.figures.curves import POINTS, training_curves

BROKEN = ended("nonfinite", 3)


def history_runs(folder: Path) -> RunSet:
    write_history(folder / "a", [5.0, 4.0, 3.0])
    write_history(folder / "b", [5.0, 50.0, 5e6, None])
    return RunSet.of([make_run(0, folder / "a"), make_run(1, folder / "b", outcome=BROKEN)])


def curves_of(runs: RunSet) -> pd.DataFrame:
    return rows(training_curves(runs, runs.backbone_names))


def test_histories_are_thinned_and_end_where_the_numbers_do(tmp_path: Path) -> None:
    table = curves_of(history_runs(tmp_path))
    assert table.groupby("status")["loss"].last().to_dict() == {"completed": 3.0, "nonfinite": 5e6}
    write_history(tmp_path / "long", [1.0 + step for step in range(5000)])
    table = curves_of(RunSet.of([make_run(3, tmp_path / "long"), make_run(4, tmp_path / "none")]))
    assert len(table) == POINTS
    assert (table["step"].iloc[0], table["step"].iloc[-1]) == (1, 5000)
    assert ((table["loss"] - table["step"]) == 0).all()
