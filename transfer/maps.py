"""Stability maps: how trainings ended over two axes, mostly rate and warm-up. Imports neither torch nor pandas at once.

A map is a table with a row for each cell that was run; `transfer.plots` draws it.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.errors import WrongWords
from transfer.fields import check_fields, order, value_of
from transfer.groups import Group, grouped, value_label
from transfer.protocols import by_export
from transfer.records import STATUSES, Record
from transfer.results import HISTORY
from transfer.tables import NOTES, SIGNIFICANT, mean_and_deviation

if TYPE_CHECKING:
    import pandas as pd

PANEL = ("task", "dataset", "backbone", "pretraining", "protocol")
"""Columns that, with those of `by`, say which map a cell belongs to."""
_LAST = ("last_loss", "last_grad_norm")


def stability_map(
    records: Sequence[Record],
    x: str = "lr",
    y: str = "warmup_epochs",
    by: Sequence[str] = (),
    *,
    known: Sequence[Record] | None = None,
    folders: Mapping[str, Path] | None = None,
) -> "pd.DataFrame":
    """One row per cell: the runs of one `x` and one `y` that differ in seeds alone. Failed processes have no record.

    Columns: those of `PANEL` and `by` (one map for each of their combinations); `x` and `y` under their own names;
    `seeds` (runs), `completed nonfinite diverged collapsed at_chance` (how many ended so); `outcome` (the commonest
    ending, of equally common ones the worse); `first_bad_step` (earliest step at which a run was judged broken);
    `breakdown_rate breakdown_low breakdown_high` (fractions, 95 % Wilson interval); `metric`, `score` and `score_sd`
    (percent, over the runs that completed); with `folders` also `last_loss last_grad_norm` (mean over the runs of the
    last finite values in the history); `run` (ids, separated by spaces). `attrs` has `x`, `y`, `by` and `notes`.

    Args:
        records: of tasks or of pretraining.
        x, y, by: names of fields, see `transfer.fields.value_of`.
        known: all records at hand, among which the runs are looked for that weights come from; by default `records`.
        folders: of the runs by their ids, to look into their histories.

    Raises:
        WrongWords: an unknown field, one that is named twice, or no run with both axes.
    """
    import pandas as pd

    names = [x, y, *by]
    exports = by_export(records if known is None else known)
    check_fields(names, records, exports)
    if len({*names}) < len(names):
        raise WrongWords(f"axes of a map must be different fields: {', '.join(names)}")
    without = ["name" if name == "backbone" else name for name in names]
    placed = [record for record in records if None not in (value_of(record, axis, exports) for axis in (x, y))]
    if not placed:
        raise WrongWords(f"no run has both '{x}' and '{y}'")
    groups, notes = grouped(placed, known, without)
    lines = []
    for group in groups:
        for values, members in _cells(group, names, exports):
            panel = {name: getattr(group, name, None) for name in PANEL} | {"task": group.first.task}
            said = [_named(group.first, name, value) for name, value in zip(names, values, strict=True)]
            cell = dict(zip([*by, x, y], [*said[2:], *said[:2]], strict=True))
            lines.append(panel | cell | _counts(members) | _score(members) | _last(members, folders) | _ids(members))
    lines.sort(key=lambda line: [order(line[name]) for name in (*PANEL, *by, y, x)])
    table = pd.DataFrame(lines)
    said = [f"protocol {note}" for note in notes]
    if left_out := len(records) - len(placed):
        said.append(f"runs without {x} or {y}, left out: {left_out}")
    shown = [x, y, *by, "first_bad_step", *(f"breakdown_{name}" for name in ("rate", "low", "high")), *_LAST]
    table.attrs |= {"x": x, "y": y, "by": list(by), NOTES: said, SIGNIFICANT: shown}
    return table


def _cells(
    group: Group, names: Sequence[str], exports: Mapping[str, Record]
) -> Iterable[tuple[tuple[Any, ...], list[Record]]]:
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in group.records:
        cells.setdefault(tuple(value_of(record, name, exports) for name in names), []).append(record)
    return cells.items()


def _named(record: Record, name: str, value: Any) -> Any:
    """A value; of a user's part the name of its file and the start of its digest."""
    if name not in (record.backbone.get("files") or {}):
        return value
    return f"{Path(str(record.backbone[name])).name} {str(value).removeprefix('sha256:')[:8]}"


