"""The samples on which two variants differ most."""

from pathlib import Path

import pytest

from tests.transfer.report.tables.test_comparison import compared, made
from transfer.comparison.compare_arms import ComparedScore
from transfer.records.store import Run
from transfer.report.page.galleries import EACH_WAY, differing_samples


def primary(runs: list[Run]) -> ComparedScore:
    (row,) = [row for row in compared(runs, "stem=conv", "stem=patchify").rows if row.primary]
    return row


def test_samples_are_sorted_by_who_finds_them(tmp_path: Path) -> None:
    """Each variant is right on all images but those named; one image is wrong in one of two seeds."""
    runs = [made(tmp_path, "conv", seed=0, wrong=[1]), made(tmp_path, "conv", seed=1, wrong=[1, 4])]
    runs += [made(tmp_path, "patchify", seed=seed, wrong=[2, 3]) for seed in range(2)]
    table = differing_samples(primary(runs))
    assert table["sample"] == ["2.png", "3.png", "4.png", "1.png"]
    assert table["a"] == [100.0, 100.0, 50.0, 0.0]
    assert table["b"] == [0.0, 0.0, 100.0, 100.0]
    assert table["difference"] == [100.0, 100.0, -50.0, -100.0]


def test_of_many_the_extremes_of_both_sides_are_shown(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", wrong=list(range(50))), made(tmp_path, "patchify", wrong=list(range(50, 120)))]
    table = differing_samples(primary(runs))
    assert len(table) == 2 * EACH_WAY
    assert table["difference"] == [100.0] * EACH_WAY + [-100.0] * EACH_WAY


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_outcomes_that_cannot_be_read_give_no_rows(tmp_path: Path, broken: str) -> None:
    runs = [made(tmp_path, "conv"), made(tmp_path, "patchify")]
    file = runs[0].folder / "outcomes.npz"
    file.unlink() if broken == "missing" else file.write_bytes(b"no archive")
    assert len(differing_samples(primary(runs))) == 0
