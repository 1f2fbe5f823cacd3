"""Reads published numbers from `configs/published/*.yaml` and rejects unknown keys. Imports neither torch nor pandas.

A paper has tables of rows and figures of claims, each with notes. A row has a label, the options of each step of the
table's sweep, and values in percent; `reference: REASON` marks a row that no sweep runs. `epoch: N` beside a score is
the epoch after which it was measured, if not after the last:

- label: "1Proj, 5e-2"
  dino: {stem: patchify}
  reid: {lr: 5.0e-2}                        # or lr: {printed: 1.0e-3, used: [2.0e-3, 1.0e-3]}
  values:
    - {step: reid, dataset: market1501, mAP: crash, rank1: {printed: "88.6", doubt: "why it cannot be right"}}
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from transfer.core.errors import UsageError, did_you_mean, unknown
from transfer.core.options import check_keys
from transfer.core.settings import CONFIGS, config_names, read_yaml
from transfer.data.spec import resolve_dataset

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


_PAPER_KEYS = ("title", "source", "notes", "stand_ins", "versions", "needs", "open", "tables", "figures")
_TABLE_KEYS = ("title", "notes", "rows")
_FIGURE_KEYS = ("title", "claims", "notes", "costs")
_COST_KEYS = ("claim", "more", "step", "dataset", "both", "with", "without")
_ROW_KEYS = ("label", "values", "reference")  # any other key is a step


def paper_names() -> list[str]:
    """Return the names of the papers with a file of published numbers."""
    return config_names("published")


@lru_cache
def read_paper(name: str) -> Paper:
    """Return the published numbers of a paper.

    Raises:
        UsageError: the paper is unknown, or a key is unknown or missing; the message names file and row.
    """
    if name not in paper_names():
        raise unknown("paper", name, paper_names())
    path = CONFIGS / "published" / f"{name}.yaml"
    return parse_paper(name, read_yaml(path), str(path))


def table_of(paper: str, table: str) -> PublishedTable:
    """Return a table of a paper, or a figure by a name such as `figure1`. Raises UsageError for an unknown one."""
    tables = read_paper(paper).tables | {f"figure{name}": value for name, value in read_paper(paper).figures.items()}
    if table not in tables:
        titles = [known.called for known in tables.values()]
        raise UsageError(f"{paper} has no {called(table)} (there are {', '.join(titles)})")
    return tables[table]


def rows_of(paper: str, table: str) -> list[dict[str, Any]]:
    """Return the rows of a published table that a sweep runs, each as its label and its options by step."""
    return [{"label": row.label, **row.steps} for row in table_of(paper, table).rows if not row.reference]


def used_values(option: Any) -> list[Any]:
    """Return the values that an option of a row may mean: its only value, or the readings of a printed one."""
    return list(option["used"]) if isinstance(option, dict) else [option]


def parse_paper(name: str, content: dict[str, Any], where: str) -> Paper:
    """Return a paper from the mapping in its file; `where` names the file in errors."""
    check_keys(content, _PAPER_KEYS, where, needed=("title", "source"))
    stand_ins, versions = content.get("stand_ins", {}), content.get("versions", {})
    for dataset in (*stand_ins, *versions, *(item for items in stand_ins.values() for item in items)):
        resolve_dataset(dataset)
    return Paper(
        name=name,
        title=content["title"],
        source=content["source"],
        notes=tuple(content.get("notes", ())),
        stand_ins={key: tuple(items) for key, items in stand_ins.items()},
        versions=versions,
        needs=content.get("needs", {}),
        open={step: tuple(names) for step, names in content.get("open", {}).items()},
        tables={key: _table(name, key, table, where) for key, table in content.get("tables", {}).items()},
        figures={key: _figure(name, key, figure, where) for key, figure in content.get("figures", {}).items()},
    )


def _table(paper: str, name: str, content: dict[str, Any], where: str) -> PublishedTable:
    where = f"{where}: table {name}"
    check_keys(content, _TABLE_KEYS, where, needed=("title", "rows"))
    rows = tuple(_row(row, f"{where}: row {number}") for number, row in enumerate(content["rows"], 1))
    labels = [row.label for row in rows]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise UsageError(f"{where}: two rows are called {twice[0]!r}")
    return PublishedTable(paper, name, content["title"], tuple(content.get("notes", ())), rows)


def _figure(paper: str, name: str, content: dict[str, Any], where: str) -> PublishedTable:
    where = f"{where}: figure {name}"
    check_keys(content, _FIGURE_KEYS, where, needed=("title", "claims"))
    return PublishedTable(
        paper,
        f"figure{name}",
        content["title"],
        tuple(content.get("notes", ())),
        claims=tuple(content["claims"]),
        costs=tuple(_cost(cost, f"{where}: costs") for cost in content.get("costs", ())),
    )


def _cost(content: dict[str, Any], where: str) -> Cost:
    check_keys(content, _COST_KEYS, where, needed=_COST_KEYS)
    claim, step, more = content["claim"], content["step"], str(content["more"])
    with_it, without = (
        Row(claim, {step: {**content["both"], **content[variant]}}, ()) for variant in ("with", "without")
    )
    return Cost(claim, more, Value(step, content["dataset"], "hours", more), with_it, without)


def _row(content: dict[str, Any], where: str) -> Row:
    label, reference = content["label"], content.get("reference", "")
    where = f"{where} ({label})"
    steps = {key: value for key, value in content.items() if key not in _ROW_KEYS}
    if bool(steps) == bool(reference):
        raise UsageError(f"{where}: give the options of its steps, or `reference: WHY`")
    values = tuple(value for entry in content["values"] for value in _values(entry, where))
    for value in values:
        if not reference and value.step not in steps:
            raise UsageError(
                f"{where}: a value of the step {value.step!r}{did_you_mean(value.step, steps)}, which has no options"
            )
    return Row(label, steps, values, reference)


def _values(content: dict[str, Any], where: str) -> Iterator[Value]:
    step, dataset, epoch = content["step"], content["dataset"], content.get("epoch")
    resolve_dataset(dataset)
    for metric, score in content.items():
        if metric in ("step", "dataset", "epoch"):
            continue
        if isinstance(score, dict):
            check_keys(score, ("printed", "doubt"), f"{where}: {metric}", needed=("printed", "doubt"))
            yield Value(step, dataset, metric, str(score["printed"]), score["doubt"], epoch)
        elif score == CRASH or (isinstance(score, int | float) and 0 <= score <= 100):
            yield Value(step, dataset, metric, str(score), epoch=epoch)
        else:
            raise UsageError(f"{where}: {metric}: {score!r} is neither a number in percent nor `crash`")
