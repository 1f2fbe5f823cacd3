"""Reads published numbers from `configs/published/*.yaml`. Imports neither torch nor pandas.

A paper has tables of rows and figures of claims, each with notes. A row has a label, the options of each step of the
table's sweep, and values in percent; `reference: REASON` marks a row that no sweep runs. `epoch: N` beside a score is
the epoch after which it was measured, if not after the last:

- label: "1Proj, 5e-2"
  dino: {stem: patchify}
  reid: {lr: 5.0e-2}                        # or lr: {printed: 1.0e-3, used: [2.0e-3, 1.0e-3]}
  values:
    - {step: reid, dataset: market1501, mAP: crash, rank1: {printed: "88.6", doubt: "why it cannot be right"}}
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

from transfer.core.errors import UsageError
from transfer.core.settings import read_yaml, shipped_path


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
        return self.printed == "crash"

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
class PublishedTable:
    """A table of a paper, which has rows with numbers, or a figure, which has claims."""

    paper: str
    name: str
    title: str
    notes: Sequence[str] = ()
    rows: Sequence[Row] = ()
    claims: Sequence[str] = ()

    @property
    def sweep(self) -> str:
        """Name of the shipped sweep that runs the table."""
        return f"{self.paper}_table{self.name}" if self.name.isdigit() else f"{self.paper}_{self.name}"

    @property
    def called(self) -> str:
        """Return "table 4" for the name "4", and "figure 1" for "figure1"."""
        figure = self.name.removeprefix("figure")
        return f"table {self.name}" if figure == self.name else f"figure {figure}"


@dataclass(frozen=True)
class Paper:
    """The published numbers of a paper."""

    name: str
    title: str
    source: str
    tables: dict[str, PublishedTable]
    """Tables and figures, the latter by names such as `figure1`."""
    notes: Sequence[str] = ()
    stand_ins: dict[str, list[str]] = field(default_factory=dict)
    """Datasets that smaller tiers use in place of a dataset, by the name of the latter."""
    versions: dict[str, str] = field(default_factory=dict)
    """Version of a dataset that the paper used, by name, if its facts in configs/datasets leave the version open."""
    needs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Descriptions of the downloads that the numbers need, by step and option; any value of the option will do."""
    open: dict[str, list[str]] = field(default_factory=dict)
    """Options that the paper leaves open, by step; the values of the shipped sweep are assumed."""
    kits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How numbers are reproduced, by the step that is run; `transfer.sweep.kits.Kit` has the entries."""


@lru_cache
def read_paper(name: str) -> Paper:
    """Return the published numbers of a paper.

    Raises:
        UsageError: the paper is unknown.
    """
    content = read_yaml(shipped_path("published", "paper", name))
    tables = {key: _table(name, key, table) for key, table in content["tables"].items()}
    return Paper(name, **content | {"tables": tables})


def table_of(paper: str, table: str) -> PublishedTable:
    """Return a table of a paper, or a figure by a name such as `figure1`. Raises UsageError for an unknown one."""
    tables = read_paper(paper).tables
    if table not in tables:
        unknown = PublishedTable(paper, table, "").called
        raise UsageError(f"{paper} has no {unknown} (there are {', '.join(known.called for known in tables.values())})")
    return tables[table]


def rows_of(paper: str, table: str) -> list[dict[str, Any]]:
    """Return the rows of a published table that a sweep runs, each as its label and its options by step."""
    return [{"label": row.label, **row.steps} for row in table_of(paper, table).rows if not row.reference]


def used_values(option: Any) -> list[Any]:
    """Return the values that an option of a row may mean: its only value, or the readings of a printed one."""
    return list(option["used"]) if isinstance(option, dict) else [option]


def _table(paper: str, name: str, content: dict[str, Any]) -> PublishedTable:
    return PublishedTable(paper, name, **content | {"rows": [_row(row) for row in content.get("rows", ())]})


def _row(content: dict[str, Any]) -> Row:
    steps = {key: value for key, value in content.items() if key not in ("label", "values", "reference")}
    values = chain.from_iterable(_values(**entry) for entry in content["values"])
    return Row(content["label"], steps, tuple(values), content.get("reference", ""))


def _values(step: str, dataset: str, epoch: int | None = None, **scores: Any) -> Iterator[Value]:
    for metric, score in scores.items():
        printed = score if isinstance(score, dict) else {"printed": score}
        yield Value(step, dataset, metric, str(printed["printed"]), printed.get("doubt", ""), epoch)