def _counts(records: Sequence[Record]) -> dict[str, Any]:
    from transfer.statistics import wilson

    counts = Counter(record.outcome["status"] for record in records)
    worst = max(STATUSES, key=lambda status: (counts[status], status != "completed"))
    broken = len(records) - counts["completed"]
    interval = wilson(broken, len(records))
    steps = [record.outcome.get("step") for record in records if record.broke_down]
    return {
        "seeds": len(records),
        **{status: counts[status] for status in STATUSES},
        "outcome": worst,
        "first_bad_step": min((step for step in steps if step is not None), default=None),
        "breakdown_rate": broken / len(records),
        "breakdown_low": interval.low,
        "breakdown_high": interval.high,
    }


def _score(records: Sequence[Record]) -> dict[str, Any]:
    metric = records[0].primary
    mean, deviation = mean_and_deviation([run.shown(metric) for run in records if metric in run.scores])
    return {"metric": metric, "score": mean, "score_sd": deviation}


def _ids(records: Sequence[Record]) -> dict[str, str]:
    return {"run": " ".join(record.run_id for record in records)}


def _last(records: Sequence[Record], folders: Mapping[str, Path] | None) -> dict[str, float]:
    if folders is None:
        return {}
    found = [last_statistics(folders[record.run_id]) for record in records if record.run_id in folders]
    return {
        column: mean_and_deviation([last[name] for last in found if (name := column.removeprefix("last_")) in last])[0]
        for column in _LAST
    }


def last_statistics(folder: Path) -> dict[str, float]:
    """The last finite `loss` and `grad_norm` of a run's history; empty where there is none, as for probes."""
    try:
        lines = (folder / HISTORY).read_bytes().splitlines()
    except OSError:
        return {}
    found: dict[str, float] = {}
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:  # torn, as the process was killed
            continue
        for name in ("loss", "grad_norm"):
            value = entry.get(name) if isinstance(entry, dict) else None
            if name not in found and isinstance(value, int | float) and math.isfinite(value):
                found[name] = value
        if len(found) == 2:
            break
    return found


def largest_stable(rows: "pd.DataFrame", tolerated: float = 0.0) -> "pd.DataFrame":
    """From a map, for each of its panels and each `y`: the largest `x` below the first that breaks down.

    Columns: those of `PANEL`, `by` and `y`; `largest` (nan where the smallest `x` breaks down already); `broken` (the
    first `x` that does; nan where none did, so that `largest` is only the largest tried); `cells`; `seeds` (fewest of a
    cell); `run` (ids); `violations` (values of `x` above the first breakdown that trained all the same, in words).

    Args:
        rows: of `stability_map`, `x` a number.
        tolerated: share of a cell's runs that may break down.

    Raises:
        WrongWords: `x` is no number everywhere.
    """
    import pandas as pd

    x, y, by = (rows.attrs[name] for name in ("x", "y", "by"))
    values = rows[x].tolist()
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise WrongWords(f"the largest stable value is asked of '{x}', which is not a number in every run")
    panels: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = [*PANEL, *by, y]
    for line in rows.to_dict("records"):
        cell = {str(name): value for name, value in line.items()}
        panels.setdefault(tuple(str(cell[name]) for name in names), []).append(cell)
    lines = []
    for cells in panels.values():
        same = {name: cells[0][name] for name in names}
        lines.append(same | _edge(sorted(cells, key=lambda cell: float(cell[x])), x, tolerated))
    table = pd.DataFrame(lines)
    table.attrs[SIGNIFICANT] = [*by, y, "largest", "broken"]
    table.attrs[NOTES] = [note for note in rows.attrs[NOTES] if note.startswith("protocol ")]
    return table


def _edge(cells: Sequence[dict[str, Any]], x: str, tolerated: float) -> dict[str, Any]:
    """Of the cells of one row of a map, in rising `x`."""
    broke = [cell["breakdown_rate"] > tolerated for cell in cells]
    first = broke.index(True) if any(broke) else len(cells)
    above = [value_label(cell[x]) for cell, bad in zip(cells[first:], broke[first:], strict=True) if not bad]
    broken = float(cells[first][x]) if first < len(cells) else math.nan
    return {
        "largest": float(cells[first - 1][x]) if first else math.nan,
        "broken": broken,
        "cells": len(cells),
        "seeds": min(cell["seeds"] for cell in cells),
        "violations": f"{', '.join(above)} trained above {broken:g}, which did not" if above else "",
        "run": " ".join(cell["run"] for cell in cells),
    }
