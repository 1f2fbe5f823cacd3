"""Columns and notes that several tables have in common."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transfer.comparison.compare_arms import PERCENT
from transfer.comparison.paired_intervals import mean_score
from transfer.core.errors import UserError, count, shortened
from transfer.core.grouped import values_by_key
from transfer.records.evidence import chance
from transfer.records.grouping import Group
from transfer.records.protocol import trains
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, Note, Table, comparability_text
from transfer.statistics.intervals import mean_and_deviation
from transfer.task import FAILED_SCORES, Outcomes

FAILED_NOTES = 5
"""Failed trainings whose scores stand below a table."""
WITH_FAILED = "with failed runs"
"""Suffix of the name of a score's column in which failed training runs count as chance."""
COST_COLUMNS = ("gflops", "train_seconds")
"""Columns of costs beside scores: 10^9 FLOPs of an image, and seconds of training."""
SEEDS = ("pretraining seed", "seed")


def group_cells(group: Group) -> dict[str, Any]:
    """Return the cells that identify the configuration of a row."""
    return {name: getattr(group, name) for name in ("dataset", "backbone", "pretraining", "protocol", "machines")}


def interval(
    runs: StoredRuns, records: Sequence[Record], score: str, outcomes: Mapping[str, Outcomes] | None = None
) -> tuple[float, float] | tuple[None, None]:
    """Return the 95 % interval of a configuration's mean score as tables print it; None without per-sample results.

    They are those of the runs, or the `outcomes` by run id.
    """
    scored = [replace(runs.by_id[record.run_id], record=record) for record in records]
    try:
        estimate = mean_score(scored, score, runs.evidence, outcomes)
    except UserError:  # `report --compare` says what is wrong with the file
        return None, None
    scale = records[0].scale(score)
    return (scale * estimate.low, scale * estimate.high) if estimate else (None, None)


def seed_cells(runs: StoredRuns, record: Record) -> dict[str, int | None]:
    """Return the cells with the seeds of a run and of the training that its weights come from."""
    chain = runs.evidence.lineage(record)
    return {SEEDS[0]: chain[0].seed if chain else record.origin.get("seed"), SEEDS[1]: record.seed}


def chance_level(record: Record, score: str) -> str | None:
    """Return the chance level of a run's score as text; None where there is none."""
    level = chance(record, score)
    return f"{PERCENT * level:.3g} %" if level and level < 1 else None


def run_ids(records: Iterable[Record]) -> dict[str, tuple[str, ...]]:
    """Return the cell with the ids of a row's runs."""
    return {RUN: tuple(record.run_id for record in records)}


def failed_scores(record: Record) -> dict[str, float]:
    """Return what a failed training scores, in the unit that tables print; it counts in no mean of other runs."""
    return {name: record.scale(name) * score for name, score in record.details.get(FAILED_SCORES, {}).items()}


def failed_notes(records_of_rows: Sequence[Sequence[Record]]) -> list[Note]:
    """Return a note for each failed training of the rows with what it scores, which counts in no mean."""
    notes = []
    for row, record in ((row, record) for row, records in enumerate(records_of_rows) for record in records):
        scores = failed_scores(record)
        order = sorted(scores, key=lambda name: name != record.primary)
        texts = shortened([f"{name} {scores[name]:.1f}" for name in order])
        status = record.status.replace("_", " ")
        text = f"{record.run_id}: {status}; its scores are excluded from means: {texts}"
        notes += [Note(text, rows=(row,))] if scores else []
    more = [Note(f"{len(notes) - FAILED_NOTES} more failed trainings have scores, too: `report table --per-run`")]
    return notes if len(notes) <= FAILED_NOTES + 1 else notes[:FAILED_NOTES] + more


def unjudged_note(records: Sequence[Record]) -> list[Note]:
    """Return the note on training runs that were not checked for failure, with the reasons; empty without any."""
    records = [record for record in records if trains(record.options)]
    reasons = dict.fromkeys(record.reason for record in records if record.not_judged)
    number = sum(record.not_judged for record in records)
    text = f"{number} of {count(len(records), 'training run')} not checked for failure: {'; '.join(reasons)}"
    return [Note(text)] if reasons else []


def score_columns(records: Sequence[Record]) -> list[Column]:
    """Return the columns of the records' scores with their intervals, deviations and errors, and those of costs."""
    columns = []
    for record in records:
        for name in record.scores:
            detail, digits = _detail(name, record.primary), None if record.scale(name) == PERCENT else SIGNIFICANT
            for ending in ("", "low", "high"):
                columns.append(Column(f"{name} {ending}".rstrip(), detail=detail, significant_digits=digits))
            columns += [Column(f"{name} {ending}", detail=5) for ending in (WITH_FAILED, "sd", "se")]
    return columns + [Column(name, significant_digits=SIGNIFICANT, detail=1) for name in COST_COLUMNS]


def looked_for(record: Record) -> list[str]:
    """Return the scores of a run that readers look for, the primary one among them."""
    return [name for name in record.scores if _detail(name, record.primary) <= 1]


def _detail(name: str, primary: str) -> int:
    """Return how early a narrow terminal does without a score: the primary one last."""
    return -1 if name == primary else 1 if name in ("mask_AP", "rank1") else 4


def completed(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records whose costs count: without runs that failed, which are short, unless all did."""
    return [record for record in records if not record.training_failed] or records


def mean_cost(name: str, records: Sequence[Record]) -> float:
    """Return the mean of a cost over the `completed` records that have it; nan if none has."""
    return mean_and_deviation([float(cost) for record in completed(records) if (cost := record.cost.get(name))])[0]


def significant(names: Iterable[str]) -> list[Column]:
    """Return columns whose values are shown with four significant digits."""
    return [Column(name, significant_digits=SIGNIFICANT) for name in names]


def protocol_tables(table: Table) -> dict[str, Table]:
    """Return the rows of each protocol as a table of its own, by what distinguishes the protocol; "" if all agree."""
    protocols = (row.get("protocol") for row in table.rows)
    texts = (comparability_text(protocol) if protocol else "" for protocol in protocols)
    places = values_by_key((text, place) for place, text in enumerate(texts))
    return {text: table.take(places[text]).without("protocol").without_empty() for text in sorted(places)}


def without_unused(table: Table) -> Table:
    """Return the table without empty columns.

    Of the seeds of runs and of their pretraining those stay that differ between rows, or else those of the runs.
    """
    if SEEDS[0] in table:
        constant = [name for name in SEEDS if len({*table[name]}) < 2]
        table = table.without(*constant[:1])
    return table.without_empty()
