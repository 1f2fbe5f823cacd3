"""Stability maps: how trainings ended over two axes, mostly rate and warm-up. Imports neither torch nor pandas at once.

A map is a table with a row for each cell that was run; `transfer.report.figures.training_curves` draws it.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError
from transfer.records.evidence import Arm, Evidence, Unit
from transfer.records.fields import check_fields, order, value_of
from transfer.records.grouping import Group, grouped, value_label
from transfer.records.protocol import PRETRAINING
from transfer.records.record import STATUSES, Record
from transfer.records.store import HISTORY
from transfer.report.tables.render import NOTES, SIGNIFICANT
from transfer.statistics.intervals import mean_and_deviation

if TYPE_CHECKING:
    import pandas as pd

PANEL = ("task", "dataset", "backbone", "pretraining", "protocol")
"""Columns that, with those of `by`, say which map a cell belongs to."""
ENDINGS = "endings"
"""Key of `DataFrame.attrs` under which a map has, by a cell's `run`, how each of its seeds ended."""
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
    `seeds` (what counts as one is said by `transfer.records.evidence.Evidence.arm`), `completed nonfinite diverged
    collapsed at_chance` (how many ended so); `lost` (seeds that never got here, as the training before broke down;
    where an axis is of that training they count among the endings); `outcome` (the commonest way of breaking down where
    at least half of the seeds did, else `completed`; of equally common ones the worse); `first_bad_step` (earliest step
    at which a run was judged broken); `breakdown_rate breakdown_low breakdown_high` (fractions of the seeds, 95 %
    Wilson interval); `metric`, `score` and `score_sd` (percent, over the seeds that have one); with `folders` also
    `last_loss last_grad_norm` (mean over the runs of the last finite values in the history); `run` (ids, separated by
    spaces). `attrs` has `x`, `y`, `by`, `endings` and `notes`.

    A seed of several runs, fine-tunings of one pretraining, ended as its runs did, by the same rule as the cell.

    Args:
        records: of tasks or of pretraining.
        x, y, by: names of fields, see `transfer.records.fields.value_of`.
        known: all records at hand, among which the runs are looked for that weights come from; by default `records`.
        folders: of the runs by their ids, to look into their histories.

    Raises:
        UsageError: an unknown field, one that is named twice, or no run with both axes.
    """
    import pandas as pd

    names = [x, y, *by]
    evidence = Evidence.of(records, known)
    exports = evidence.exports
    check_fields(names, records, exports)
    if len({*names}) < len(names):
        raise UsageError(f"axes of a map must be different fields: {', '.join(names)}")
    without = ["name" if name == "backbone" else name for name in names]
    placed = [record for record in records if None not in (value_of(record, axis, exports) for axis in (x, y))]
    if not placed:
        raise UsageError(f"no run has both '{x}' and '{y}'")
    groups, notes = grouped(placed, known, without)
    # what was a part of the backbone in its pretraining as well may be to blame for how that ended
    of_before = any(name.startswith(PRETRAINING) or name in record.backbone for name in names for record in placed)
    lines, endings = [], {}
    for group in groups:
        for values, arm in _cells(group, names, evidence, of_before):
            members, ended = arm.records, _endings(arm, of_before)
            panel = {name: getattr(group, name, None) for name in PANEL} | {"task": group.first.task}
            said = [_named(group.first, name, value) for name, value in zip(names, values, strict=True)]
            cell = dict(zip([*by, x, y], [*said[2:], *said[:2]], strict=True))
            lines.append(panel | cell | _counts(arm, ended) | _score(arm) | _last(members, folders) | _ids(members))
            endings[lines[-1]["run"]] = ended
    lines.sort(key=lambda line: [order(line[name]) for name in (*PANEL, *by, y, x)])
    table = pd.DataFrame(lines)
    said = [f"protocol {note}" for note in notes]
    if left_out := len(records) - len(placed):
        said.append(f"runs without {x} or {y}, left out: {left_out}")
    if table["lost"].any():
        said.append("lost: seeds whose training before broke down, so that there was nothing to start from")
    shown = [x, y, *by, "first_bad_step", *(f"breakdown_{name}" for name in ("rate", "low", "high")), *_LAST]
    table.attrs |= {"x": x, "y": y, "by": list(by), ENDINGS: endings, NOTES: said, SIGNIFICANT: shown}
    return table


def _cells(
    group: Group, names: Sequence[str], evidence: Evidence, of_before: bool
) -> Iterator[tuple[tuple[Any, ...], Arm]]:
    """The cells of a group. What is a seed is the same in all of them, but where they differ in what came before."""
    whole = evidence.arm(group.records)
    cells: dict[tuple[Any, ...], tuple[list[Record], list[Unit]]] = {}
    for record, label in zip(whole.records, whole.labels, strict=True):
        records, labels = cells.setdefault(tuple(value_of(record, name, evidence.exports) for name in names), ([], []))
        records.append(record)
        labels.append(label)
    for values, (records, labels) in cells.items():
        yield values, evidence.arm(records) if of_before else Arm(records, labels, whole.lost, whole.lost_labels)


def _endings(arm: Arm, lost: bool) -> dict[Unit, str]:
    """How each seed ended."""
    statuses: dict[Unit, list[str]] = {}
    for record, label in zip(arm.records, arm.labels, strict=True):
        statuses.setdefault(label, []).append(record.outcome["status"])
    for record, label in zip(arm.lost, arm.lost_labels, strict=True) if lost else ():
        statuses.setdefault(label, []).append(record.outcome["status"])
    return {label: ending(found) for label, found in statuses.items()}


def ending(statuses: Sequence[str]) -> str:
    """The commonest way of breaking down, if at least half did, else completed; of equally common ones the worse."""
    counts = Counter(statuses)
    if 2 * counts["completed"] > len(statuses):
        return "completed"
    return max((status for status in STATUSES if status != "completed"), key=lambda status: counts[status])


def _named(record: Record, name: str, value: Any) -> Any:
    """A value; of a user's part the name of its file and the start of its digest."""
    if name not in (record.backbone.get("files") or {}):
        return value
    return f"{Path(str(record.backbone[name])).name} {str(value).removeprefix('sha256:')[:8]}"


