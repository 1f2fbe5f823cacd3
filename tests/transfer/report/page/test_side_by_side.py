"""Ranked lists and detections of both variants side by side: the right queries and variant."""

from pathlib import Path

import numpy as np
import pytest

from tests.transfer.report.reid_runs import IDENTITIES, reid_run
from transfer.comparison.paired_intervals import Settings
from transfer.core.pictures import RANKED, RankedLists
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.galleries import PAIRS_EACH_WAY, differing_samples, sample_sections
from transfer.report.page.html import page
from transfer.report.tables.comparison import compared


def with_lists(run: Run, *, first_right: bool) -> Run:
    """A run that has kept two places of each query, of which the first is of its identity or not."""
    names = [f"{place:04d}_c1s1_000151_00.jpg" for place in range(IDENTITIES)]
    people = [(name, place, 1) for place, name in enumerate(names)]
    own, other = np.arange(IDENTITIES), (np.arange(IDENTITIES) + 1) % IDENTITIES
    nearest = np.stack([own, other] if first_right else [other, own], axis=1)
    values = np.tile(np.array([0.25, 1.5], np.float32), (IDENTITIES, 1))
    RankedLists.from_ranking(nearest, people, people, values).save(run.folder / RANKED)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> RunSet:
    return RunSet.of(
        [
            with_lists(reid_run(tmp_path, stem="conv", signal=2.0), first_right=True),
            with_lists(reid_run(tmp_path, stem="patchify", signal=0.5), first_right=False),
        ]
    )


def test_lists_of_both_arms_for_the_queries_that_differ_most(runs: RunSet) -> None:
    comparison = compared(runs, "stem=conv", "stem=patchify", Settings())
    table_part, section = sample_sections(comparison, runs, pictures=False)
    (row,) = [row for row in comparison.rows if row.primary]
    table = differing_samples(row)
    assert table_part.table is not None
    assert table_part.table["sample"] == table["sample"]
    expected = [*table["sample"][:PAIRS_EACH_WAY], *table["sample"][-PAIRS_EACH_WAY:]]
    shown = list(section.exhibits)
    assert section.in_pairs
    assert len(shown) == 2 * len(expected)
    for query, first, second in zip(expected, shown[::2], shown[1::2], strict=True):
        assert first.about.startswith(f"conv: {query} ")
        assert second.about.startswith(f"patchify: {query} ")
        assert [right for _, right in first.ranked] == [True, False]
        assert [right for _, right in second.ranked] == [False, True]
        assert first.ranked[0][0].endswith("distance 0.25")
        assert first.ranked[1][0].endswith("distance 1.5")
        place = table["sample"].index(query)
        assert f"AP {table['a'][place]:.1f} %" in first.about
    assert 'class="galleries pairs"' in page("t", [section], runs)
