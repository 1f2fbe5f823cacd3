"""Stability maps: outcomes of trainings over two fields, usually learning rate and warm-up. Imports no torch.

A map is a table with a row for each cell that was run; `transfer.report.figures.stability_map` draws it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError
from transfer.engine.checkpoint import history
from transfer.engine.outcome import SCORED
from transfer.records.comparability import Comparability
from transfer.records.evidence import SCORE_AT_CHANCE, Arm, Evidence, Unit, chance, ending
from transfer.records.fields import check_fields, order, value_of
from transfer.records.grouping import Group
from transfer.records.protocol import PRETRAINING
from transfer.records.record import STATUSES, Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import group_cells, run_ids, significant, unjudged_note
from transfer.report.tables.table import (
    RUN,
    SIGNIFICANT,
    BreakdownRate,
    Column,
    Endings,
    Note,
    Row,
    Table,
    cell_text,
    comparability_text,
)
from transfer.statistics.intervals import mean_and_deviation

BREAKDOWNS: tuple[str, ...] = (*(status for status in STATUSES if status not in SCORED), SCORE_AT_CHANCE)
"""Outcomes of trainings that did not train, the worst first."""
PANEL = ("task", "dataset", "backbone", "pretraining", "protocol")
"""Columns that, with those of `by`, identify the map that a cell belongs to."""
_NAMELESS = ("task", "dataset", "backbone", "pretraining")
"""Columns of a panel whose values need no name."""


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

    def panels(self) -> list["tuple[str, StabilityMap]"]:
        """Return each single map under its title: the columns in which maps differ, or its names if it is alone."""
        differing = [name for name in self.panel if len({*map(cell_text, self[name])}) > 1]
        rows: dict[tuple[str, ...], list[Row]] = {}
        for row in self.rows:
            rows.setdefault(tuple(cell_text(row[name]) for name in self.panel), []).append(row)
        titles = []
        for cells in rows.values():
            shown = differing or [name for name in _NAMELESS if name != "pretraining"]
            texts = {name: cell_text(cells[0][name]) for name in shown}
            titles.append(" · ".join(text if name in _NAMELESS else f"{name} {text}" for name, text in texts.items()))
        return [(title, replace(self, rows=cells)) for title, cells in zip(titles, rows.values(), strict=True)]


def stability_map(runs: RunSet, x: str = "lr", y: str = "warmup_epochs", by: Sequence[str] = ()) -> StabilityMap:
    """Return one row per cell: the runs with one `x` and one `y` that differ in their seeds alone.

    Processes that failed leave no record, and are not counted; nor are runs of no epochs, which train nothing.

    Columns:
        those of `PANEL` and `by`, one map for each of their combinations; `x` and `y` under their own names;
        `metric`, `score`, `score_sd`: mean and standard deviation in percent over the seeds with a score, or where none
        has one over the last validations in their histories;
        `chance`: score of guessing in percent, where it is known;
        `last_loss`: mean over the runs of the last finite loss in their histories;
        `outcome`: see `commonest`; `score_at_chance` where trainings completed with a score that is not above chance;
        `seeds`: number of seeds, as `transfer.records.evidence.Evidence.variant` counts them;
        `outcomes`: how many seeds ended in each way, and how many have no run, since their pretraining failed; if
        an axis is a field of that pretraining these count as seeds of the cell instead;
        `failed`: number of the seeds judged that failed or are at chance, with the 95 % Wilson interval;
        `run`: ids of the runs.

    The outcome of a seed with several runs, fine-tunings of one pretraining, follows from theirs as `outcome` does.

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
    trained = [record for record in runs.records if record.options.get("epochs") != 0]
    placed = [record for record in trained if None not in (value_of(record, axis, runs.exports) for axis in (x, y))]
    if not placed:
        raise UsageError(f"no run has both '{x}' and '{y}'")
    groups = runs.groups_of(placed, ["name" if name == "backbone" else name for name in names])
    # a field that the pretraining shares may have caused its breakdown
    of_before = any(name.startswith(PRETRAINING) or name in record.backbone for name in names for record in placed)
    folders = {name: run.folder for name, run in runs.by_id.items()}
    rows, endings = [], {}
    for group in groups:
        for values, variant in _cells(group, names, runs.evidence, of_before):
            ended = _endings(variant, of_before)
            rows.append(_row(group, names, values, variant, ended, folders))
            endings[rows[-1][RUN]] = ended
    rows.sort(key=lambda row: [order(_sortable(row[name])) for name in (*PANEL, *by, y, x)])
    notes = _notes(rows, len(runs) - len(placed), (x, y)) + unjudged_note(placed)
    table = Table.from_rows(rows, _columns(names), notes)
    return StabilityMap(table.columns, table.rows, table.notes, x, y, tuple(by), endings)


def _sortable(value: Any) -> Any:
    return comparability_text(value) if isinstance(value, Comparability) else value


