"""Verdicts on own runs compared with a published cell, and their sentences. Imports no torch.

`docs/concepts/statistics.md` describes how each is reached. Numbers are in points of percent.
"""

from dataclasses import dataclass, replace
from enum import Enum

from transfer.experiments.published_rows import Value
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


@dataclass(frozen=True)
class PublishedVerdict:
    """A conclusion with its numbers.

    Attributes:
        kind: kind of the conclusion.
        counts: numbers of runs that the conclusion is based on.
        margin: margin of agreement in percentage points; None if agreement was not tested.
        within: whether the difference is shown to be within the margin, which a difference shown not to be 0 may be.
        excluded: for `CANNOT_TELL`, largest difference in points, either way, that the interval does not exclude.
        seeds: number of seeds in the interval; with one seed the interval is over samples only. If the runs start from
            one pretraining, only the seeds of the later training count.
    """

    kind: PublishedKind
    counts: Counts
    margin: float | None = None
    within: bool = False
    excluded: float | None = None
    seeds: int | None = None

    def __str__(self) -> str:
        """Return the sentence, without the reasons why nothing can be compared, which have their own column."""
        kind, counts = self.kind, self.counts
        if kind is PublishedKind.NOT_COMPARABLE:
            return kind.value
        head, details = kind.value, list[str]()
        here = f"failed in {counts.broken} of {counts.runs} here"
        if kind is PublishedKind.AGREES:
            head += f" within {self.margin:g}"
        elif kind is PublishedKind.BREAKS_DOWN_IN_SOME:
            head = here
        elif self.within:
            head += f", by less than {self.margin:g}"
        if counts.runs > counts.broken and (counts.broken or counts.lost) and head != here:
            head += ", completed runs only"
        if self.seeds == 1:
            head += ", of these models (1 seed)"
        elif self.seeds and counts.pretrainings - counts.lost == 1:
            head += f", of one pretraining ({self.seeds} seeds after it)"
        if self.excluded is not None:
            details.append(f"differences up to {self.excluded:.1f} percentage points not excluded")
        if counts.not_judged:
            details.append(f"{counts.not_judged} of {counts.runs} not judged")
        if counts.lost:
            details.append(f"{counts.lost} of {counts.pretrainings} pretraining runs failed")
        if 0 < counts.broken < counts.runs and kind is not PublishedKind.BREAKS_DOWN_IN_SOME:
            details.append(here)
        return f"{head}: {'; '.join(details)}" if details else head


def judged(
    value: Value, counts: Counts, estimate: Estimate | None, *, comparable: bool = True, margin: float = MARGIN
) -> PublishedVerdict:
    """Return the verdict on the runs of one configuration compared with a published cell.

    Args:
        value: published cell, neither a reference nor in doubt.
        counts: numbers of the runs.
        estimate: mean score of the runs as a fraction, with its interval; None without an interval.
        comparable: whether the runs differ from the cell in their seeds alone.
        margin: margin of agreement in percentage points.
    """
    if not comparable:
        return PublishedVerdict(PublishedKind.NOT_COMPARABLE, counts)
    if counts.broken == counts.runs:
        kind = PublishedKind.BOTH_BREAK_DOWN if value.crash else PublishedKind.BREAKS_DOWN_HERE_ONLY
        return PublishedVerdict(kind, counts)
    if value.crash:
        alive = PublishedKind.CANNOT_TELL if counts.not_judged else PublishedKind.NOT_HERE
        return PublishedVerdict(PublishedKind.BREAKS_DOWN_IN_SOME if counts.broken else alive, counts)
    if estimate is None or value.percent is None:
        return PublishedVerdict(PublishedKind.NO_INTERVAL, counts)
    slack = value.rounding
    low, high, inner_low, inner_high = (
        100 * end - value.percent for end in (estimate.low, estimate.high, *estimate.inner)
    )
    within = not estimate.few and -margin < inner_low - slack and inner_high + slack < margin
    verdict = PublishedVerdict(PublishedKind.AGREES, counts, margin=margin, within=within, seeds=estimate.seeds[0])
    if low > slack or high < -slack:
        return replace(verdict, kind=PublishedKind.HIGHER if low > slack else PublishedKind.LOWER)
    if within:
        return verdict
    return replace(verdict, kind=PublishedKind.CANNOT_TELL, excluded=max(slack - low, slack + high))
