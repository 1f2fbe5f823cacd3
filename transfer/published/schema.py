"""What a file of published numbers holds, as values: see `transfer.published.rows`, which reads it."""

from dataclasses import dataclass
from typing import Any

CRASH = "crash"


@dataclass(frozen=True)
class Value:
    """One published cell: `printed` is a number in percent as printed, or `crash`."""

    step: str
    dataset: str
    metric: str
    printed: str
    doubt: str = ""
    """Why it is no target."""
    epoch: int | None = None
    """After which it was measured; None: at the end"""

    @property
    def name(self) -> str:
        """Of the score, with the epoch where it is not the last one."""
        return self.metric if self.epoch is None else f"{self.metric} at epoch {self.epoch}"

    @property
    def crash(self) -> bool:
        """Whether the paper says that training broke down."""
        return self.printed == CRASH

    @property
    def percent(self) -> float | None:
        """The number; None for a crash, and for what is in doubt."""
        return None if self.crash or self.doubt else float(self.printed)

    @property
    def decimals(self) -> int:
        """Digits behind the point, as printed."""
        return len(self.printed.partition(".")[2]) if self.percent is not None else 1

    @property
    def rounding(self) -> float:
        """The rounding error in points: half the number's last digit."""
        return 0.5 * 10.0**-self.decimals


@dataclass(frozen=True)
class Row:
    """One published row: its options by step, an option as a value or {printed, used}, and its cells."""

    label: str
    steps: dict[str, dict[str, Any]]
    values: tuple[Value, ...]
    reference: str = ""
    """Why nothing here is to give these numbers."""


@dataclass(frozen=True)
class Cost:
    """By how much more hours a training takes that has something, than the same one without it."""

    claim: str
    more: str
    """The ratio in percent, as printed"""
    value: Value
    """The step and the data set of both"""
    with_it: Row
    without: Row

    @property
    def parts(self) -> list[str]:
        """The options in which the two differ."""
        return [name for name, value in self.with_it.steps[self.value.step].items()
                if self.without.steps[self.value.step].get(name) != value]  # fmt: skip


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, or a figure: rows with numbers, or claims without."""

    paper: str
    name: str
    title: str
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    claims: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()

    @property
    def sweep(self) -> str:
        """The shipped sweep that runs it."""
        return f"{self.paper}_{'table' * self.name.isdigit()}{self.name}"

    @property
    def called(self) -> str:
        """ "table 4", "figure 1"."""
        return called(self.name)


@dataclass(frozen=True)
class Paper:
    """What a paper printed.

    `stand_ins`: by data set, those that smaller tiers take in its place. `versions`: by data set, the one that was
    used, where the facts of the set (configs/datasets) leave it open. `needs`: by step, the options that its numbers
    were made with, whatever their value: names of downloads, which may lie anywhere; each with what it is. `open`: by
    step, the options that the paper leaves open, of which the sweep's values are taken.
    """

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    stand_ins: dict[str, tuple[str, ...]]
    versions: dict[str, str]
    needs: dict[str, dict[str, str]]
    open: dict[str, tuple[str, ...]]
    tables: dict[str, PublishedTable]
    figures: dict[str, PublishedTable]


def called(table: str) -> str:
    """ "table 4" of "4", "figure 1" of "figure1"."""
    figure = table.removeprefix("figure")
    return f"table {table}" if figure == table else f"figure {figure}"
