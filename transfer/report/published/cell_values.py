"""Cells beside published numbers: their texts, and the reasons why numbers cannot be compared."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transfer.published.reasons import Reason
from transfer.records.record import Record
from transfer.report.tables.cell_text import cell_text, full_text
from transfer.report.tables.costs import hours, kind_of_hours


@dataclass(frozen=True)
class Reasons:
    """Reasons why a number cannot be compared with a published one.

    Attributes:
        reasons: all reasons.
        letter: abbreviates the reasons that are options, where they are many; a note explains it.
    """

    reasons: tuple[Reason, ...]
    letter: str = ""

    @property
    def options(self) -> tuple[Reason, ...]:
        """Reasons that are differences in options."""
        return tuple(reason for reason in self.reasons if reason.is_option)

    @property
    def others(self) -> tuple[Reason, ...]:
        """Reasons that are not differences in options."""
        return tuple(reason for reason in self.reasons if not reason.is_option)


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


def failures_text(broken: Sequence[Record], total: int) -> str:
    """Return the numbers of failed training runs, by status, out of a total: "diverged 1/3"."""
    counts = Counter(str(record.status) for record in broken)
    return ", ".join(f"{status} {count}/{total}" for status, count in sorted(counts.items()))


def hours_text(records: Iterable[Record]) -> str | None:
    """Return the total device hours of some runs by kind of device; None where a run has none recorded."""
    kinds: dict[str, float] = {}
    for record in records:
        kind = kind_of_hours(record)
        kinds[kind] = kinds.get(kind, 0.0) + hours(record)
    if any(map(math.isnan, kinds.values())):
        return None
    return " + ".join(f"{took:.3g} {kind}" for kind, took in kinds.items())
