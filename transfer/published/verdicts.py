"""How one's own runs stand to a published cell, as values; `sentence` alone makes words of them. Imports no torch.

`docs/concepts/statistics.md` says how each is reached. Numbers are in points of percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from transfer.published.rows import Value

if TYPE_CHECKING:
    from transfer.statistics.intervals import Estimate

MARGIN = 1.0
"""Of agreement, in points: about half of the gain of 2.1 that the conv stem's paper is about, so that numbers which
agree lead to the same conclusion."""


class Kind(Enum):
    """Every verdict on a published cell that there is."""

    AGREES = "agrees"
    """Two one-sided tests show a difference smaller than the margin either way"""
    HIGHER = "higher"
    LOWER = "lower"
    CANNOT_TELL = "cannot tell"
    NO_INTERVAL = "no interval"
    """Outcomes are missing or damaged, or samples do not add up to the score"""
    NOT_HERE = "not here"
    """Of a published crash: the own runs train"""
    BREAKS_DOWN_HERE_ONLY = "breaks down here only"
    BOTH_BREAK_DOWN = "both break down"
    BREAKS_DOWN_IN_SOME = "breaks down in some"
    """Of a published crash"""
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Counts:
    """Of the runs behind a cell, and of the trainings that their weights come from."""

    runs: int
    broken: int = 0
    """Runs of the cell that broke down"""
    pretrainings: int = 0
    """Own ones that the runs start from, and the lost ones"""
    lost: int = 0
    """Pretrainings that broke down, so that no run of the cell starts from them"""

    @property
    def scored(self) -> int:
        """Runs with a score."""
        return self.runs - self.broken


@dataclass(frozen=True)
class Verdict:
    """A conclusion with its numbers."""

    kind: Kind
    counts: Counts
    reasons: tuple[str, ...] = ()
    """Why nothing can be compared"""
    margin: float | None = None
    within: bool = False
    """Whether the difference is shown to be within the margin; so may be one that is shown not to be 0"""
    excluded: float | None = None
    """Where nothing can be told: no larger difference, either way, is left open by the interval"""
    seeds: int | None = None
    """That the interval is over; with one it is that of these models on other samples. They are those that followed
    where the runs start from one pretraining"""

    @property
    def survivors(self) -> bool:
        """Whether it is on those alone that did not break down."""
        return bool(self.counts.scored and (self.counts.broken or self.counts.lost))


def judged(
    value: Value,
    counts: Counts,
    estimate: "Estimate | None",
    *,
    reasons: Sequence[str] = (),
    margin: float = MARGIN,
) -> Verdict:
    """What the runs of one configuration say of a published cell that is no reference and not in doubt.

    Args:
        estimate: of their mean score, a fraction.
        reasons: why they cannot be compared.
        margin: in points; a smaller difference is none.
    """
    if reasons:
        return Verdict(Kind.NOT_COMPARABLE, counts, reasons=tuple(reasons))
    if not counts.scored:
        return Verdict(Kind.BOTH_BREAK_DOWN if value.crash else Kind.BREAKS_DOWN_HERE_ONLY, counts)
    if value.crash:
        return Verdict(Kind.BREAKS_DOWN_IN_SOME if counts.broken else Kind.NOT_HERE, counts)
    if estimate is None or value.percent is None:
        return Verdict(Kind.NO_INTERVAL, counts)
    apart, slack = _apart(estimate, value.percent), value.rounding
    found = Verdict(Kind.AGREES, counts, margin=margin, within=_within(apart, slack, margin), seeds=estimate.seeds[0])
    if apart.low > slack or apart.high < -slack:
        return replace(found, kind=Kind.HIGHER if apart.low > slack else Kind.LOWER)
    if found.within:
        return found
    return replace(found, kind=Kind.CANNOT_TELL, excluded=max(slack - apart.low, slack + apart.high))


def _apart(estimate: "Estimate", printed: float) -> "Estimate":
    """The difference own - printed, in points."""
    points = {name: 100 * getattr(estimate, name) - printed for name in ("estimate", "low", "high")}
    inner = estimate.inner and tuple(100 * end - printed for end in estimate.inner)
    return replace(estimate, **points, inner=inner)  # type: ignore[arg-type]


def _within(apart: "Estimate", slack: float, margin: float) -> bool:
    """Whether it is within the margin wherever in its rounding the printed number lies."""
    if apart.inner is None:
        return False
    low, high = apart.inner
    return replace(apart, inner=(low - slack, high + slack)).within(margin)


def sentence(verdict: Verdict) -> str:
    """A verdict in words."""
    kind, counts = verdict.kind, verdict.counts
    head, details = kind.value, []
    if kind is Kind.NOT_COMPARABLE:
        return head
    if kind is Kind.AGREES:
        head += f" within {verdict.margin:g}"
    if kind in (Kind.HIGHER, Kind.LOWER) and verdict.within:
        head += f", by less than {verdict.margin:g}"
    if kind is Kind.BREAKS_DOWN_IN_SOME:
        head = f"breaks down in {counts.broken} of {counts.runs} here"
    elif verdict.survivors:
        head += " among survivors"
    if verdict.seeds == 1:
        head += ", of these models (1 seed)"
    elif verdict.seeds and counts.pretrainings - counts.lost == 1:
        head += f", of one pretraining ({verdict.seeds} seeds after it)"
    if verdict.excluded is not None:
        details.append(f"differences up to {verdict.excluded:.1f} points not excluded")
    if counts.lost:
        details.append(f"{counts.lost} of {counts.pretrainings} pretrainings broke down")
    if counts.broken and counts.scored and kind is not Kind.BREAKS_DOWN_IN_SOME:
        details.append(f"breaks down in {counts.broken} of {counts.runs} here")
    return f"{head}: {'; '.join(details)}" if details else head
