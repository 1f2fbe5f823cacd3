"""Rows of published cells: the mean of the user's own runs, its difference from the printed number, and a verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transfer.comparison.paired_intervals import mean_score
from transfer.core.errors import UserError
from transfer.engine.history import HISTORY, history
from transfer.experiments.published_rows import Row as PublishedRow
from transfer.experiments.published_rows import Value
from transfer.experiments.published_verdicts import Counts, judged
from transfer.records.evidence import Arm, Evidence
from transfer.records.store import Run
from transfer.report.published.matching import Matcher
from transfer.report.published.own_runs import OwnRuns
from transfer.report.published.texts import REASONS, Reasons, failures_text, hours_text
from transfer.report.tables.table import SIGNIFICANT, Column, Note, Row
from transfer.statistics.contrasts import contrast
from transfer.statistics.intervals import FEW_SEEDS, Estimate, Scores


def score_at(run: Run, value: Value) -> float:
    """Return the score of a run after the epoch of a published value, a fraction.

    Raises:
        UserError: the history lacks the epoch.
    """
    lines = history(run.folder, value.metric)
    scores = {line["epoch"]: float(line[value.metric]) for line in lines if line[value.metric] is not None}
    if value.epoch not in scores:
        raise UserError(
            f"{run.folder / HISTORY}: has no {value.name}; --validate-at {value.epoch} of the training measures it"
        )
    return scores[value.epoch]


def mean_at(runs: Sequence[Run], value: Value) -> "Estimate":
    """Return the mean over seeds of the score after an epoch, with its interval.

    A history has the fraction of correct images, not the outcome of each image. All seeds are assumed to be right on
    the same images, which makes the interval too wide rather than too short.

    Raises:
        UserError: a run has no such score.
    """
    scores = np.array([score_at(run, value) for run in runs])
    images = runs[0].record.dataset["counts"]["val"]["images"]
    right = np.clip(scores[:, None] * images - np.arange(images), 0.0, 1.0)
    return contrast([Scores.of_clusters(right, np.ones(images))], [1], bounds=(0.0, 1.0))


FEW = {
    1: "the interval is that of these models on other samples; other seeds are in neither it nor the verdict",
    **dict.fromkeys(range(2, FEW_SEEDS + 1), "few seeds: where they vary, the interval may cover as little as 85 %"),
}
"""Note on an interval over few seeds, by their number."""
COLUMNS = (
    *map(Column, ("row", "dataset", "metric", "published", "reading", "configuration", "own")),
    *map(Column, ("difference", "interval", "verdict")),
    Column("gmacs", significant_digits=SIGNIFICANT),
    *map(Column, ("device_hours", "pretraining_hours", REASONS, "others", "runs")),
)
"""Columns: `metric` is the name of the score, `published` the printed number, `own` the mean over seeds, `difference`
own - published, `interval` its 95 % interval, `gmacs` 10^9 multiply-adds of an image, as papers count operations,
`device_hours` and `pretraining_hours` totals over the runs, `others` the number of configurations that are not shown,
and `runs` the ids of the runs."""


@dataclass(frozen=True)
class OwnRunInputs:
    """Inputs for the rows of a published table.

    Attributes:
        matcher: finds the runs of a cell.
        evidence: seeds and lineages of the runs.
        keys: configuration of each run, by run id.
        runs: the runs, by run id.
        margin: largest difference at which numbers agree, in percentage points.
    """

    matcher: Matcher
    evidence: Evidence
    keys: Mapping[str, str]
    runs: Mapping[str, Run]
    margin: float


def cell_row(row: PublishedRow, value: Value, runs: OwnRuns | None, inputs: OwnRunInputs) -> tuple[Row, list[Note]]:
    """Return the row of a published cell, and its notes.

    Args:
        runs: the user's own runs of one configuration; None without any.
    """
    cells: Row = {column.name: None for column in COLUMNS}
    mark = "in doubt" if value.doubt else "for reference" if row.reference else ""
    printed = f"{value.printed} ({mark})" if mark else value.printed
    cells |= {"row": row.label, "dataset": value.dataset, "metric": value.name, "published": printed, "others": 0}
    if runs is None:
        return cells | _blocked(row, value, inputs, judge=not mark), []
    target = value.percent if not row.reference else None
    estimate, problem = _estimate(runs, value, inputs) if target is not None and runs.completed else (None, "")
    pretrainings = {run.run_id: run for record in runs.records for run in inputs.evidence.lineage(record)}
    variant = inputs.evidence.variant(runs.records)
    counts = _counts(variant, bool(pretrainings))
    cells |= {
        "reading": runs.matches[0].reading,
        "configuration": runs.label,
        "own": _own_text(variant, value, estimate, counts),
        "verdict": None if mark else judged(value, counts, estimate, reasons=runs.reasons, margin=inputs.margin),
        "gmacs": (runs.records[0].cost.get("gflops") or math.nan) / 2,
        "device_hours": hours_text(runs.records),
        "pretraining_hours": hours_text(pretrainings.values()) if pretrainings else None,
        REASONS: Reasons(runs.reasons),
        "others": runs.others,
        "runs": tuple(record.run_id for record in runs.records),
    }
    if problem:
        cells["interval"] = "none"
    elif estimate and target is not None:
        cells |= _difference(target, value.decimals, estimate)
    return cells, [*_run_notes(runs), *_interval_notes(row, value, estimate, problem)]


def _run_notes(runs: OwnRuns) -> list[Note]:
    """Return the notes on unstated numbers of processes of a row's runs."""
    alone = "each of which sees to its part of a batch by itself; the table's sweep does not say how many there are"
    return [
        Note(f"processes {match.processes}, {alone}", match.record.run_id)
        for match in runs.matches
        if match.processes is not None
    ]


