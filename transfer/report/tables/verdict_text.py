"""Sentences of verdicts: on two variants, on effects, and on published numbers, with numbers as tables print them.

The cells of tables hold the verdicts as values.
"""

from transfer.published.verdicts import PublishedKind, PublishedVerdict
from transfer.report.tables.cell_text import cell_text
from transfer.statistics.verdicts import Kind, Verdict

PERCENT = 100.0
_FAILED = {Kind.A_FAILED: "a", Kind.B_FAILED: "b", Kind.BOTH_FAILED: "a and b"}


@cell_text.register
def verdict_text(verdict: Verdict) -> str:
    """Return the sentence of a verdict on a difference."""
    sentence = _conclusion(verdict) + _caveats(verdict)
    if not verdict.breakdowns:
        return sentence
    broken = ", ".join(
        f"{variant.variant} {variant.broken} of {variant.of}" for variant in verdict.breakdowns if variant.broken
    )
    sentence = f"{sentence}; completed runs only: failed {broken}"
    if (counted := verdict.counted) is None:
        return sentence
    scale = PERCENT if verdict.percent else 1.0
    estimate, low, high = (f"{scale * number:+.1f}" for number in (counted.estimate, counted.low, counted.high))
    return f"{sentence}; failed runs counted at chance level: {estimate} [{low}, {high}]"


def verdict_in_short(verdict: Verdict) -> str:
    """Return a verdict without its numbers."""
    return verdict.kind.value + (" (completed runs only)" if verdict.breakdowns else "") + _caveats(verdict)


def _caveats(verdict: Verdict) -> str:
    return f" ({', '.join(verdict.caveats)})" * bool(verdict.caveats)


def _conclusion(verdict: Verdict) -> str:
    """Return the sentence without the numbers of breakdowns."""
    kind = verdict.kind
    if kind in _FAILED:
        return f"not compared: {_FAILED[kind]} failed"
    margin = "" if verdict.margin is None else verdict_number(verdict.margin, verdict)
    if kind is Kind.EQUIVALENT:
        return f"equivalent within {margin}"
    if kind is not Kind.INCONCLUSIVE:
        return str(kind.value) + (f", by less than {margin}" if verdict.within else "")
    if verdict.alone:
        return f"{kind.value}; not significant after correction for several tests"
    if verdict.equal:
        return f"{kind.value}; no difference on any sample"
    if verdict.few or verdict.smallest is None:
        return f"{kind.value}; too few clusters differ"
    return f"{kind.value}; minimum detectable difference {verdict_number(verdict.smallest, verdict)}"


def verdict_number(value: float, verdict: Verdict) -> str:
    """Return a number of a verdict as it is shown: in percent where the score is a fraction."""
    return f"{PERCENT * value:.1f}" if verdict.percent else f"{value:.2g}"


@cell_text.register
def published_verdict_text(verdict: PublishedVerdict) -> str:
    """Return the sentence of a verdict on a published number, without its reasons, which have their own column."""
    if verdict.kind is PublishedKind.NOT_COMPARABLE:
        return str(verdict.kind.value)
    head, details = _published_head(verdict), _published_details(verdict)
    return f"{head}: {'; '.join(details)}" if details else head


def _published_head(verdict: PublishedVerdict) -> str:
    """Return the conclusion and its scope."""
    kind, counts = verdict.kind, verdict.counts
    head = kind.value
    if kind is PublishedKind.AGREES:
        head += f" within {verdict.margin:g}"
    if kind in (PublishedKind.HIGHER, PublishedKind.LOWER) and verdict.within:
        head += f", by less than {verdict.margin:g}"
    if kind is PublishedKind.BREAKS_DOWN_IN_SOME:
        head = f"failed in {counts.broken} of {counts.runs} here"
    elif verdict.survivors:
        head += ", completed runs only"
    if verdict.seeds == 1:
        return head + ", of these models (1 seed)"
    if verdict.seeds and counts.pretrainings - counts.lost == 1:
        return head + f", of one pretraining ({verdict.seeds} seeds after it)"
    return head


def _published_details(verdict: PublishedVerdict) -> list[str]:
    """Return the differences that are not excluded, and the counts of failed runs."""
    counts, details = verdict.counts, []
    if verdict.excluded is not None:
        details.append(f"differences up to {verdict.excluded:.1f} percentage points not excluded")
    if counts.not_judged:
        details.append(f"{counts.not_judged} of {counts.runs} not judged")
    if counts.lost:
        details.append(f"{counts.lost} of {counts.pretrainings} pretraining runs failed")
    if counts.broken and counts.scored and verdict.kind is not PublishedKind.BREAKS_DOWN_IN_SOME:
        details.append(f"failed in {counts.broken} of {counts.runs} here")
    return details
