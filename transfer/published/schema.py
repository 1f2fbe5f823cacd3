"""Papers, tables, rows and values of a file of published numbers, which `transfer.published.rows` reads."""

from dataclasses import dataclass, replace
from typing import Any

CRASH = "crash"


@dataclass(frozen=True)
class Value:
    """A published value of one cell of a table."""

    step: str
    dataset: str
    metric: str
    printed: str
    """The number in percent as printed, or `crash`."""
    doubt: str = ""
    """Reason why the number cannot be right and is not a target; empty without one."""
    epoch: int | None = None
    """Epoch after which the score was measured; None for the end of training."""

    @property
    def name(self) -> str:
        """Name of the score, with the epoch if it is not the last one."""
        return self.metric if self.epoch is None else f"{self.metric} at epoch {self.epoch}"

    @property
    def crash(self) -> bool:
        """Whether the paper reports a failed training run."""
        return self.printed == CRASH

    @property
    def percent(self) -> float | None:
        """Number in percent; None for a crash and for a number in doubt."""
        return None if self.crash or self.doubt else float(self.printed)

    @property
    def decimals(self) -> int:
        """Number of printed digits after the decimal point."""
        return len(self.printed.partition(".")[2]) if self.percent is not None else 1

    @property
    def rounding(self) -> float:
        """Rounding error of the printed number in percentage points: half a unit of its last digit."""
        return 0.5 * 10.0**-self.decimals


@dataclass(frozen=True)
class Row:
    """A published row of a table."""

    label: str
    steps: dict[str, dict[str, Any]]
    """Options by step; an option is a value, or {printed, used} if the print can be read in several ways."""
    values: tuple[Value, ...]
    reference: str = ""
    """Reason why no sweep runs the row; empty for a row that a sweep runs."""


@dataclass(frozen=True)
class Cost:
    """A claim by how much some options lengthen a training."""

    claim: str
    more: str
    """Additional hours in percent, as printed."""
    value: Value
    """Step and dataset of both trainings."""
    with_it: Row
    """Row of the training with the options."""
    without: Row
    """Row of the same training without them."""

    @property
    def parts(self) -> list[str]:
        """Names of the options in which the two trainings differ."""
        return [name for name, value in self.with_it.steps[self.value.step].items()
                if self.without.steps[self.value.step].get(name) != value]  # fmt: skip


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, which has rows with numbers, or a figure, which has claims."""

    paper: str
    name: str
    title: str
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    claims: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()

    @property
    def sweep(self) -> str:
        """Name of the shipped sweep that runs the table."""
        return f"{self.paper}_{'table' * self.name.isdigit()}{self.name}"

    @property
    def called(self) -> str:
        """Text such as "table 4" or "figure 1"."""
        return called(self.name)


@dataclass(frozen=True)
class Paper:
    """The published numbers of a paper."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    stand_ins: dict[str, tuple[str, ...]]
    """Datasets that smaller tiers use in place of a dataset, by the name of the latter."""
    versions: dict[str, str]
    """Version of a dataset that the paper used, by name, if its facts in configs/datasets leave the version open."""
    needs: dict[str, dict[str, str]]
    """Descriptions of the downloads that the numbers need, by step and option; any value of the option will do."""
    open: dict[str, tuple[str, ...]]
    """Options that the paper leaves open, by step; the values of the shipped sweep are assumed."""
    tables: dict[str, PublishedTable]
    figures: dict[str, PublishedTable]


def called(table: str) -> str:
    """Return "table 4" for the name "4", and "figure 1" for "figure1"."""
    figure = table.removeprefix("figure")
    return f"table {table}" if figure == table else f"figure {figure}"


@dataclass(frozen=True)
class Reason:
    """A condition under which an own run differs from the published one.

    Attributes:
        text: the condition, with the published value in brackets.
        is_option: whether it is an option or a part of the backbone; long lists of these are moved into a note.
        step: name of the sweep's step whose training has the condition; empty for the run of the cell itself.
    """

    text: str
    is_option: bool = False
    step: str = ""

    def __str__(self) -> str:
        """Return the text, with the step if it is of another training."""
        return f"{self.step}: {self.text}" if self.step else self.text

    def of_step(self, step: str) -> "Reason":
        """Return the reason for the training of an earlier step from whose weights the run starts."""
        return replace(self, step=step)
