"""Means over datasets for tasks whose metrics are declared as averaged. Scores are in percent."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transfer.records.evidence import is_seeded
from transfer.records.grouping import Group, marks
from transfer.records.protocol import OF_DATA, backbone_of, protocol
from transfer.records.record import Record, digest_of
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import run_ids, score_columns, seed_cells, without_unused
from transfer.report.tables.scores import standard_error
from transfer.report.tables.table import Note, Table

Key = tuple[str, str]
"""Digests of a row's protocol, and of the row, both without the dataset."""
Members = Mapping[str, Record]
"""Record of a row on each dataset, by the name of the dataset."""


def over_datasets(runs: RunSet) -> Table:
    """Return the unweighted mean over datasets of runs that differ in nothing else.

    There is one row per backbone, seed and set of options; of seeds without effect the first alone. The mean is over
    the datasets that all rows of its protocol have; a note names them, and those that are left out. Of several records
    of a dataset (it was stored in another format, or repaired) the latest counts. If the run of a dataset failed,
    the mean is empty, and `datasets` has the number of failures. The standard error of the mean takes the errors of
    the datasets as independent.
    """
    members = _by_row(runs.records)
    several = {key: of_name for key, of_name in members.items() if len(of_name) > 1}
    common = _common(several)
    firsts = [next(iter(of_name.values())) for of_name in several.values()]
    group_of = {id(record): group for group in runs.groups_of(firsts) for record in group.records}
    apart = len({*map(tuple, common.values())}) > 1
    rows = []
    for (key, _), of_name, first in zip(several, several.values(), firsts, strict=True):
        names = common[key]
        rows.append(_row([of_name[name] for name in names], first, group_of[id(first)], runs, names if apart else ()))
    table = Table.from_rows(rows, score_columns(runs.records), _notes(members, common))
    return without_unused(table).without_empty()


def _by_row(records: Sequence[Record]) -> dict[Key, dict[str, Record]]:
    """Return the latest record of each row and dataset."""
    members: dict[Key, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: (str(record.environment.get("started") or ""), -record.seed)):
        if any(metric.get("averaged") for metric in record.metrics.values()):
            members.setdefault(_all_but_dataset(record), {})[record.dataset["name"]] = record
    return members


def _common(members: Mapping[Key, Members]) -> dict[str, list[str]]:
    """Return for each protocol the names of the datasets that all of its rows have, sorted."""
    common: dict[str, set[str]] = {}
    for (key, _), of_name in members.items():
        common[key] = common.get(key, {*of_name}) & {*of_name}
    return {key: sorted(names) for key, names in common.items()}


def _notes(members: Mapping[Key, Members], common: Mapping[str, Sequence[str]]) -> list[Note]:
    """Return the notes on the datasets in the means, and on those left out."""
    over = [f"means are over {', '.join(names)}" for names in {*map(tuple, common.values())} if names]
    alone = [name for (key, _), of_name in members.items() if len(of_name) == 1 and key in common for name in of_name]
    lacking = [
        name for (key, _), of_name in members.items() if len(of_name) > 1 for name in of_name if name not in common[key]
    ]
    left_out = [f"not in the means, since a row has it alone: {name}" for name in alone]
    left_out += [f"not in the means, since other rows lack it: {name}" for name in lacking]
    return [Note(text) for text in [*(over if len(over) == 1 else []), *dict.fromkeys(left_out)]]


def _row(members: Sequence[Record], first: Record, group: Group, runs: RunSet, names: Sequence[str]) -> dict[str, Any]:
    """Return a row.

    Args:
        members: records of the datasets in common.
        first: any record of the row, in `members` or not.
        names: names of the datasets, where rows differ in them.
    """
    broken, lost = sum(record.training_failed for record in members), len(runs.evidence.lost(members))
    row: dict[str, Any] = {"task": first.task, "backbone": group.backbone, "pretraining": group.pretraining}
    row |= {"protocol": group.protocol, **seed_cells(runs, first)}
    if len(members) < 2:
        return row | {"datasets": f"{len(members) or 'none'} in common with the other rows"}
    text = f"mean of {len(members)}"
    text += f" ({', '.join(own_marks)})" if (own_marks := marks(members, runs.exports)) else ""
    text += f", but {broken} failed" if broken else ""
    text += f", completed runs only: {lost} of its pretraining runs failed" if lost else ""
    row["datasets"] = f"{text}: {', '.join(names)}" if names else text
    for name in first.scores if not broken else ():
        if all(name in record.scores for record in members):
            row[name] = 100 * sum(record.scores[name] for record in members) / len(members)
    errors = [standard_error(record, first.primary) for record in members]
    if first.primary in row and None not in errors:
        row[f"{first.primary} se"] = 100 * math.hypot(*(error or 0.0 for error in errors)) / len(members)
    return row | run_ids(members)


def _all_but_dataset(record: Record) -> Key:
    """Return the digest of what the rows of one protocol share, and the digest that identifies the row."""
    content = protocol(record)
    content = {name: value for name, value in content.items() if name not in ("dataset", "skipped")}
    content = {name: value for name, value in content.items() if not name.startswith(OF_DATA)}
    seed = record.seed if is_seeded(record) else None
    return digest_of(content), digest_of([content, backbone_of(record), record.weights_id, seed])
