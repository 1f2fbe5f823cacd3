"""One row beside a published cell: the own number, how far it is from the printed one, and what that says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from backbones.errors import UserError
from transfer.comparison.paired_intervals import mean_score
from transfer.published.rows import Row as PublishedRow
from transfer.published.rows import Value
from transfer.published.verdicts import Counts, judged
from transfer.records.evidence import Arm, Evidence
from transfer.records.store import Run
from transfer.report.published.cell_values import (
    Failures,
    Hours,
    OwnResult,
    Points,
    PointsInterval,
    Printed,
    Reasons,
)
from transfer.report.published.curves import mean_at
from transfer.report.published.matching import Matcher
from transfer.report.published.notes import REASONS
from transfer.report.published.own_runs import OwnRuns
from transfer.report.tables.table import Column, Note, NoteKind, Row
from transfer.statistics.intervals import Estimate

DRAWS, AP_DRAWS = 2_000, 200
"""How often samples are resampled for each cell; COCO's scores take some hundredths of a second each time."""
FEW = {
    1: "the interval is that of these models on other samples; other seeds are in neither it nor the verdict",
    2: "two seeds are few, and the interval covers about 90 % where seeds vary",
}
"""What is to be said of an interval of so many seeds."""
COLUMNS = (
    Column("row"),
    Column("dataset"),
    Column("metric"),
    Column("published", "percent"),
    Column("reading"),
    Column("configuration"),
    Column("own", "percent"),
    Column("difference", "percent points"),
    Column("interval", "percent points"),
    Column("verdict"),
    Column("device_hours", "hours"),
    Column("pretraining_hours", "hours"),
    Column(REASONS),
    Column("others"),
    Column("runs"),
)
"""`metric` is the score's name, `published` as printed, `own` the mean over seeds, `difference` own - published,
`interval` its 95 % interval, the hours those of all runs behind the number, `others` how many configurations are not
shown, and `runs` the ids of the runs."""


@dataclass(frozen=True)
class OwnRunInputs:
    """What the cells of a table are looked up in.

    Attributes:
        matcher: finds the runs of a cell.
        evidence: what the runs say of each other.
        keys: the configuration of each run, by its id.
        runs: the runs, by their ids.
        margin: within which numbers agree, in points.
    """

    matcher: Matcher
    evidence: Evidence
    keys: Mapping[str, str]
    runs: Mapping[str, Run]
    margin: float


@dataclass
class CellRow:
    """A row of the table, and what is to be said below of it."""

    cells: Row
    notes: list[Note] = field(default_factory=list)


def cell_row(row: PublishedRow, value: Value, own: OwnRuns | None, at_hand: OwnRunInputs) -> CellRow:
    """Return the row of a published cell.

    Args:
        own: one's own runs of one configuration; None where there are none.
    """
    cells: Row = {column.name: None for column in COLUMNS}
    printed = Printed.of(value, reference=bool(row.reference))
    cells |= {"row": row.label, "dataset": value.dataset, "metric": value.name, "published": printed, "others": 0}
    if own is None:
        return CellRow(cells | _blocked(row, value, at_hand, judge=not printed.mark))
    target = value.percent if not row.reference else None
    estimate, problem = _estimate(own, value, at_hand) if target is not None and own.completed else (None, "")
    behind = {run.run_id: run for record in own.records for run in at_hand.evidence.lineage(record)}
    arm = at_hand.evidence.arm(own.records)
    counts = _counts(arm, bool(behind))
    cells |= {
        "reading": own.matches[0].reading,
        "configuration": own.label,
        "own": _own_result(arm, value, estimate, counts),
        "verdict": None
        if printed.mark
        else judged(value, counts, estimate, reasons=own.reasons, margin=at_hand.margin),
        "device_hours": Hours.of(own.records),
        "pretraining_hours": Hours.of(behind.values()) if behind else None,
        REASONS: Reasons(own.reasons),
        "others": own.others,
        "runs": tuple(record.run_id for record in own.records),
    }
    if problem:
        cells["interval"] = "none"
    elif estimate and target is not None:
        cells |= _difference(target, value.decimals, estimate)
    return CellRow(cells, [*_run_notes(own), *_interval_notes(row, value, estimate, problem)])


def _run_notes(own: OwnRuns) -> list[Note]:
    """Return what is to be said of the runs behind a row."""
    notes = [Note(NoteKind.TASK_VERSION, text) for text in own.task_changes]
    alone = "each of which sees to its part of a batch by itself; the table's sweep does not say how many there are"
    for match in own.matches:
        if match.processes is not None:
            text = f"processes {match.processes}, {alone}"
            notes.append(Note(NoteKind.READING, text, match.record.run_id))
    return notes


