"""Texts of the cells beside published numbers, and of the reasons why numbers cannot be compared."""

from collections.abc import Iterable
from functools import singledispatch

from transfer.published.reasons import (
    ContentsNotRecorded,
    Differs,
    Lacks,
    Marked,
    OtherDataset,
    OtherMachine,
    OtherWeights,
    Reason,
    UnknownPretraining,
    UnreadableImages,
    Untrained,
)
from transfer.records.labels import value_label
from transfer.report.published.cell_values import (
    Failures,
    Hours,
    HoursOfPair,
    OptionReading,
    OwnResult,
    PercentMore,
    Points,
    PointsInterval,
    Printed,
    Reasons,
)
from transfer.report.tables.cell_text import cell_text, full_text

_ID = 40
"""Number of characters shown of an id of weights."""


@cell_text.register
def reason_text(reason: Reason) -> str:
    """Return the text of a reason, with the published value in brackets."""
    return f"{reason.step}: {_text(reason)}" if reason.step else _text(reason)


def reason_texts(reasons: Iterable[Reason]) -> str:
    """Return the texts of several reasons, joined."""
    return "; ".join(map(reason_text, reasons))


@singledispatch
def _text(reason: Reason) -> str:
    raise NotImplementedError(type(reason))


@_text.register
def _(reason: Marked) -> str:
    return reason.mark


@_text.register
def _(reason: UnreadableImages) -> str:
    return f"{reason.count} images unreadable"


@_text.register
def _(reason: Untrained) -> str:
    return f"left untrained: {', '.join(reason.parameters)}"


@_text.register
def _(reason: OtherDataset) -> str:
    return f"{reason.name} for {', '.join(reason.published)}"


@_text.register
def _(reason: ContentsNotRecorded) -> str:
    return f"{reason.dataset}: what it holds is not recorded"


@_text.register
def _(reason: Differs) -> str:
    return f"{reason.name} {value_label(reason.own)} ({value_label(reason.published)}{_assumed(reason.assumed)})"


@_text.register
def _(reason: Lacks) -> str:
    return f"no {reason.download}"


@_text.register
def _(reason: UnknownPretraining) -> str:
    return f"unknown pretraining: weights {reason.weights_id[:_ID]}"


@_text.register
def _(reason: OtherWeights) -> str:
    start = f"weights {reason.weights_id[:_ID]}" if reason.weights_id else "an own pretraining"
    return f"starts from {start} ({reason.published}{_assumed(reason.assumed)})"


@_text.register
def _(reason: OtherMachine) -> str:
    return f"{reason.name} {' against '.join(map(str, reason.own))}"


def _assumed(assumed: bool) -> str:
    """Return the suffix of a value that the sweep chose because the paper does not state it."""
    return " taken, not stated" * assumed


@cell_text.register
def _(reasons: Reasons) -> str:
    if not reasons.letter:
        return reason_texts(reasons.reasons)
    lettered = f"{len(reasons.options)} options: {reasons.letter}"
    return "; ".join([*map(reason_text, reasons.others), lettered])


@full_text.register
def _(reasons: Reasons) -> str:
    return reason_texts([*reasons.others, *reasons.options] if reasons.letter else reasons.reasons)


@cell_text.register
def _(printed: Printed) -> str:
    return f"{printed.text} ({printed.mark})" if printed.mark else printed.text


@cell_text.register
def _(reading: OptionReading) -> str:
    return f"{reading.option} {value_label(reading.used)}, printed {value_label(reading.printed)}"


@cell_text.register
def _(failures: Failures) -> str:
    return ", ".join(f"{status} {count}/{failures.total}" for status, count in failures.statuses)


@cell_text.register
def _(result: OwnResult) -> str:
    failures = [cell_text(result.failures)] if result.failures else []
    if result.blocked:
        return f"blocked: {', '.join(failures)}"
    mean = [] if result.mean is None else [f"{result.mean:.{result.decimals}f}"]
    texts = [", ".join([*mean, *failures])]
    if result.lost:
        texts.append(f"{result.lost} of {result.pretrainings} pretrainings broke down")
    if result.at_chance is not None:
        texts.append(f"with these at chance {result.at_chance:.{result.decimals}f}")
    return "; ".join(filter(None, texts))


@cell_text.register
def _(points: Points) -> str:
    return f"{points.value:+.{points.decimals}f}"


@cell_text.register
def _(interval: PointsInterval) -> str:
    low, high = (f"{end:+.{interval.decimals}f}" for end in (interval.low, interval.high))
    seeds = f" ({interval.seeds} seed{'s' * (interval.seeds > 1)})" if interval.few else ""
    return f"{low} to {high}{seeds}"


@cell_text.register
def _(hours: Hours) -> str:
    return " + ".join(f"{took:.3g} {kind}" for kind, took in hours.by_kind)


@cell_text.register
def _(more: PercentMore) -> str:
    return f"+{more.text} %" if more.text else f"{more.value:+.1f} %"


@cell_text.register
def _(hours: HoursOfPair) -> str:
    return f"{hours.with_it:.4g} against {hours.without:.4g} {hours.kind}"
