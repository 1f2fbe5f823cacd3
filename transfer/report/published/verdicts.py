"""The words of verdicts on own runs compared with a published cell. Imports no torch.

`docs/concepts/statistics.md` describes how each is reached. Numbers are in percentage points.
"""

from typing import NamedTuple

from transfer.experiments.published_rows import Value
from transfer.statistics.intervals import Estimate
from transfer.statistics.verdicts import Kind, Verdict, verdict_of

MARGIN = 1.0
"""Margin of agreement in percentage points: about half of the conv stem's published gain of 2.1, so that numbers that
agree lead to the same conclusion."""
WORDS = {
    Kind.ABOVE: "higher",
    Kind.BELOW: "lower",
    Kind.EQUIVALENT: "agrees",
    Kind.A_FAILED: "failed here only",
    Kind.B_FAILED: "not here",
}
"""What is said of own runs (a) beside the published one (b) in other words than those of the kind."""


class Counts(NamedTuple):
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


def verdict_on(value: Value, counts: Counts, gap: Estimate | None, *, margin: float = MARGIN) -> str:
    """Return the verdict on the comparable runs of one configuration, compared with a published cell.

    With one seed the interval is over samples only. If the runs start from one pretraining, only the seeds of the later
    training count.

    Args:
        value: published cell, neither a reference nor in doubt.
        counts: numbers of the runs.
        gap: mean score of the runs less the printed one; None without an interval.
        margin: margin of agreement.
    """
    seeds, details = 0, list[str]()
    here, some = f"failed in {counts.broken} of {counts.runs} here", 0 < counts.broken < counts.runs
    if counts.broken == counts.runs:
        verdict = Verdict(Kind.BOTH_FAILED if value.crash else Kind.A_FAILED)
    elif value.crash:
        verdict = Verdict(Kind.INCONCLUSIVE if counts.not_judged else Kind.B_FAILED)
    elif gap is None:
        verdict = Verdict(Kind.NO_INTERVAL)
    else:
        verdict, seeds = verdict_of(gap, slack=value.rounding, effect=True, margin=margin), gap.seeds[0]
        if verdict.kind is Kind.INCONCLUSIVE:
            most = value.rounding + max(gap.high, -gap.low)
            details.append(f"differences up to {most:.1f} percentage points not excluded")
    head = here if value.crash and some else WORDS.get(verdict.kind, verdict.kind.value)
    if verdict.within:
        head += f" within {margin:g}" if verdict.kind is Kind.EQUIVALENT else f", by less than {margin:g}"
    if counts.runs > counts.broken and (counts.broken or counts.lost) and head != here:
        head += ", completed runs only"
    if seeds == 1:
        head += ", of these models (1 seed)"
    elif seeds and counts.pretrainings - counts.lost == 1:
        head += f", of one pretraining ({seeds} seeds after it)"
    if counts.not_judged:
        details.append(f"{counts.not_judged} of {counts.runs} not judged")
    if counts.lost:
        details.append(f"{counts.lost} of {counts.pretrainings} pretraining runs failed")
    if some and not value.crash:
        details.append(here)
    return f"{head}: {'; '.join(details)}" if details else head
