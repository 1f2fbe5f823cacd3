"""Losses by step, thinned, and the similarity of tokens by layer."""

from pathlib import Path

from tests.runs import ended
from tests.transfer.report.figures.plots import rows, words
from tests.transfer.report.page.pages import make_run, write_history
from transfer.records.run_set import RunSet
from transfer.report.figures.training import POINTS, similarity_plot, training_curves
from transfer.report.tables.pivot import names_of_runs


def test_histories_are_thinned_and_end_where_the_numbers_do(tmp_path: Path) -> None:
    write_history(tmp_path / "short", [5.0, 50.0, 5e6, None])
    write_history(tmp_path / "long", [1.0 + step for step in range(5000)])
    runs = [make_run(seed, tmp_path / name) for seed, name in enumerate(("none", "long"))]
    known = RunSet.of([*runs, make_run(2, tmp_path / "short", outcome=ended("nonfinite", 3))])
    table = rows(training_curves(known, names_of_runs(known)))
    assert table.groupby("status")["loss"].last().to_dict() == {"completed": 5000.0, "nonfinite": 5e6}
    long = table[table["status"] == "completed"]
    assert len(long) == POINTS
    assert (long["step"].iloc[0], long["step"].iloc[-1]) == (1, 5000)
    assert (long["loss"] == long["step"]).all()


def test_similarity_of_every_place_and_run() -> None:
    layers = [
        {"place": place, "kind": "block", "similarity": value} for place, value in (("stem", 0.2), ("block 1", 0.9))
    ]
    runs = RunSet.of(make_run(seed, task="tokens", details={"layers": layers}) for seed in range(2))
    plot = similarity_plot(runs, names_of_runs(runs))
    assert rows(plot)["similarity"].tolist() == [0.2, 0.9, 0.2, 0.9]
    assert {"stem", "block 1"} <= {*words(plot)}
