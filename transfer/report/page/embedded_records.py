"""The records of a page as one JSON block, in which values shared by several runs are stored once. Imports no torch."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from transfer.records.store import Record, Run

LONGEST = 2000
"""Number of characters of a value up to which it is embedded; longer values are in record.json alone."""
# folders of one machine have no effect on a score
PATHS = ("data", "out", "feature_cache", "config", "export_dir")


def marks_of(record: Record) -> list[str]:
    """Return the marks shown beside every number of a run: smoke, dirty, subset, those of its weights, breakdown."""
    subset = [f"subset {record.subset}"] if record.subset is not None else []
    broken = [record.status] if record.status != "completed" else []
    marks = ["smoke"] * record.smoke + ["dirty"] * record.dirty + subset
    return marks + [f"pretraining {mark}" for mark in record.origin_marks if mark not in marks] + broken


def run_facts(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the values of all records, each distinct value once.

    Keys: `runs`, the ids; `marks`, the marks of each run; `facts`, a list of [group, name, distinct values], where a
    value is a text, or None for runs without the fact; `which`, for each run the indices of its values, without the
    facts that have a single value.
    """
    records = [run.record for run in runs]
    exports = {record.export: record.run_id for record in records if record.export}
    of_runs = [dict(_facts(record, exports)) for record in records]
    names = {name: None for facts in of_runs for name in facts}
    order = {group: place for place, group in enumerate(dict.fromkeys(group for group, _ in names))}
    facts: list[list[Any]] = []
    which: list[list[int]] = [[] for _ in runs]
    for group, name in sorted(names, key=lambda name: order[name[0]]):
        places: dict[str | None, int] = {}
        of_each_run = [places.setdefault(of_run.get((group, name)), len(places)) for of_run in of_runs]
        facts.append([group, name, list(places)])
        if len(places) > 1:
            for row, place in zip(which, of_each_run):
                row.append(place)
    return {
        "runs": [record.run_id for record in records],
        "marks": [marks_of(record) for record in records],
        "facts": facts,
        "which": which,
    }


def _facts(record: Record, exports: dict[str, str]) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield ((group, name), value) of everything in a record except paths."""
    for name, score in record.scores.items():
        in_percent = record.metrics.get(name, {}).get("unit") == "fraction"
        yield ("scores", name), f"{100 * score:.2f} %  ({score!r})" if in_percent else repr(score)
    yield from _flat("outcome", record.outcome)
    yield ("outcome", "notes"), "\n".join(map(str, record.notes)) or "none"
    yield ("origin", "weights"), record.weights_id
    if record.weights_id in exports:
        yield ("origin", "pretraining"), exports[record.weights_id]
    if record.export:
        yield ("origin", "exported as"), record.export
    yield from _flat("origin", record.origin, "pretraining ")
    yield ("origin", "untrained"), ", ".join(map(str, record.untrained)) or "none"
    yield from _flat("dataset", record.dataset)
    yield from _flat("backbone", record.backbone)
    yield from _flat("options", {name: value for name, value in record.options.items() if name not in PATHS})
    yield from _flat("cost", record.cost)
    yield from _flat("environment", record.environment)
    yield from _flat("details", record.details)
    ids = ("task", "task_version", "seed", "smoke", "subset", "primary", "config_digest", "run_key", "schema")
    yield from _flat("identity", {name: getattr(record, name) for name in ids})


def _flat(group: str, values: dict[str, Any], prefix: str = "") -> Iterator[tuple[tuple[str, str], str]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(group, value, f"{prefix}{key} ")
            continue
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        if len(shown) > LONGEST:
            size = f"{len(value)} entries" if isinstance(value, list) else f"{len(shown)} characters"
            shown = f"{size}, in record.json"
        yield (group, prefix + str(key)), shown or "none"


def json_block(content: Any) -> str:
    """Return JSON in which no HTML element or comment can begin or end."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
