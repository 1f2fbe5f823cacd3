"""Stability maps: how trainings ended over two axes, mostly rate and warm-up. Imports no torch.

A map is a table with a row for each cell that was run; `transfer.report.figures.stability_map` draws it.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backbones.errors import UsageError
from transfer.records.comparability import Comparability
from transfer.records.evidence import Arm, Evidence, Unit
from transfer.records.fields import check_fields, order, value_of
from transfer.records.grouping import Group
from transfer.records.protocol import PRETRAINING
from transfer.records.record import STATUSES, Record
from transfer.records.run_set import RunSet
from transfer.records.store import HISTORY
from transfer.report.tables.columns import group_cells, grouping_notes, run_ids, score_unit
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, NoteKind, Row, Table
from transfer.statistics.intervals import mean_and_deviation, wilson

PANEL = ("task", "dataset", "backbone", "pretraining", "protocol")
"""Columns that, with those of `by`, say which map a cell belongs to."""
_LAST = ("last_loss", "last_grad_norm")


@dataclass
class StabilityMap(Table):
    """One row per cell of one or several maps.

    Attributes:
        x, y: the columns that are the axes.
        by: further columns that there is a map for each value of.
        endings: how each seed of a cell ended, by the ids of the cell's runs.
    """

    x: str = ""
    y: str = ""
    by: tuple[str, ...] = ()
    endings: dict[tuple[str, ...], dict[Unit, str]] = field(default_factory=dict)

    @property
    def panel(self) -> tuple[str, ...]:
        """Columns that say which map a cell belongs to."""
        return (*PANEL, *self.by)

    @property
    def broke(self) -> bool:
        """Whether any training broke down."""
        return any(self["breakdown_rate"])


def stability_map(
    runs: RunSet, x: str = "lr", y: str = "warmup_epochs", by: Sequence[str] = (), *, histories: bool = False
) -> StabilityMap:
    """Return one row per cell: the runs of one `x` and one `y` that differ in seeds alone.

    Failed processes have no record.

    Columns: those of `PANEL` and `by` (one map for each of their combinations); `x` and `y` under their own names;
    `seeds` (what counts as one is said by `transfer.records.evidence.Evidence.arm`), `completed nonfinite diverged
    collapsed at_chance` (how many ended so); `lost` (seeds that never got here, as the training before broke down;
    where an axis is of that training they count among the endings); `outcome` (the commonest way of breaking down where
    at least half of the seeds did, else `completed`; of equally common ones the worse); `first_bad_step` (earliest step
    at which a run was judged broken); `breakdown_rate breakdown_low breakdown_high` (fractions of the seeds, 95 %
    Wilson interval); `metric`, `score` and `score_sd` (percent, over the seeds that have one); with `histories` also
    `last_loss last_grad_norm` (mean over the runs of the last finite values in the history); `run` (ids).

    A seed of several runs, fine-tunings of one pretraining, ended as its runs did, by the same rule as the cell.

    Args:
        runs: of tasks or of pretraining.
        x, y, by: names of fields, see `transfer.records.fields.value_of`.
        histories: whether to look into the histories in the runs' folders.

    Raises:
        UsageError: an unknown field, one that is named twice, or no run with both axes.
    """
    names = [x, y, *by]
    check_fields(names, runs.records, runs.exports)
    if len({*names}) < len(names):
        raise UsageError(f"axes of a map must be different fields: {', '.join(names)}")
    placed = [
        record for record in runs.records if None not in (value_of(record, axis, runs.exports) for axis in (x, y))
    ]
    if not placed:
        raise UsageError(f"no run has both '{x}' and '{y}'")
    grouping = runs.grouping_of(placed, ["name" if name == "backbone" else name for name in names])
    # what was a part of the backbone in its pretraining as well may be to blame for how that ended
    of_before = any(name.startswith(PRETRAINING) or name in record.backbone for name in names for record in placed)
    folders = runs.folders if histories else None
    rows, endings = [], {}
    for group in grouping.groups:
        for values, arm in _cells(group, names, runs.evidence, of_before):
            ended = _endings(arm, of_before)
            rows.append(_row(group, names, values, arm, ended, folders))
            endings[rows[-1][RUN]] = ended
    rows.sort(key=lambda row: [order(_sortable(row[name])) for name in (*PANEL, *by, y, x)])
    notes = grouping_notes(grouping) + _notes(rows, len(runs) - len(placed), (x, y))
    table = Table.of(rows, _columns(names, placed), notes)
    return StabilityMap(table.columns, table.rows, table.notes, x, y, tuple(by), endings)


def _sortable(value: Any) -> Any:
    return value.letter if isinstance(value, Comparability) else value


def _columns(names: Sequence[str], records: Sequence[Record]) -> list[Column]:
    shown = [*names, "first_bad_step", *_LAST]
    columns = [Column(name, significant_digits=SIGNIFICANT) for name in shown]
    for name in ("breakdown_rate", "breakdown_low", "breakdown_high"):
        columns.append(Column(name, "fraction", "lower", significant_digits=SIGNIFICANT))
    return columns + [Column(name, score_unit(records)) for name in ("score", "score_sd")]


def _notes(rows: Sequence[Row], left_out: int, axes: tuple[str, str]) -> list[Note]:
    notes = []
    if left_out:
        notes.append(Note(NoteKind.READING, f"runs without {axes[0]} or {axes[1]}, left out: {left_out}"))
    if any(row["lost"] for row in rows):
        text = "seeds whose training before broke down, so that there was nothing to start from"
        notes.append(Note(NoteKind.BREAKDOWNS, text, "lost", columns=("lost",)))
    return notes


def _row(
    group: Group,
    names: Sequence[str],
    values: Sequence[Any],
    arm: Arm,
    endings: Mapping[Unit, str],
    folders: Mapping[str, Path] | None,
) -> Row:
    shown = [_named(group.first, name, value) for name, value in zip(names, values, strict=True)]
    panel: Row = {"task": group.first.task, **group_cells(group)}
    axes = dict(zip([*names[2:], *names[:2]], [*shown[2:], *shown[:2]], strict=True))
    return panel | axes | _counts(arm, endings) | _score(arm) | _last(arm.records, folders) | run_ids(arm.records)


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
    return {label: ending(of_label) for label, of_label in statuses.items()}


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


def _last(records: Sequence[Record], folders: Mapping[str, Path] | None) -> dict[str, float]:
    if folders is None:
        return {}
    finals = [last_statistics(folders[record.run_id]) for record in records if record.run_id in folders]
    return {
        column: mean_and_deviation([last[name] for last in finals if (name := column.removeprefix("last_")) in last])[0]
        for column in _LAST
    }


def last_statistics(folder: Path) -> dict[str, float]:
    """The last finite `loss` and `grad_norm` of a run's history; empty where there is none, as for probes."""
    try:
        lines = (folder / HISTORY).read_bytes().splitlines()
    except OSError:
        return {}
    last: dict[str, float] = {}
    for line in reversed(lines):
        try:
            entry = json.loads(line)
        except ValueError:  # torn, as the process was killed
            continue
        for name in ("loss", "grad_norm"):
            value = entry.get(name) if isinstance(entry, dict) else None
            if name not in last and isinstance(value, int | float) and math.isfinite(value):
                last[name] = value
        if len(last) == 2:
            break
    return last
