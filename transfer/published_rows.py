"""Published numbers: `configs/published/*.yaml`, read strictly. Imports neither torch nor pandas.

A paper has tables of rows and figures of claims. A row has a label, the options of each step of the table's sweep, and
values in percent; `reference: WHY` marks one that no sweep runs:

- label: "1Proj, 5e-2"
  dino: {stem: patchify}
  reid: {lr: 5.0e-2}                        # or lr: {printed: 1.0e-3, used: [2.0e-3, 1.0e-3]}
  values:
    - {step: reid, dataset: market1501, mAP: crash, rank1: {printed: "88.6", doubt: "why it cannot be right"}}
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backbones.data.spec import resolve_dataset
from backbones.errors import WrongWords, nearest
from backbones.settings import CONFIGS, config_names, read_yaml

CRASH = "crash"
_PAPER_KEYS = ("title", "source", "notes", "stand_ins", "versions", "tables", "figures")
_TABLE_KEYS = ("title", "notes", "rows")
_FIGURE_KEYS = ("title", "claims")
_ROW_KEYS = ("label", "values", "reference")  # any other key is a step


@dataclass(frozen=True)
class Value:
    """One published cell: `printed` is a number in percent as printed, or `crash`."""

    step: str
    dataset: str
    metric: str
    printed: str
    doubt: str = ""
    """Why it is no target."""

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
        """By how many points the number may be off: half its last digit."""
        return 0.5 * 10**-self.decimals


@dataclass(frozen=True)
class Row:
    """One published row: its options by step, an option as a value or {printed, used}, and its cells."""

    label: str
    steps: dict[str, dict[str, Any]]
    values: tuple[Value, ...]
    reference: str = ""
    """Why nothing here is to give these numbers."""


@dataclass(frozen=True)
class Table:
    """A table of a paper, or a figure: rows with numbers, or claims without."""

    paper: str
    name: str
    title: str
    notes: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    claims: tuple[str, ...] = ()

    @property
    def sweep(self) -> str:
        """The shipped sweep that runs it."""
        return f"{self.paper}_{'table' * self.name.isdigit()}{self.name}"


@dataclass(frozen=True)
class Paper:
    """What a paper printed.

    `stand_ins`: by data set, those that smaller tiers take in its place. `versions`: by data set, the one that was
    used, where the facts of the set (configs/datasets) leave it open.
    """

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    stand_ins: dict[str, tuple[str, ...]]
    versions: dict[str, str]
    tables: dict[str, Table]
    figures: dict[str, Table]


def paper_names() -> list[str]:
    """The papers with a file of published numbers."""
    return config_names("published")


@lru_cache
def read_paper(name: str) -> Paper:
    """The published numbers of a paper.

    Raises:
        WrongWords: an unknown paper; an unknown or missing key or a wrong type, with the file and the row.
    """
    if name not in paper_names():
        raise WrongWords(
            f"unknown paper {name!r}{nearest(name, paper_names())} (there are numbers of {', '.join(paper_names())})"
        )
    path = CONFIGS / "published" / f"{name}.yaml"
    return parse_paper(name, read_yaml(path), str(path))


def table_of(paper: str, table: str) -> Table:
    """A table of a paper, or one of its figures as `figure1`. Raises WrongWords for an unknown one."""
    tables = read_paper(paper).tables | {f"figure{name}": value for name, value in read_paper(paper).figures.items()}
    if table not in tables:
        raise WrongWords(f"{paper} has no table {table!r}{nearest(table, tables)} (there are {', '.join(tables)})")
    return tables[table]


def rows_of(paper: str, table: str) -> list[dict[str, Any]]:
    """The rows of a published table as a sweep takes them: label, and options by step."""
    return [{"label": row.label, **row.steps} for row in table_of(paper, table).rows if not row.reference]


def used_values(option: Any) -> list[Any]:
    """The values that an option of a row may stand for: its own, or the readings of a printed one."""
    return list(option["used"]) if isinstance(option, dict) else [option]


def parse_paper(name: str, content: dict[str, Any], where: str) -> Paper:
    """A paper from the mapping in its file; `where` names the file in errors."""
    _check_keys(content, _PAPER_KEYS, where, needed=("title", "source"))
    tables = _mapping(content.get("tables", {}), f"{where}: tables")
    figures = _mapping(content.get("figures", {}), f"{where}: figures")
    if not tables and not figures:
        raise WrongWords(f"{where}: neither `tables` nor `figures`")
    return Paper(
        name=name,
        title=_text(content["title"], f"{where}: title"),
        source=_text(content["source"], f"{where}: source"),
        notes=_texts(content.get("notes", []), f"{where}: notes"),
        stand_ins={
            _dataset(key, f"{where}: stand_ins"): tuple(_dataset(item, f"{where}: stand_ins: {key}") for item in items)
            for key, items in _mapping(content.get("stand_ins", {}), f"{where}: stand_ins").items()
        },
        versions={
            _dataset(key, f"{where}: versions"): _text(value, f"{where}: versions: {key}")
            for key, value in _mapping(content.get("versions", {}), f"{where}: versions").items()
        },
        tables={key: _table(name, key, value, f"{where}: table {key}") for key, value in tables.items()},
        figures={key: _figure(name, key, value, f"{where}: figure {key}") for key, value in figures.items()},
    )


def _table(paper: str, name: Any, content: Any, where: str) -> Table:
    _check_keys(_mapping(content, where), _TABLE_KEYS, where, needed=("title", "rows"))
    rows = [
        _row(row, f"{where}: row {number}") for number, row in enumerate(_list(content["rows"], f"{where}: rows"), 1)
    ]
    labels = [row.label for row in rows]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise WrongWords(f"{where}: two rows are called {twice[0]!r}")
    title, notes = _text(content["title"], f"{where}: title"), _texts(content.get("notes", []), f"{where}: notes")
    return Table(paper, _text(name, f"{where}: its name"), title, notes, tuple(rows))


def _figure(paper: str, name: Any, content: Any, where: str) -> Table:
    _check_keys(_mapping(content, where), _FIGURE_KEYS, where, needed=_FIGURE_KEYS)
    title, claims = _text(content["title"], f"{where}: title"), _texts(content["claims"], f"{where}: claims")
    return Table(paper, f"figure{_text(name, f'{where}: its name')}", title, claims=claims)


def _row(content: Any, where: str) -> Row:
    label = _text(_mapping(content, where).get("label"), f"{where}: label")
    where = f"{where} ({label})"
    steps = {key: _options(value, f"{where}: {key}") for key, value in content.items() if key not in _ROW_KEYS}
    reference = _text(content.get("reference", ""), f"{where}: reference")
    if bool(steps) == bool(reference):
        raise WrongWords(f"{where}: give the options of its steps, or `reference: WHY`")
    values = tuple(
        value for entry in _list(content.get("values"), f"{where}: values") for value in _values(entry, where)
    )
    for value in values:
        if not reference and value.step not in steps:
            raise WrongWords(
                f"{where}: a value of the step {value.step!r}{nearest(value.step, steps)}, which has no options"
            )
    return Row(label, steps, values, reference)


def _options(content: Any, where: str) -> dict[str, Any]:
    for name, option in _mapping(content, where).items():
        if isinstance(option, dict):
            _check_keys(option, ("printed", "used"), f"{where}: {name}", needed=("printed", "used"))
            _list(option["used"], f"{where}: {name}: used")
    return dict(content)


def _values(content: Any, where: str) -> Iterator[Value]:
    where = f"{where}: values"
    _check_keys(_mapping(content, where), tuple(content), where, needed=("step", "dataset"))
    step, dataset = _text(content["step"], f"{where}: step"), _dataset(content["dataset"], where)
    scores = {key: value for key, value in content.items() if key not in ("step", "dataset")}
    if not scores:
        raise WrongWords(f"{where}: no score beside step and dataset")
    for metric, score in scores.items():
        here = f"{where}: {metric}"
        if isinstance(score, dict):
            _check_keys(score, ("printed", "doubt"), here, needed=("printed", "doubt"))
            yield Value(
                step, dataset, metric, _printed(score["printed"], here), _text(score["doubt"], f"{here}: doubt")
            )
        elif score == CRASH or (_is_number(score) and 0 <= score <= 100):
            yield Value(step, dataset, metric, str(score))
        else:
            raise WrongWords(f"{here}: {score!r} is neither a number in percent, nor `crash`, nor {{printed, doubt}}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _printed(value: Any, where: str) -> str:
    return str(value) if _is_number(value) else _text(value, f"{where}: printed")


def _check_keys(content: dict[str, Any], known: tuple[str, ...], where: str, *, needed: tuple[str, ...]) -> None:
    for key in content:
        if key not in known:
            raise WrongWords(f"{where}: unknown key {key!r}{nearest(str(key), known)} (known: {', '.join(known)})")
    if missing := [key for key in needed if key not in content]:
        raise WrongWords(f"{where}: `{missing[0]}` is missing")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise WrongWords(f"{where}: expected `key: value` pairs with text keys, not {value!r}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise WrongWords(f"{where}: expected a list of one or more, not {value!r}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise WrongWords(f"{where}: expected text, not {value!r}")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise WrongWords(f"{where}: expected a list of texts, not {value!r}")
    return tuple(_text(item, where) for item in value)


def _dataset(value: Any, where: str) -> str:
    try:
        resolve_dataset(_text(value, where))
    except WrongWords as error:
        raise WrongWords(f"{where}: {error}") from None
    return str(value)
