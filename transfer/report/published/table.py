"""Published tables beside the user's own numbers: `python -m transfer.report paper RUNS --paper scaled_relu --table 4`.

Own numbers are means over seeds, in percent. A row has a verdict only if its runs differ from the full tier of the
table's sweep in nothing but the seed; every other row lists its differences. `docs/concepts/statistics.md` explains how
verdicts are made.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from transfer.comparison.paired_intervals import mean_score
from transfer.core.errors import UserError, count
from transfer.engine.checkpoint import HISTORY, history
from transfer.experiments.published_rows import PublishedTable, Value, read_paper, table_of
from transfer.experiments.published_rows import Row as PublishedRow
from transfer.experiments.sweep_file import read_sweep
from transfer.records.evidence import Arm, Evidence
from transfer.records.record import Record, total_hours
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.published.matching import Matcher, OwnRuns
from transfer.report.tables.table import SIGNIFICANT, Column, Note, Row, Table
from transfer.statistics.contrasts import contrast
from transfer.statistics.intervals import Estimate, Scores
from transfer.statistics.verdicts import Kind, Verdict, verdict_of

NOT_COMPARABLE, REASONS = "not comparable", "not comparable because"
"""What stands in the place of a verdict, and the name of the column of reasons."""
PAPER_COLUMNS = (
    *map(Column, ("row", "dataset", "metric", "published", "reading", "own", "difference", "interval", "verdict")),
    Column("gmacs", significant_digits=SIGNIFICANT),
    *map(Column, ("device_hours", "pretraining_hours")),
    Column(REASONS, detail=-1),
    Column("runs"),
)
"""Columns: `metric` is the name of the score, `published` the printed number, `own` the mean over seeds, `difference`
own - published, `interval` its 95 % interval, `gmacs` 10^9 multiply-adds of an image, as papers count operations,
`device_hours` and `pretraining_hours` totals over the runs, and `runs` the ids of the runs."""

AGREES = (
    "the interval of own - published at 90 % (two one-sided tests at 5 %) lies within that, half the last printed "
    "digit counted (docs/concepts/statistics.md); the printed number has no seeds"
)
"""How verdicts are made."""

AGREEMENT_MARGIN = 1.0
"""Margin of agreement in percentage points: about half of the conv stem's published gain of 2.1, so that numbers that
agree lead to the same conclusion."""
PAPER_WORDS = {
    Kind.ABOVE: "higher",
    Kind.BELOW: "lower",
    Kind.EQUIVALENT: "agrees",
    Kind.A_FAILED: "failed here only",
    Kind.B_FAILED: "not here",
}
"""What is said of own runs (a) beside the published one (b) in other words than those of the kind."""

_read_sweep = lru_cache(read_sweep)


class Counts(NamedTuple):
    """Numbers of the runs of a cell and of the pretrainings that they start from.

    Attributes:
        runs: number of runs of the cell.
        broken: number of these runs that failed.
        pretrainings: number of own pretrainings that the runs start from, including lost ones.
        lost: number of failed pretraining runs, so that no run of the cell starts from them.
        not_judged: number of the runs not judged for failure.
    """

    runs: int
    broken: int = 0
    pretrainings: int = 0
    lost: int = 0
    not_judged: int = 0


def paper_table(runs: StoredRuns, paper: str, table: str, *, margin: float | None = None) -> Table:
    """Return the cells of a published table, one row each, with the user's own numbers; of a figure its claims.

    A cell has a row for each reading of its printed options that was run, and for each comparable configuration. If
    none is comparable, the configuration that differs least from the table's is shown.

    Args:
        margin: largest difference at which numbers agree, in points; by default `AGREEMENT_MARGIN`.

    Raises:
        UsageError: the paper or table is unknown, or the file of published numbers cannot be read.
    """
    margin = AGREEMENT_MARGIN if margin is None else margin
    published = table_of(paper, table)
    if published.claims:
        sweep_hint = f"no readable values; `python -m transfer.sweep {published.sweep} --tier full` measures yours"
        claims = ({"claim": claim} for claim in published.claims)
        return Table.from_rows(claims, (), [*_notes(published), Note(sweep_hint)])
    matcher = Matcher(_read_sweep(published.sweep, "full"), read_paper(paper), runs)
    rows, notes = list[Row](), list[Note]()
    for row in published.rows:
        for value in row.values:
            configurations: list[OwnRuns | None] = [*matcher.own_runs(row, value)]
            for own_runs in configurations or [None]:
                cells, problem = _cell_row(row, value, own_runs, matcher, margin)
                if problem:
                    notes.append(Note(f"no interval, since {problem}", _cell_title(row, value), (len(rows),)))
                rows.append(cells)
    matched = any(row["runs"] for row in rows)
    rule_notes = [Note(AGREES, f"agrees within {margin:g}")] if matched else _no_match(published, matcher)
    return Table(list(PAPER_COLUMNS), rows, [*_notes(published), *rule_notes, *notes])


def _no_match(table: PublishedTable, matcher: Matcher) -> list[Note]:
    """Return the note on what a run needs to match a row of the table; empty without runs."""
    steps, values = matcher.sweep.steps, chain.from_iterable(row.values for row in table.rows if row.steps)
    wanted = " or ".join(sorted({f"{steps[value.step].task.name} on {value.dataset}" for value in values}))
    text = f"none of {count(len(matcher.runs), 'run')} matches a row, which needs {wanted}, with the row's options"
    return [Note(text)] if len(matcher.runs) else []


def _cell_title(row: PublishedRow, value: Value) -> str:
    return f"{row.label}, {value.dataset}, {value.name}"


def _notes(table: PublishedTable) -> list[Note]:
    """Return the notes on the source of a table and on its doubtful or reference numbers."""
    paper = read_paper(table.paper)
    title = f"{paper.title} ({paper.source}), {table.called}: {table.title}."
    title += " In percent." if table.rows else ""
    notes = [Note(text) for text in (title, *paper.notes, *table.notes)]
    for row in table.rows:
        if row.reference:
            notes.append(Note(f"for reference only: {row.reference}", row.label))
        for value in row.values:
            if value.doubt:
                notes.append(Note(f"printed {value.printed}, never compared: {value.doubt}", _cell_title(row, value)))
    return notes


def _cell_row(
    row: PublishedRow, value: Value, runs: OwnRuns | None, matcher: Matcher, margin: float
) -> tuple[Row, str]:
    """Return the row of a published cell, and why it has no interval, where it could have one.

    Args:
        runs: the user's own runs of one configuration; None without any.
    """
    evidence = matcher.runs.evidence
    cells: Row = {column.name: None for column in PAPER_COLUMNS}
    mark = "in doubt" if value.doubt else "for reference" if row.reference else ""
    printed = f"{value.printed} ({mark})" if mark else value.printed
    cells |= {"row": row.label, "dataset": value.dataset, "metric": value.name, "published": printed}
    if runs is None:
        return cells | _blocked_cells(row, value, matcher, judge=not mark), ""
    estimate, gap, problem = None, None, ""
    own_runs = [matcher.runs.by_id[record.run_id] for record in runs.records]
    completed = not all(record.training_failed for record in runs.records)
    if completed and value.percent is not None and not mark:
        try:
            estimate = _estimate(own_runs, value, evidence)
            gap = estimate.beside(value.percent)
        except UserError as error:
            problem = str(error)
    pretrainings = {run.run_id: run for record in runs.records for run in evidence.lineage(record)}
    variant = evidence.variant(runs.records)
    counts = Counts(
        runs=len(variant.records),
        broken=sum(record.training_failed for record in variant.records),
        pretrainings=len(variant.lost) + (len({record.weights_id for record in runs.records}) if pretrainings else 0),
        lost=len(variant.lost),
        not_judged=sum(record.not_judged for record in variant.records),
    )
    verdict = NOT_COMPARABLE if runs.reasons else verdict_on(value, counts, gap, margin=margin)
    cells |= {
        "reading": runs.reading,
        "own": _own_text(variant, value, estimate, counts),
        "interval": "none" if problem else None,
        "verdict": None if mark else verdict,
        "gmacs": (runs.records[0].cost.get("gflops") or math.nan) / 2,
        "device_hours": total_hours(runs.records),
        "pretraining_hours": total_hours(pretrainings.values()) if pretrainings else None,
        REASONS: runs.reasons,
        "runs": tuple(record.run_id for record in runs.records),
    }
    if gap is not None:
        difference, low, high = (f"{end:+.{value.decimals}f}" for end in (gap.estimate, gap.low, gap.high))
        interval = f"{low} to {high} ({count(gap.seeds[0], 'seed')})"
        cells |= {"difference": difference, "interval": interval}
    return cells, problem


def _estimate(runs: Sequence[StoredRun], value: Value, evidence: Evidence) -> Estimate:
    """Return the mean score of runs, a fraction, with its interval.

    Raises:
        UserError: no run has the score, it is not a mean over samples, or per-sample outcomes are missing.
    """
    if value.epoch is not None:
        return _mean_at_epoch([run for run in runs if not run.record.training_failed], value)
    if not any(value.metric in run.record.scores for run in runs):
        raise UserError(f"no run has a score of this name: {' '.join(run.record.run_id for run in runs)}")
    if (estimate := mean_score(runs, value.metric, evidence)) is None:
        raise UserError("outcomes do not add up to the score")
    return estimate


def _mean_at_epoch(runs: Sequence[StoredRun], value: Value) -> Estimate:
    """Return the mean over seeds of the score after an epoch, with its interval.

    A history has the fraction of correct images, not the outcome of each image. All seeds are assumed to be right on
    the same images, which makes the interval too wide rather than too short.

    Raises:
        UserError: the history of a run lacks the epoch.
    """
    scores = []
    for run in runs:
        lines = (line for line in history(run.folder, value.metric) if line[value.metric] is not None)
        at_epoch = {line["epoch"]: float(line[value.metric]) for line in lines}
        if value.epoch not in at_epoch:
            fix = f"--validate-at {value.epoch} of the training measures it"
            raise UserError(f"{run.folder / HISTORY}: has no {value.name}; {fix}")
        scores.append(at_epoch[value.epoch])
    images = runs[0].record.dataset["counts"]["val"]["images"]
    outcomes = np.clip(np.array(scores)[:, None] * images - np.arange(images), 0.0, 1.0)
    return contrast([Scores.of_clusters(outcomes, np.ones(images))], [1], bounds=(0.0, 1.0))


def _blocked_cells(row: PublishedRow, value: Value, matcher: Matcher, *, judge: bool) -> Row:
    """Return the cells of a row without runs: its failed pretraining runs, the most comparable ones.

    There is a verdict if all pretraining runs of these configurations failed, so that no run can follow.

    Args:
        judge: whether the published number is a target.
    """
    if not (failed_configurations := matcher.broken_before(row, value)):
        return {}
    reasons = min((run.reasons for run in failed_configurations), key=len)
    failed_records = [run.records[0] for run in failed_configurations if run.reasons == reasons]
    failed_keys = {matcher.keys[record.run_id] for record in failed_records}
    total = sum(matcher.keys[record.run_id] in failed_keys for record in matcher.runs.records)
    counts = Counts(runs=0, pretrainings=total, lost=len(failed_records))
    verdict = NOT_COMPARABLE if reasons else verdict_on(value, counts, None)
    return {
        "own": f"blocked: {_failures_text(failed_records, total)}",
        "verdict": verdict if judge and total == len(failed_records) else None,
        "pretraining_hours": total_hours(failed_records),
        REASONS: reasons,
        "runs": tuple(record.run_id for record in failed_records),
    }


def _own_text(variant: Arm, value: Value, estimate: Estimate | None, counts: Counts) -> str:
    """Return the mean over seeds, the statuses of broken runs, and the mean that counts these at chance."""
    scores = variant.values(value.metric) if value.epoch is None else []
    means = [100 * estimate.estimate] if estimate else [fmean(scores)] if scores else []
    failures = _failures_text([record for record in variant.records if record.training_failed], counts.runs)
    texts = [", ".join(filter(None, [*(f"{mean:.{value.decimals}f}" for mean in means), failures]))]
    if counts.lost:
        texts.append(f"{counts.lost} of {counts.pretrainings} pretraining runs failed")
    if scores and variant.absent and (scores_at_chance := [*variant.with_breakdowns(value.metric).values()]):
        texts.append(f"these at chance level: {fmean(scores_at_chance):.{value.decimals}f}")
    return "; ".join(filter(None, texts))


def _failures_text(failed_records: Sequence[Record], total: int) -> str:
    """Return the numbers of failed training runs, by status, out of a total: "diverged 1/3"."""
    number_by_status = Counter(str(record.status) for record in failed_records)
    return ", ".join(f"{status} {number}/{total}" for status, number in sorted(number_by_status.items()))


def verdict_on(value: Value, counts: Counts, gap: Estimate | None, *, margin: float = AGREEMENT_MARGIN) -> str:
    """Return the verdict on the comparable runs of one configuration, compared with a published cell.

    With one seed the interval is over samples only. If the runs start from one pretraining, only the seeds of the later
    training count. `_own_text` counts the failed ones.

    Args:
        value: published cell, neither a reference nor in doubt.
        counts: numbers of the runs.
        gap: mean score of the runs less the printed one; None without an interval.
        margin: margin of agreement.
    """
    seeds, details = 0, list[str]()
    if counts.broken == counts.runs:
        verdict = Verdict(Kind.BOTH_FAILED if value.crash else Kind.A_FAILED)
    elif value.crash:
        verdict = Verdict(Kind.INCONCLUSIVE if counts.not_judged else Kind.B_FAILED)
    elif gap is None:
        verdict = Verdict(Kind.NO_INTERVAL)
    else:
        verdict, seeds = verdict_of(gap, slack=value.rounding, effect=True, margin=margin), gap.seeds[0]
        if verdict.kind is Kind.INCONCLUSIVE:
            largest_difference = value.rounding + max(gap.high, -gap.low)
            details.append(f"differences up to {largest_difference:.1f} percentage points not excluded")
    headline = PAPER_WORDS.get(verdict.kind, verdict.kind.value)
    if verdict.within:
        headline += f" within {margin:g}" if verdict.kind is Kind.EQUIVALENT else f", by less than {margin:g}"
    if value.crash and 0 < counts.broken < counts.runs:
        headline = f"failed in {counts.broken} of {counts.runs} here"
    elif counts.runs > counts.broken and (counts.broken or counts.lost):
        headline += ", completed runs only"
    if seeds == 1:
        headline += ", of these models (1 seed)"
    elif seeds and counts.pretrainings - counts.lost == 1:
        headline += f", of one pretraining ({seeds} seeds after it)"
    if counts.not_judged:
        details.append(f"{counts.not_judged} of {counts.runs} not judged")
    return f"{headline}: {'; '.join(details)}" if details else headline
