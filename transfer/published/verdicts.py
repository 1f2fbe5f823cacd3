"""How one's own runs stand to a published cell, as values; `transfer.report.tables.verdict_text` words them.

`docs/concepts/statistics.md` says how each is reached. Numbers are in points of percent. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from transfer.published.reasons import Reason
from transfer.published.schema import Value

if TYPE_CHECKING:
    from transfer.statistics.intervals import Estimate

MARGIN = 1.0
"""Of agreement, in points: about half of the gain of 2.1 that the conv stem's paper is about, so that numbers which
agree lead to the same conclusion."""


class PublishedKind(Enum):
    """Every verdict on a published cell that there is."""

    AGREES = "agrees"
    """Two one-sided tests show a difference smaller than the margin either way"""
    HIGHER = "higher"
    LOWER = "lower"
    CANNOT_TELL = "cannot tell"
    NO_INTERVAL = "no interval"
    """Outcomes are missing or damaged, or samples do not add up to the score"""
    NOT_HERE = "not here"
    """The published run crashed and the own runs train"""
    BREAKS_DOWN_HERE_ONLY = "breaks down here only"
    BOTH_BREAK_DOWN = "both break down"
    BREAKS_DOWN_IN_SOME = "breaks down in some"
    """Of a published crash"""
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Counts:
    """How many runs stand behind a cell, and how many trainings behind these.

    Attributes:
        runs: runs of the cell.
        broken: those of them that broke down.
        pretrainings: own trainings that the runs start from, with the lost ones.
        lost: pretrainings that broke down, so that no run of the cell starts from them.
    """

    runs: int
    broken: int = 0
    pretrainings: int = 0
    lost: int = 0

    @property
    def scored(self) -> int:
        """Runs with a score."""
        return self.runs - self.broken


@dataclass(frozen=True)
class PublishedVerdict:
    """A conclusion with its numbers.

    Attributes:
        kind: the conclusion.
        counts: the runs that it is on.
        reasons: why nothing can be compared; empty for any other kind.
        margin: what the difference was asked to be within, in points; None where nothing was asked.
        within: whether it is shown to be; so may be a difference that is shown not to be 0.
        excluded: where nothing can be told, the interval leaves no larger difference open, either way.
        seeds: how many the interval is over; with one it is that of these models on other samples. Where the runs start
            from one pretraining they are the seeds of what followed.
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
        """Whether it is on those runs alone that did not break down."""
        return bool(self.counts.scored and (self.counts.broken or self.counts.lost))


def judged(
    value: Value,
    counts: Counts,
    estimate: "Estimate | None",
    *,
    reasons: Sequence[Reason] = (),
    margin: float = MARGIN,
) -> PublishedVerdict:
    """Return what the runs of one configuration say of a published cell that is no reference and not in doubt.

    Args:
        value: the published cell.
        counts: how many runs there are.
        estimate: of their mean score, a fraction; None where there is no interval.
        reasons: why they cannot be compared.
        margin: a smaller difference does not matter, in points.
    """
    if reasons:
        return PublishedVerdict(PublishedKind.NOT_COMPARABLE, counts, reasons=tuple(reasons))
    if not counts.scored:
        kind = PublishedKind.BOTH_BREAK_DOWN if value.crash else PublishedKind.BREAKS_DOWN_HERE_ONLY
        return PublishedVerdict(kind, counts)
    if value.crash:
        return PublishedVerdict(PublishedKind.BREAKS_DOWN_IN_SOME if counts.broken else PublishedKind.NOT_HERE, counts)
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
    """Return the difference own - printed, in points."""
    points = {name: 100 * getattr(estimate, name) - printed for name in ("estimate", "low", "high")}
    inner = estimate.inner and tuple(100 * end - printed for end in estimate.inner)
    return replace(estimate, **points, inner=inner)  # type: ignore[arg-type]


def _within(difference: "Estimate", slack: float, margin: float) -> bool:
    """Whether it is within the margin wherever in its rounding the printed number lies."""
    if difference.inner is None:
        return False
    low, high = difference.inner
    return replace(difference, inner=(low - slack, high + slack)).within(margin)