def _counts(arm: Arm, endings: Mapping[Unit, str]) -> dict[str, Any]:
    from transfer.statistics.intervals import wilson

    counts, seeds = Counter(endings.values()), len(endings)
    broken = seeds - counts["completed"]
    interval = wilson(broken, seeds)
    steps = [record.outcome.get("step") for record in arm.records if record.training_failed]
    return {
        "seeds": seeds,
        **{status: counts[status] for status in STATUSES},
        "lost": sum(label not in endings for label in arm.lost_labels),
        "outcome": ending([*endings.values()]),
        "first_bad_step": min((step for step in steps if step is not None), default=None),
        "breakdown_rate": broken / seeds,
        "breakdown_low": interval.low,
        "breakdown_high": interval.high,
    }


def _score(arm: Arm) -> dict[str, Any]:
    metric = arm.records[0].primary
    mean, deviation = mean_and_deviation(arm.values(metric))
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


def largest_stable(rows: "pd.DataFrame", tolerated: float = 0.5) -> "pd.DataFrame":
    """From a map, for each of its panels and each `y`: the largest `x` below the first that breaks down.

    Each seed has such a value of its own, by the cells that it was run in; what is given is their median, which, unlike
    the largest `x` that all seeds bear, does not fall with their number.

    Columns: those of `PANEL`, `by` and `y`; `largest` (nan where for half of the seeds the smallest `x` breaks down
    already), `largest_low` and `largest_high` (its range over the seeds; nan likewise); `broken` (the median of the
    first `x` that breaks down; nan where for half of the seeds none did, so that `largest` is only the largest tried);
    `cells`; `seeds`; `run` (ids); `violations` (values of `x` above a seed's first breakdown at which it trained all
    the same, in words).

    Args:
        rows: of `stability_map`, `x` a number.
        tolerated: share of the seeds whose own value may be smaller: another quantile than the median. 0 is what all of
            them bear.

    Raises:
        UsageError: `x` is no number everywhere.
    """
    import pandas as pd

    x, y, by = (rows.attrs[name] for name in ("x", "y", "by"))
    values = rows[x].tolist()
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise UsageError(f"the largest stable value is asked of '{x}', which is not a number in every run")
    panels: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = [*PANEL, *by, y]
    for line in rows.to_dict("records"):
        cell = {str(name): value for name, value in line.items()}
        panels.setdefault(tuple(str(cell[name]) for name in names), []).append(cell)
    lines = []
    for cells in panels.values():
        same = {name: cells[0][name] for name in names}
        lines.append(same | _edges(sorted(cells, key=lambda cell: float(cell[x])), x, rows.attrs[ENDINGS], tolerated))
    table = pd.DataFrame(lines)
    table.attrs[SIGNIFICANT] = [*by, y, "largest", "largest_low", "largest_high", "broken"]
    table.attrs[NOTES] = [note for note in rows.attrs[NOTES] if note.startswith("protocol ")]
    which = "medians" if tolerated == 0.5 else f"{tolerated:g} quantiles"
    table.attrs[NOTES].append(f"largest, broken: {which} over the seeds, each judged by itself")
    return table


def _edges(
    cells: Sequence[dict[str, Any]], x: str, endings: Mapping[str, Mapping[Unit, str]], tolerated: float
) -> dict[str, Any]:
    """Of the cells of one row of a map, in rising `x`."""
    tried: dict[Unit, list[tuple[float, bool]]] = {}
    for cell in cells:
        for label, status in endings[cell["run"]].items():
            tried.setdefault(label, []).append((float(cell[x]), status == "completed"))
    edges = {label: _edge(points) for label, points in tried.items()}
    lows, highs = [low for low, _ in edges.values()], [high for _, high in edges.values()]
    return {
        "largest": _quantile(lows, tolerated),
        "largest_low": _finite(min(lows)),
        "largest_high": _finite(max(lows)),
        "broken": _quantile(highs, tolerated),
        "cells": len(cells),
        "seeds": len(edges),
        "violations": "; ".join(_violations(tried, edges)),
        "run": " ".join(cell["run"] for cell in cells),
    }


def _edge(points: Sequence[tuple[float, bool]]) -> tuple[float, float]:
    """Of one seed, in rising order: the largest value below its first breakdown, and that; infinite without one."""
    broken = next((at for at, trains in points if not trains), math.inf)
    return max((at for at, _ in points if at < broken), default=-math.inf), broken


def _violations(
    tried: Mapping[Unit, Sequence[tuple[float, bool]]], edges: Mapping[Unit, tuple[float, float]]
) -> Iterator[str]:
    for label, points in tried.items():
        broken = edges[label][1]
        if above := [value_label(at) for at, trains in points if trains and at > broken]:
            who = f"{label[0]} {str(label[1])[:15]}: " if len(tried) > 1 else ""
            yield f"{who}{', '.join(above)} trained above {broken:g}, which did not"


def _quantile(values: Sequence[float], share: float) -> float:
    """Between two values on a logarithmic scale, on a plain one where they are not positive; nan where it is open."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high, part = ordered[math.floor(place)], ordered[math.ceil(place)], place % 1
    if low == high or not part:
        return _finite(low)
    if low > 0:
        return _finite(low ** (1 - part) * high**part)
    return _finite(low + part * (high - low))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan
