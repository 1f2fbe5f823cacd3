"""Verdicts on own runs compared with a published cell; `transfer.report.tables.comparison_text` words them.

`docs/concepts/statistics.md` describes how each is reached. Numbers are in points of percent. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from transfer.experiments.published_rows import Reason, Value

if TYPE_CHECKING:
    from transfer.statistics.intervals import Estimate

MARGIN = 1.0
"""Margin of agreement in percentage points: about half of the conv stem's published gain of 2.1, so that numbers that
agree lead to the same conclusion."""


class PublishedKind(Enum):
    """The kinds of verdicts on a published cell."""

    AGREES = "agrees"
    """Two one-sided tests show that the difference is smaller than the margin."""
    HIGHER = "higher"
    LOWER = "lower"
    CANNOT_TELL = "inconclusive"
    NO_INTERVAL = "no interval"
    """Outcomes are missing or damaged, or samples do not add up to the score."""
    NOT_HERE = "not here"
    """The published run crashed, and no own run failed."""
    BREAKS_DOWN_HERE_ONLY = "failed here only"
    BOTH_BREAK_DOWN = "both failed"
    BREAKS_DOWN_IN_SOME = "failed in some"
    """The published run crashed, and some of the own runs failed."""
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Counts:
    """Numbers of the runs of a cell and of the pretrainings that they start from.

    Attributes:
        runs: number of runs of the cell.
        broken: number of these runs that failed.
        pretrainings: number of own pretrainings that the runs start from, including lost ones.
        lost: number of failed pretraining runs, so that no run of the cell starts from them.
        not_judged: number of the runs not judged for failure.
    """

    runs: int
    broken: int = 0
    pretrainings: int = 0
    lost: int = 0
    not_judged: int = 0

    @property
    def scored(self) -> int:
        """Number of runs with a score."""
        return self.runs - self.broken


@dataclass(frozen=True)
class PublishedVerdict:
    """A conclusion with its numbers.

    Attributes:
        kind: kind of the conclusion.
        counts: numbers of runs that the conclusion is based on.
        reasons: reasons why nothing can be compared; empty for any other kind.
        margin: margin of agreement in percentage points; None if agreement was not tested.
        within: whether the difference is shown to be within the margin, which a difference shown not to be 0 may be.
        excluded: for `CANNOT_TELL`, largest difference in points, either way, that the interval does not exclude.
        seeds: number of seeds in the interval; with one seed the interval is over samples only. If the runs start from
            one pretraining, only the seeds of the later training count.
    """

    kind: PublishedKind
    counts: Counts
    reasons: tuple[Reason, ...] = ()
    margin: float | None = None
    within: bool = False
    excluded: float | None = None
    seeds: int | None = None

    @property
    def survivors(self) -> bool:
        """Whether the verdict is based on the surviving runs only, because others failed."""
        return bool(self.counts.scored and (self.counts.broken or self.counts.lost))


def judged(
    value: Value, counts: Counts, estimate: "Estimate | None", *, reasons: Sequence[Reason] = (), margin: float = MARGIN
) -> PublishedVerdict:
    """Return the verdict on the runs of one configuration compared with a published cell.

    Args:
        value: published cell, neither a reference nor in doubt.
        counts: numbers of the runs.
        estimate: mean score of the runs as a fraction, with its interval; None without an interval.
        reasons: reasons why the runs cannot be compared with the cell.
        margin: margin of agreement in percentage points.
    """
    if reasons:
        return PublishedVerdict(PublishedKind.NOT_COMPARABLE, counts, reasons=tuple(reasons))
    if not counts.scored:
        kind = PublishedKind.BOTH_BREAK_DOWN if value.crash else PublishedKind.BREAKS_DOWN_HERE_ONLY
        return PublishedVerdict(kind, counts)
    if value.crash:
        alive = PublishedKind.CANNOT_TELL if counts.not_judged else PublishedKind.NOT_HERE
        return PublishedVerdict(PublishedKind.BREAKS_DOWN_IN_SOME if counts.broken else alive, counts)
    if estimate is None or value.percent is None:
        return PublishedVerdict(PublishedKind.NO_INTERVAL, counts)
    difference, slack = _difference(estimate, value.percent), value.rounding
    within = _within(difference, slack, margin)
    verdict = PublishedVerdict(PublishedKind.AGREES, counts, margin=margin, within=within, seeds=estimate.seeds[0])
    if difference.low > slack or difference.high < -slack:
        return replace(verdict, kind=PublishedKind.HIGHER if difference.low > slack else PublishedKind.LOWER)
    if verdict.within:
        return verdict
    excluded = max(slack - difference.low, slack + difference.high)
    return replace(verdict, kind=PublishedKind.CANNOT_TELL, excluded=excluded)


def _difference(estimate: "Estimate", printed: float) -> "Estimate":
    """Return the difference own - printed in percentage points."""
    points = {name: 100 * getattr(estimate, name) - printed for name in ("estimate", "low", "high")}
    low, high = estimate.inner
    return replace(estimate, **points, inner=(100 * low - printed, 100 * high - printed))


def _within(difference: "Estimate", slack: float, margin: float) -> bool:
    """Return whether the difference is within the margin for every number that rounds to the printed one."""
    low, high = difference.inner
    return replace(difference, inner=(low - slack, high + slack)).within(margin)
