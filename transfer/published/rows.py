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
from functools import lru_cache
from typing import Any

from backbones.errors import UsageError, did_you_mean
from backbones.settings import CONFIGS, config_names, read_yaml
from transfer.published.checks import (
    as_items,
    check_keys,
    dataset_of,
    is_number,
    mapping,
    printed_text,
    text_of,
    texts_of,
)
from transfer.published.schema import CRASH, Cost, Paper, PublishedTable, Row, Value, called

__all__ = [
    "Paper",
    "PublishedTable",
    "Row",
    "Value",
    "paper_names",
    "parse_paper",
    "read_paper",
    "rows_of",
    "table_of",
    "used_values",
]

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
        UsageError: the paper is unknown, a key is unknown or missing, or a value has a wrong type; the message names
            file and row.
    """
    if name not in paper_names():
        raise UsageError(
            f"unknown paper {name!r}{did_you_mean(name, paper_names())} (there are numbers of "
            f"{', '.join(paper_names())})"
        )
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
    tables = mapping(content.get("tables", {}), f"{where}: tables")
    figures = mapping(content.get("figures", {}), f"{where}: figures")
    if not tables and not figures:
        raise UsageError(f"{where}: neither `tables` nor `figures`")
    return Paper(
        name=name,
        title=text_of(content["title"], f"{where}: title"),
        source=text_of(content["source"], f"{where}: source"),
        notes=texts_of(content.get("notes", []), f"{where}: notes"),
        stand_ins={
            dataset_of(key, f"{where}: stand_ins"): tuple(
                dataset_of(item, f"{where}: stand_ins: {key}") for item in items
            )
            for key, items in mapping(content.get("stand_ins", {}), f"{where}: stand_ins").items()
        },
        versions={
            dataset_of(key, f"{where}: versions"): text_of(value, f"{where}: versions: {key}")
            for key, value in mapping(content.get("versions", {}), f"{where}: versions").items()
        },
        needs={
            step: {
                option: text_of(description, f"{where}: needs: {step}: {option}")
                for option, description in mapping(options, f"{where}: needs: {step}").items()
            }
            for step, options in mapping(content.get("needs", {}), f"{where}: needs").items()
        },
        open={
            step: texts_of(names, f"{where}: open: {step}")
            for step, names in mapping(content.get("open", {}), f"{where}: open").items()
        },
        tables={key: _table(name, key, value, f"{where}: table {key}") for key, value in tables.items()},
        figures={key: _figure(name, key, value, f"{where}: figure {key}") for key, value in figures.items()},
    )


def _table(paper: str, name: Any, content: Any, where: str) -> PublishedTable:
    check_keys(mapping(content, where), _TABLE_KEYS, where, needed=("title", "rows"))
    rows = [
        _row(row, f"{where}: row {number}") for number, row in enumerate(as_items(content["rows"], f"{where}: rows"), 1)
    ]
    labels = [row.label for row in rows]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise UsageError(f"{where}: two rows are called {twice[0]!r}")
    title, notes = text_of(content["title"], f"{where}: title"), texts_of(content.get("notes", []), f"{where}: notes")
    return PublishedTable(paper, text_of(name, f"{where}: its name"), title, notes, tuple(rows))


def _figure(paper: str, name: Any, content: Any, where: str) -> PublishedTable:
    check_keys(mapping(content, where), _FIGURE_KEYS, where, needed=("title", "claims"))
    title, claims = text_of(content["title"], f"{where}: title"), texts_of(content["claims"], f"{where}: claims")
    costs = [_cost(cost, f"{where}: costs: {number}") for number, cost in enumerate(content.get("costs", []), 1)]
    return PublishedTable(
        paper,
        f"figure{text_of(name, f'{where}: its name')}",
        title,
        texts_of(content.get("notes", []), f"{where}: notes"),
        claims=claims,
        costs=tuple(costs),
    )


def _cost(content: Any, where: str) -> Cost:
    check_keys(mapping(content, where), _COST_KEYS, where, needed=_COST_KEYS)
    claim, step = text_of(content["claim"], f"{where}: claim"), text_of(content["step"], f"{where}: step")
    more = printed_text(content["more"], f"{where}: more")
    both, *arms = (_options(content[key], f"{where}: {key}") for key in ("both", "with", "without"))
    with_it, without = (Row(claim, {step: {**both, **arm}}, ()) for arm in arms)
    return Cost(claim, more, Value(step, dataset_of(content["dataset"], where), "hours", more), with_it, without)


def _row(content: Any, where: str) -> Row:
    label = text_of(mapping(content, where).get("label"), f"{where}: label")
    where = f"{where} ({label})"
    steps = {key: _options(value, f"{where}: {key}") for key, value in content.items() if key not in _ROW_KEYS}
    reference = text_of(content.get("reference", ""), f"{where}: reference")
    if bool(steps) == bool(reference):
        raise UsageError(f"{where}: give the options of its steps, or `reference: WHY`")
    values = tuple(
        value for entry in as_items(content.get("values"), f"{where}: values") for value in _values(entry, where)
    )
    for value in values:
        if not reference and value.step not in steps:
            raise UsageError(
                f"{where}: a value of the step {value.step!r}{did_you_mean(value.step, steps)}, which has no options"
            )
    return Row(label, steps, values, reference)


def _options(content: Any, where: str) -> dict[str, Any]:
    for name, option in mapping(content, where).items():
        if isinstance(option, dict):
            check_keys(option, ("printed", "used"), f"{where}: {name}", needed=("printed", "used"))
            as_items(option["used"], f"{where}: {name}: used")
    return dict(content)


def _values(content: Any, where: str) -> Iterator[Value]:
    where = f"{where}: values"
    check_keys(mapping(content, where), tuple(content), where, needed=("step", "dataset"))
    step, dataset = text_of(content["step"], f"{where}: step"), dataset_of(content["dataset"], where)
    scores = {key: value for key, value in content.items() if key not in ("step", "dataset", "epoch")}
    epoch = content.get("epoch")
    if epoch is not None and (type(epoch) is not int or epoch < 1):
        raise UsageError(f"{where}: epoch: {epoch!r} is no number of an epoch, from 1")
    if not scores:
        raise UsageError(f"{where}: no score beside step and dataset")
    for metric, score in scores.items():
        here = f"{where}: {metric}"
        if isinstance(score, dict):
            check_keys(score, ("printed", "doubt"), here, needed=("printed", "doubt"))
            printed, doubt = printed_text(score["printed"], here), text_of(score["doubt"], f"{here}: doubt")
            yield Value(step, dataset, metric, printed, doubt, epoch)
        elif score == CRASH or (is_number(score) and 0 <= score <= 100):
            yield Value(step, dataset, metric, str(score), epoch=epoch)
        else:
            raise UsageError(f"{here}: {score!r} is neither a number in percent, nor `crash`, nor {{printed, doubt}}")
