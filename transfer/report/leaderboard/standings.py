"""Which rows of one protocol are told apart, and the ranks that follow. Imports neither torch nor pandas.

All rows are compared in pairs on the same samples, and the p values adjusted over all pairs (Holm 1979). A row has a
rank only where it is told apart from every other row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from backbones.errors import UserError
from transfer.comparison.compare_arms import ComparedScore, compared_arms, judge
from transfer.comparison.paired_intervals import Bootstrap, mean_score
from transfer.comparison.pairing import MatchedRuns
from transfer.records.evidence import Arm
from transfer.records.grouping import Group
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.statistics.intervals import Estimate, mean_and_deviation
from transfer.statistics.verdicts import Kind

MOST_ROWS = 40
"""Rows up to which all pairs are compared; of more, each is compared with the first alone."""


@dataclass(eq=False)
class Standing:
    """One configuration among those of its protocol.

    Attributes:
        group: the configuration.
        runs: its runs.
        arm: its seeds, and its trainings that broke down.
        score: mean over seeds in the unit that tables print; nan where every training broke down.
        interval: mean with its interval, in the score's own unit; None where there is none.
        comparisons: by the place of another row, this row against that one.
        rank: place from 1 if this row is told apart from every other one; else None.
    """

    group: Group
    runs: list[Run]
    arm: Arm
    score: float
    interval: Estimate | None
    comparisons: dict[int, "Pair"] = field(default_factory=dict)
    rank: int | None = None

    def tied(self) -> list[int]:
        """Return the places of the rows that this one is not told apart from."""
        return [place for place, pair in self.comparisons.items() if pair.better is None]


@dataclass(frozen=True)
class Pair:
    """A comparison seen from one of its rows.

    Attributes:
        row: the comparison.
        sign: 1 if this row is its first arm, -1 if its second.
        better: whether this row is shown to be better; None if the two are not told apart.
    """

    row: ComparedScore
    sign: int
    better: bool | None


def standings(groups: Sequence[Group], runs: RunSet, options: Bootstrap | None = None) -> list[Standing]:
    """Return the configurations of one protocol, the best mean first, those without a score last.

    Args:
        groups: configurations of one protocol.
        runs: all runs, with their lineage.
        options: settings of the intervals and of the correction.
    """
    primary = groups[0].first.primary
    options = replace(options or Bootstrap(), scores=(primary,))
    rows = sorted((_standing(group, runs, options) for group in groups), key=_order)
    pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1, len(rows)) if i == 0 or len(rows) <= MOST_ROWS]
    compared = {pair: _compared(rows[pair[0]], rows[pair[1]], runs, options) for pair in pairs}
    judge([row for row in compared.values() if row is not None], options)
    for (i, j), row in compared.items():
        if row is None:
            continue
        better = _first_is_better(row)
        rows[i].comparisons[j] = Pair(row, 1, better)
        rows[j].comparisons[i] = Pair(row, -1, None if better is None else not better)
    for place, standing in enumerate(rows):
        standing.rank = place + 1 if _supported(place, standing, len(rows)) else None
    return rows


def _standing(group: Group, runs: RunSet, options: Bootstrap) -> Standing:
    ids = {record.run_id for record in group.records}
    members = [run for run in runs if run.record.run_id in ids]
    arm = runs.evidence.arm(group.records)
    primary = group.first.primary
    try:
        interval = mean_score(
            members, primary, draws=options.draws, ap_draws=options.ap_draws, known=runs.evidence.known
        )
    except UserError:  # per-sample outcomes that cannot be used: the table says that there is no interval
        interval = None
    return Standing(group, members, arm, mean_and_deviation(arm.values(primary))[0], interval)


def _order(row: Standing) -> tuple[bool, float]:
    if math.isnan(row.score):
        return True, 0.0
    lower = row.group.first.metrics.get(row.group.first.primary, {}).get("direction") == "lower"
    return False, row.score if lower else -row.score


def _compared(first: Standing, second: Standing, runs: RunSet, options: Bootstrap) -> ComparedScore | None:
    """Return the comparison of the primary score; None if a run lacks that score."""
    match = compared_arms(MatchedRuns([first.runs, second.runs]), runs.evidence, options)
    return next((row for row in match.rows if row.primary), None)


def _first_is_better(row: ComparedScore) -> bool | None:
    """Return whether the first arm is shown to be better than the second; None if they are not told apart.

    Where some trainings of an arm broke down, what its survivors reach says nothing of the arm as a whole.
    """
    kind = row.verdict.kind
    if kind in (Kind.A_BROKE_DOWN, Kind.B_BROKE_DOWN):
        return kind is Kind.B_BROKE_DOWN
    if row.verdict.breakdowns or kind not in (Kind.A_BETTER, Kind.B_BETTER):
        return None
    return kind is Kind.A_BETTER


def _supported(place: int, row: Standing, rows: int) -> bool:
    """Return whether intervals show every row above to be better, and every row below to be worse."""
    return (
        rows > 1
        and not math.isnan(row.score)
        and all(
            other in row.comparisons and row.comparisons[other].better is (other > place)
            for other in range(rows)
            if other != place
        )
    )
