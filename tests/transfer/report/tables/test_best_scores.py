"""Bold numbers: the best where it is told apart from the next best on the same samples, and no other."""

from pathlib import Path

from tests.transfer.report.reid_runs import reid_run
from transfer.comparison.paired_intervals import Settings
from transfer.records.run_set import RunSet
from transfer.report.render.latex import latex
from transfer.report.tables.best_scores import with_best
from transfer.report.tables.comparison import compare
from transfer.report.tables.summary import summary


def runs_of(folder: Path, **signals: float) -> RunSet:
    return RunSet.of(
        reid_run(folder, stem=stem, signal=signal, seed=seed) for stem, signal in signals.items() for seed in range(4)
    )


def test_the_best_is_bold_where_it_is_told_apart(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, conv=2.5, patchify=0.5, gelu=0.5)
    table = with_best(summary(runs), runs, Settings())
    (best,) = (place for place, name in enumerate(table["backbone"]) if name == "tiny_conv")
    assert {place for place, _ in table.emphasised} == {best}
    assert (best, "mAP") in table.emphasised
    text = latex(table)
    assert text.count(r"\textbf{") == len(table.emphasised)
    assert rf"\textbf{{{table['mAP'][best]:.2f}}}" in text


def test_nothing_is_bold_where_the_next_is_as_good(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, gelu=1.0, norm=1.0, patchify=0.2)
    assert not with_best(summary(runs), runs, Settings()).emphasised


def test_a_comparison_prints_the_better_arm_in_bold(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, conv=2.5, patchify=0.5)
    table = compare(runs, "stem=patchify", "stem=conv", Settings())
    place = table["score"].index("mAP")
    assert (place, "b") in table.emphasised
    assert (place, "a") not in table.emphasised
