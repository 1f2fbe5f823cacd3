"""Texts of the cells beside published numbers."""

from collections.abc import Iterable

from transfer.published.reasons import Reason
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


def reason_texts(reasons: Iterable[Reason]) -> str:
    """Return the texts of several reasons, joined."""
    return "; ".join(map(str, reasons))


@cell_text.register
def _(reasons: Reasons) -> str:
    if not reasons.letter:
        return reason_texts(reasons.reasons)
    lettered = f"{len(reasons.options)} options: {reasons.letter}"
    return "; ".join([*map(str, reasons.others), lettered])


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