def _columns(names: Sequence[str]) -> list[Column]:
    details = [Column("statuses", detail=2), Column("failed", detail=3), Column("score_sd", detail=2)]
    return [*significant(names), Column("last_loss", significant_digits=SIGNIFICANT, detail=1), *details]


def _notes(rows: Sequence[Row], left_out: int, axes: tuple[str, str]) -> list[Note]:
    notes = []
    if left_out:
        notes.append(Note(f"runs without {axes[0]} or {axes[1]}, excluded: {left_out}"))
    if any(SCORE_AT_CHANCE in dict(row["statuses"].runs) for row in rows):
        text = "completed with a score that is not above chance by a one-sided binomial test at 99.9 %"
        notes.append(Note(text, SCORE_AT_CHANCE))
    return notes


def _row(
    group: Group,
    names: Sequence[str],
    values: Sequence[Any],
    variant: Arm,
    endings: Mapping[Unit, str],
    folders: Mapping[str, Path],
) -> Row:
    shown = [_displayed(group.first, name, value) for name, value in zip(names, values, strict=True)]
    panel: Row = {"task": group.first.task, **group_cells(group)}
    axes = dict(zip([*names[2:], *names[:2]], [*shown[2:], *shown[:2]], strict=True))
    return panel | axes | _score(variant, folders) | _counts(variant, endings) | run_ids(variant.records)


def _cells(
    group: Group, names: Sequence[str], evidence: Evidence, of_before: bool
) -> Iterator[tuple[tuple[Any, ...], Arm]]:
    """Yield the values of the fields and the variant of each cell of a group.

    Seeds are labelled over the whole group, or within a cell if the cells differ in their pretraining.
    """
    whole = evidence.variant(group.records)
    cells: dict[tuple[Any, ...], tuple[list[Record], list[Unit]]] = {}
    for record, label in zip(whole.records, whole.labels, strict=True):
        records, labels = cells.setdefault(tuple(value_of(record, name, evidence.exports) for name in names), ([], []))
        records.append(record)
        labels.append(label)
    for values, (records, labels) in cells.items():
        yield values, evidence.variant(records) if of_before else Arm(records, labels, whole.lost, whole.lost_labels)


def _endings(variant: Arm, lost: bool) -> dict[Unit, str]:
    """Return how each seed ended, with `lost` also those whose pretraining failed."""
    endings: dict[Unit, list[str]] = {}
    for record, label in zip(
        variant.records + variant.lost * lost, variant.labels + variant.lost_labels * lost, strict=True
    ):
        endings.setdefault(label, []).append(ending(record))
    return {label: commonest(of_label) for label, of_label in endings.items()}


def commonest(endings: Iterable[str]) -> str:
    """Return the commonest failure if at least half of the training runs checked failed, otherwise `completed`.

    Of equally common ones it is the worst. `not_judged` if none was judged.
    """
    counts = Counter(endings)
    if not (judged := counts.total() - counts["not_judged"]):
        return "not_judged"
    if 2 * counts["completed"] > judged:
        return "completed"
    return max(BREAKDOWNS, key=lambda kind: counts[kind])


def _displayed(record: Record, name: str, value: Any) -> Any:
    """Return a value; for user code the name of its file and the start of its digest."""
    if name not in (record.backbone.get("files") or {}):
        return value
    return f"{Path(str(record.backbone[name])).name} {str(value).removeprefix('sha256:')[:8]}"


def _counts(variant: Arm, endings: Mapping[Unit, str]) -> dict[str, Any]:
    counts = Counter(endings.values())
    judged = counts.total() - counts["not_judged"]
    lost = [record for record, label in zip(variant.lost, variant.lost_labels, strict=True) if label not in endings]
    return {
        "outcome": commonest(endings.values()),
        "seeds": len(endings),
        "statuses": Endings.from_statuses(endings.values(), map(ending, lost)),
        "failed": BreakdownRate(judged - counts["completed"], judged, counts["not_judged"]),
    }


def _score(variant: Arm, folders: Mapping[str, Path]) -> dict[str, Any]:
    first, metric = variant.records[0], variant.records[0].primary
    scores, guessing, scale = variant.values(metric), chance(first, metric, first.metrics), first.scale(metric)
    last = [last_values(folders[record.run_id]) for record in variant.records if record.run_id in folders]
    mean, deviation = mean_and_deviation(scores or [scale * values[metric] for values in last if metric in values])
    level = scale * guessing if guessing else None
    loss, _ = mean_and_deviation([values["loss"] for values in last if "loss" in values])
    return {"metric": metric, "score": mean, "score_sd": deviation, "chance": level, "last_loss": loss}


def last_values(folder: Path) -> dict[str, float]:
    """Return the last finite value of each name in a run's history; empty without one, as for probes."""
    return {name: value for entry in history(folder) for name, value in entry.items() if value is not None}
