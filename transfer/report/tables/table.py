"""`Table`: rows of typed values, columns with their digits, and notes with the rows and columns they belong to.

Every table of a report is a `Table`. The functions that make tables fill in values; renderers (`text.py`,
`report/page/html.py`) choose sentences and digits. Imports neither torch nor pandas.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

from transfer.records.fields import content_label, value_label
from transfer.records.grouping import Comparability
from transfer.statistics.intervals import wilson
from transfer.statistics.verdicts import Breakdowns

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"
"""Name of the column with the ids of the runs behind a row, a tuple of texts."""
RUN_COLUMNS = (RUN, "runs")
"""Names of columns with ids of runs."""

Row = dict[str, Any]
"""Column name -> text, number, bool, None for no value, a tuple of texts (run ids in the column `RUN`), or a value of
a type that is registered with `cell_text`, for instance `Comparability`."""

SIGNIFICANT = 4
"""Significant digits of values whose magnitude is not known beforehand."""


@dataclass(frozen=True)
class Endings:
    """How trainings ended, of which texts have the number in each status, the commonest first.

    Attributes:
        runs: statuses of the row's runs.
        pretraining: statuses of the pretraining runs that failed and left no weights for the row.
    """

    runs: tuple[str, ...]
    pretraining: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeanInterval:
    """A mean in the unit of tables with its 95 % interval, where there is one, and the marks of its runs."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None
    mark: str = ""
    digits: str = ".1f"

    @property
    def texts(self) -> tuple[str, str]:
        """The mean with its marks, and the interval; an empty text for what is missing."""
        mean, low, high = ("" if end is None else f"{end:{self.digits}}" for end in (self.mean, self.low, self.high))
        return mean + self.mark, f"[{low}, {high}]" if low and high else ""


@singledispatch
def cell_text(value: Any) -> str:
    """Return the text of a value that is not a number, for Markdown, terminals and HTML.

    A module that defines further types of values registers their texts with `@cell_text.register`.
    """
    return str(value)


@cell_text.register
def _(value: bool | None) -> str:
    return "" if value is None else value_label(value)


@cell_text.register
def _(value: tuple) -> str:  # type: ignore[type-arg]  # singledispatch reads the bare type
    return "; ".join(map(cell_text, value))


@cell_text.register
def comparability_text(group: Comparability) -> str:
    """Return the protocol fields in which a group of rows differs from other groups: "lr 0.05, epochs 20"."""
    fields = dict(group.fields)
    return content_label(fields) or ", ".join(f"{name} without effect" for name in fields)


@cell_text.register
def _(value: Endings) -> str:
    runs, lost = (Counter(statuses).most_common() for statuses in (value.runs, value.pretraining))
    texts = [f"{count} {status}" for status, count in runs]
    return ", ".join([*texts, *(f"{count} {status} in pretraining" for status, count in lost)])


@cell_text.register
def _(value: Breakdowns) -> str:
    """Return the number of failed training runs of those judged, with the 95 % Wilson interval of the rate."""
    text = f"{value.broken} of {value.judged}"
    if value.judged > 1:
        text += " ({:.0f} to {:.0f} %)".format(*(100 * end for end in wilson(value.broken, value.judged)))
    return f"{text}, {value.not_judged} not judged" if value.not_judged else text


@cell_text.register
def _(value: MeanInterval) -> str:
    return " ".join(filter(None, value.texts))


@dataclass(frozen=True)
class Column:
    """Name and number format of a column.

    Attributes:
        name: heading, and key of the column in each row.
        digits: number of decimals of a float.
        significant_digits: number of significant digits of a float; None rounds to `digits` decimals instead.
        detail: 0 for a column that readers look for, more for one that a narrow terminal does without earlier.
    """

    name: str
    digits: int = 2
    significant_digits: int | None = None
    detail: int = 0


@dataclass(frozen=True)
class Note:
    """A remark on a table.

    Attributes:
        text: one sentence, without a full stop.
        about: name of the rows or settings it is about; renderers merge notes of equal text.
        rows: indices of the rows that it belongs to, from 0; empty for all.
    """

    text: str
    about: str = ""
    rows: tuple[int, ...] = ()