def _interval_notes(row: PublishedRow, value: Value, estimate: Estimate | None, problem: str) -> list[Note]:
    """Return the note on a missing interval, or on an interval over few seeds."""
    if problem:
        about = f"{row.label}, {value.dataset}, {value.name}"
        return [Note(f"no interval, since {problem}", about)]
    seeds = estimate.seeds[0] if estimate else 0
    about = f"({seeds} seed{'s' * (seeds > 1)})"
    return [Note(FEW[seeds], about)] if seeds in FEW else []


def _counts(variant: Arm, pretrained: bool) -> Counts:
    return Counts(
        runs=len(variant.records),
        broken=sum(record.training_failed for record in variant.records),
        pretrainings=len(variant.lost) + len({record.weights_id for record in variant.records}) * pretrained,
        lost=len(variant.lost),
        not_judged=sum(record.not_judged for record in variant.records),
    )


def _estimate(runs: OwnRuns, value: Value, inputs: OwnRunInputs) -> tuple[Estimate | None, str]:
    """Return the mean score of the runs that completed, a fraction, with its interval.

    Otherwise the second value is the reason: no run has the score, it is not a mean over samples, or per-sample
    outcomes are missing.
    """
    completed = [inputs.runs[record.run_id] for record in runs.completed]
    if value.epoch is None and not any(value.metric in record.scores for record in runs.completed):
        return None, f"no run has a score of this name: {' '.join(record.run_id for record in runs.completed)}"
    try:
        if value.epoch is not None:
            return mean_at(completed, value), ""
        estimate = mean_score(completed, value.metric, inputs.evidence)
    except UserError as error:
        return None, str(error)
    return estimate, "" if estimate else "outcomes do not add up to the score"


def _difference(target: float, decimals: int, estimate: Estimate) -> Row:
    """Return the cells of the difference of a mean from the printed number, and of its interval.

    Args:
        target: the printed number in percent.
        decimals: number of decimals of the printed number.
        estimate: the mean, a fraction.
    """
    difference, low, high = (100 * end - target for end in (estimate.estimate, estimate.low, estimate.high))
    seeds = estimate.seeds[0]
    few = f" ({seeds} seed{'s' * (seeds > 1)})" if seeds in FEW else ""
    interval = f"{low:+.{decimals}f} to {high:+.{decimals}f}{few}"
    return {"difference": f"{difference:+.{decimals}f}", "interval": interval}


def _blocked(row: PublishedRow, value: Value, inputs: OwnRunInputs, *, judge: bool) -> Row:
    """Return the cells of a row without runs: its failed pretraining runs, the most comparable ones.

    There is a verdict if all pretraining runs of these configurations failed, so that no run can follow.

    Args:
        judge: whether the published number is a target.
    """
    step = inputs.matcher.sweep.steps.get(value.step)
    matches = inputs.matcher.broken_before(row, step) if step else []
    if not matches:
        return {}
    reasons = min((match.reasons for match in matches), key=len)
    broken = [match.record for match in matches if match.reasons == reasons]
    kinds = {inputs.keys[record.run_id] for record in broken}
    total = sum(inputs.keys[record.run_id] in kinds for record in inputs.matcher.records)
    counts = Counts(runs=0, pretrainings=total, lost=len(broken))
    return {
        "own": f"blocked: {failures_text(broken, total)}",
        "verdict": judged(value, counts, None, reasons=reasons) if judge and total == len(broken) else None,
        "pretraining_hours": hours_text(broken),
        REASONS: Reasons(reasons),
        "runs": tuple(record.run_id for record in broken),
    }


def _own_text(variant: Arm, value: Value, estimate: Estimate | None, counts: Counts) -> str:
    """Return the mean over seeds, the statuses of broken runs, and the mean that counts these at chance."""
    scores = variant.values(value.metric) if value.epoch is None else []
    mean = 100 * estimate.estimate if estimate else _mean(scores)
    broken = [record for record in variant.records if record.training_failed]
    shown = [] if mean is None else [f"{mean:.{value.decimals}f}"]
    texts = [", ".join([*shown, *([failures_text(broken, counts.runs)] if broken else [])])]
    if counts.lost:
        texts.append(f"{counts.lost} of {counts.pretrainings} pretraining runs failed")
    at_chance = _mean(variant.with_breakdowns(value.metric) if scores and variant.absent else [])
    if at_chance is not None:
        texts.append(f"these at chance level: {at_chance:.{value.decimals}f}")
    return "; ".join(filter(None, texts))


def _mean(scores: Sequence[float]) -> float | None:
    return math.fsum(scores) / len(scores) if scores else None