def _interval_notes(row: PublishedRow, value: Value, estimate: Estimate | None, problem: str) -> list[Note]:
    """Return why there is no interval, or of what it is one."""
    if problem:
        about = f"{row.label}, {value.dataset}, {value.name}"
        return [Note(NoteKind.INTERVALS, f"no interval, since {problem}", about)]
    seeds = estimate.seeds[0] if estimate else 0
    about = f"({seeds} seed{'s' * (seeds > 1)})"
    return [Note(NoteKind.INTERVALS, FEW[seeds], about)] if seeds in FEW else []


def _counts(arm: Arm, pretrained: bool) -> Counts:
    return Counts(
        runs=len(arm.records),
        broken=sum(record.training_failed for record in arm.records),
        pretrainings=len(arm.lost) + len({record.weights_id for record in arm.records}) * pretrained,
        lost=len(arm.lost),
    )


def _estimate(own: OwnRuns, value: Value, at_hand: OwnRunInputs) -> tuple[Estimate | None, str]:
    """Return the mean score of the runs that completed, a fraction, with its interval.

    Where there is none, with the reason: no run has the score, it is no mean over samples, or outcomes are missing.
    """
    runs = [at_hand.runs[record.run_id] for record in own.completed]
    if value.epoch is None and not any(value.metric in record.scores for record in own.completed):
        return None, f"no run has a score of this name: {' '.join(record.run_id for record in own.completed)}"
    try:
        if value.epoch is not None:
            return mean_at(runs, value, DRAWS), ""
        known = at_hand.evidence.known
        estimate = mean_score(runs, value.metric, draws=DRAWS, ap_draws=AP_DRAWS, known=known)
    except UserError as error:
        return None, str(error)
    return estimate, "" if estimate else "outcomes do not add up to the score"


def _difference(target: float, decimals: int, estimate: Estimate) -> Row:
    """Return how far an own mean is from the printed number.

    Args:
        target: the printed number, in percent.
    """
    difference, low, high = (100 * end - target for end in (estimate.estimate, estimate.low, estimate.high))
    seeds = estimate.seeds[0]
    interval = PointsInterval(low, high, decimals, seeds, few=seeds in FEW)
    return {"difference": Points(difference, decimals), "interval": interval}


def _blocked(row: PublishedRow, value: Value, at_hand: OwnRunInputs, *, judge: bool) -> Row:
    """Return the cells of a row without runs: the trainings before it that broke down, of the most comparable kind.

    There is a verdict where all like them did, so that no run of the cell is left to wait for.

    Args:
        judge: whether the published number is a target.
    """
    step = at_hand.matcher.sweep.steps.get(value.step)
    matches = at_hand.matcher.broken_before(row, step) if step else []
    if not matches:
        return {}
    reasons = min((match.reasons for match in matches), key=len)
    broken = [match.record for match in matches if match.reasons == reasons]
    kinds = {at_hand.keys[record.run_id] for record in broken}
    total = sum(at_hand.keys[record.run_id] in kinds for record in at_hand.matcher.records)
    counts = Counts(runs=0, pretrainings=total, lost=len(broken))
    return {
        "own": OwnResult(None, value.decimals, Failures.of_broken(broken, total), blocked=True),
        "verdict": judged(value, counts, None, reasons=reasons) if judge and total == len(broken) else None,
        "pretraining_hours": Hours.of(broken),
        REASONS: Reasons(reasons),
        "runs": tuple(record.run_id for record in broken),
    }


def _own_result(arm: Arm, value: Value, estimate: Estimate | None, counts: Counts) -> OwnResult:
    """Return the mean of what counts as one seed, how the other runs ended, and the mean with these at chance."""
    scores = arm.values(value.metric) if value.epoch is None else []
    mean = 100 * estimate.estimate if estimate else _mean(scores)
    broken = [record for record in arm.records if record.training_failed]
    with_breakdowns = arm.with_breakdowns(value.metric) if scores and arm.absent else []
    return OwnResult(
        mean,
        value.decimals,
        Failures.of_broken(broken, counts.runs) if broken else None,
        lost=counts.lost,
        pretrainings=counts.pretrainings,
        at_chance=_mean(with_breakdowns),
    )


def _mean(scores: Sequence[float]) -> float | None:
    return math.fsum(scores) / len(scores) if scores else None