@dataclass
class Table:
    """Rows, columns and notes. Every row has a value (or None) for every column."""

    columns: list[Column]
    rows: list[Row]
    notes: list[Note] = field(default_factory=list)

    @classmethod
    def from_rows(cls, rows: Iterable[Row], columns: Collection[Column] = (), notes: Iterable[Note] = ()) -> Self:
        """Return the table of some rows, its columns in order of appearance.

        Args:
            columns: digits and detail of columns; any other column has those of `Column` by default.
        """
        rows, described = list(rows), {column.name: column for column in columns}
        names = dict.fromkeys(chain.from_iterable(rows))
        cells = [{name: row.get(name) for name in names} for row in rows]
        return cls([described.get(name, Column(name)) for name in names], cells, list(notes))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        """Return whether the table has a column of this name."""
        return name in self.names

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of a column."""
        return [row[name] for row in self.rows]

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.name for column in self.columns]

    @property
    def has_means(self) -> bool:
        """Whether some cell is a mean with its interval."""
        return any(isinstance(value, MeanInterval) for name in self.names for value in self[name])

    def without(self, *names: str) -> "Table":
        """Return the table without some columns; names that it does not have are ignored."""
        return self.select([name for name in self.names if name not in names])

    def select(self, names: Sequence[str]) -> "Table":
        """Return the table with the named columns alone, in this order."""
        described = {column.name: column for column in self.columns}
        rows = [{name: row[name] for name in names} for row in self.rows]
        return replace(self, columns=[described[name] for name in names], rows=rows)

    def take(self, places: Sequence[int]) -> "Table":
        """Return the table of some rows, with the notes that belong to them."""
        new, notes = {place: number for number, place in enumerate(places)}, list[Note]()
        for note in self.notes:
            rows = tuple(new[row] for row in note.rows if row in new)
            if rows or not note.rows:
                notes.append(replace(note, rows=rows))
        return Table(self.columns, [self.rows[place] for place in places], notes)

    def without_empty(self) -> "Table":
        """Return the table without the columns that have no value in any row, see `is_missing`."""
        return self.without(*(name for name in self.names if all(map(is_missing, self[name]))))

    def to_frame(self) -> "pd.DataFrame":
        """Return the table as a pandas DataFrame: numbers with all their digits, every other value as its text.

        The ids of a row's runs are joined by blanks.
        """
        import pandas as pd

        rows = [[plain_value(name, row[name]) for name in self.names] for row in self.rows]
        return pd.DataFrame(rows, columns=self.names)


def with_numbers(table: Table) -> Table:
    """Return a table for programs, in which a mean with its interval is three numbers and the marks of its runs."""
    means = [name for name in table.names if any(isinstance(cell, MeanInterval) for cell in table[name])]
    rows = []
    for row in table.rows:
        cells: Row = {}
        for name, value in row.items():
            parts = (("", "mean"), (" low", "low"), (" high", "high"), (" mark", "mark")) if name in means else ()
            cells |= {name + ending: getattr(value, part, None) for ending, part in parts} or {name: value}
        rows.append(cells)
    return Table.from_rows(rows, table.columns, table.notes) if means else table


def with_intervals(table: Table) -> Table:
    """Return a table for a terminal, in which a mean and the ends of its interval are one cell with one decimal."""
    ends = {name: (f"{name} low", f"{name} high") for name in table.names} | {"difference": ("low", "high")}
    ends = {name: pair for name, pair in ends.items() if {name, *pair} <= {*table.names}}
    columns = [replace(column, digits=min(column.digits, 1)) if ends else column for column in table.columns]
    rows = [dict(row) for row in table.rows]
    for column in columns:
        digits = ".1f" if column.significant_digits is None else ".3g"
        for row in rows if column.name in ends else ():
            names = (column.name, *ends[column.name])
            mean, low, high = (None if is_missing(row[name]) else row[name] for name in names)
            row[column.name] = None if mean is None else MeanInterval(mean, low, high, digits=digits)
    return replace(table, columns=columns, rows=rows).without(*chain.from_iterable(ends.values()))


def plain_value(name: str, value: Any) -> Any:
    """Return a cell for programs: a number, a bool or None as it is, every other value of the column as its text."""
    if value is None or isinstance(value, str | bool) or is_number(value):
        return value
    return " ".join(value) if name in RUN_COLUMNS and isinstance(value, tuple) else cell_text(value)


def is_missing(value: Any) -> bool:
    """Return whether a cell has no value: None, an empty text or tuple, or nan."""
    return value is None or value in ("", ()) or (isinstance(value, float) and value != value)


def is_number(value: Any) -> bool:
    """Return whether a cell holds a number; a bool is not one."""
    return isinstance(value, Real) and not isinstance(value, bool)


def holds_number(value: Any) -> bool:
    """Return whether a cell holds a number, or a mean with its interval."""
    return is_number(value) or isinstance(value, MeanInterval)
