"""Stability maps: outcomes of trainings over two fields, usually learning rate and warm-up. Imports no torch.

A map is a table with a row for each cell that was run; `transfer.report.figures.stability_map` draws it.
"""

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
from transfer.records.store import history
from transfer.report.tables.columns import group_cells, grouping_notes, run_ids, score_unit
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, Row, Table
from transfer.statistics.intervals import mean_and_deviation, wilson

PANEL = ("task", "dataset", "backbone", "pretraining", "protocol")
"""Columns that, with those of `by`, identify the map that a cell belongs to."""
_LAST = ("last_loss", "last_grad_norm")


@dataclass
class StabilityMap(Table):
    """Table with one row per cell of one or several maps.

    Attributes:
        x, y: names of the columns that are the axes.
        by: names of further columns; there is a map for each combination of their values.
        endings: status of each seed of a cell, by the ids of the cell's runs.
    """

    x: str = ""
    y: str = ""
    by: tuple[str, ...] = ()
    endings: dict[tuple[str, ...], dict[Unit, str]] = field(default_factory=dict)

    @property
    def panel(self) -> tuple[str, ...]:
        """Columns that identify the map that a cell belongs to."""
        return (*PANEL, *self.by)

    @property
    def has_breakdowns(self) -> bool:
        """Whether any training broke down."""
        return any(self["breakdown_rate"])


def stability_map(runs: RunSet, x: str = "lr", y: str = "warmup_epochs", by: Sequence[str] = ()) -> StabilityMap:
    """Return one row per cell: the runs with one `x` and one `y` that differ in their seeds alone.

    Processes that failed leave no record, and are not counted.

    Columns:
        those of `PANEL` and `by`, one map for each of their combinations; `x` and `y` under their own names;
        `seeds`: number of seeds, as `transfer.records.evidence.Evidence.arm` counts them;
        `completed nonfinite diverged collapsed at_chance`: number of seeds that ended in each status;
        `lost`: number of seeds without a run, since their pretraining broke down; if an axis is a field of that
        pretraining they count in the statuses instead;
        `outcome`: the commonest breakdown if at least half of the seeds broke down, otherwise `completed`; of equally
        common ones the worst;
        `first_bad_step`: earliest step at which a run was judged broken;
        `breakdown_rate breakdown_low breakdown_high`: fraction of the seeds with its 95 % Wilson interval;
        `metric`, `score`, `score_sd`: mean and standard deviation in percent over the seeds with a score;
        `last_loss last_grad_norm`: mean over the runs of the last finite values in their histories;
        `run`: ids of the runs.

    The status of a seed with several runs, fine-tunings of one pretraining, follows from theirs as `outcome` does.

    Args:
        runs: runs of tasks or of pretraining.
        x, y, by: names of fields, see `transfer.records.fields.value_of`.

    Raises:
        UsageError: a field is unknown or named twice, or no run has both axes.
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
    # a field that the pretraining shares may have caused its breakdown
    of_before = any(name.startswith(PRETRAINING) or name in record.backbone for name in names for record in placed)
    rows, endings = [], {}
    for group in grouping.groups:
        for values, arm in _cells(group, names, runs.evidence, of_before):
            ended = _endings(arm, of_before)
            rows.append(_row(group, names, values, arm, ended, runs.folders))
            endings[rows[-1][RUN]] = ended
    rows.sort(key=lambda row: [order(_sortable(row[name])) for name in (*PANEL, *by, y, x)])
    notes = grouping_notes(grouping) + _notes(rows, len(runs) - len(placed), (x, y))
    table = Table.from_rows(rows, _columns(names, placed), notes)
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
        notes.append(Note(f"runs without {axes[0]} or {axes[1]}, left out: {left_out}"))
    if any(row["lost"] for row in rows):
        text = "seeds whose training before broke down, so that there was nothing to start from"
        notes.append(Note(text, "lost"))
    return notes


def _row(
    group: Group,
    names: Sequence[str],
    values: Sequence[Any],
    arm: Arm,
    endings: Mapping[Unit, str],
    folders: Mapping[str, Path],
) -> Row:
    shown = [_displayed(group.first, name, value) for name, value in zip(names, values, strict=True)]
    panel: Row = {"task": group.first.task, **group_cells(group)}
    axes = dict(zip([*names[2:], *names[:2]], [*shown[2:], *shown[:2]], strict=True))
    return panel | axes | _counts(arm, endings) | _score(arm) | _last(arm.records, folders) | run_ids(arm.records)


def _cells(
    group: Group, names: Sequence[str], evidence: Evidence, of_before: bool
) -> Iterator[tuple[tuple[Any, ...], Arm]]:
    """Yield the values of the fields and the arm of each cell of a group.

    Seeds are labelled over the whole group, or within a cell if the cells differ in their pretraining.
    """
    whole = evidence.arm(group.records)
    cells: dict[tuple[Any, ...], tuple[list[Record], list[Unit]]] = {}
    for record, label in zip(whole.records, whole.labels, strict=True):
        records, labels = cells.setdefault(tuple(value_of(record, name, evidence.exports) for name in names), ([], []))
        records.append(record)
        labels.append(label)
    for values, (records, labels) in cells.items():
        yield values, evidence.arm(records) if of_before else Arm(records, labels, whole.lost, whole.lost_labels)


def _endings(arm: Arm, lost: bool) -> dict[Unit, str]:
    """Return the status of each seed, with `lost` also of those whose pretraining broke down."""
    statuses: dict[Unit, list[str]] = {}
    for record, label in zip(arm.records, arm.labels, strict=True):
        statuses.setdefault(label, []).append(record.outcome["status"])
    for record, label in zip(arm.lost, arm.lost_labels, strict=True) if lost else ():
        statuses.setdefault(label, []).append(record.outcome["status"])
    return {label: ending(of_label) for label, of_label in statuses.items()}


def ending(statuses: Sequence[str]) -> str:
    """Return the commonest breakdown if at least half broke down, otherwise completed; of equals the worst."""
    counts = Counter(statuses)
    if 2 * counts["completed"] > len(statuses):
        return "completed"
    return max((status for status in STATUSES if status != "completed"), key=lambda status: counts[status])


def _displayed(record: Record, name: str, value: Any) -> Any:
    """Return a value; for user code the name of its file and the start of its digest."""
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


def _last(records: Sequence[Record], folders: Mapping[str, Path]) -> dict[str, float]:
    finals = [last_statistics(folders[record.run_id]) for record in records if record.run_id in folders]
    return {
        column: mean_and_deviation([last[name] for last in finals if (name := column.removeprefix("last_")) in last])[0]
        for column in _LAST
    }


def last_statistics(folder: Path) -> dict[str, float]:
    """Return the last finite `loss` and `grad_norm` in a run's history; empty without one, as for probes."""
    last: dict[str, float] = {}
    for entry in history(folder):
        last |= {name: entry[name] for name in ("loss", "grad_norm") if entry.get(name) is not None}
    return last
