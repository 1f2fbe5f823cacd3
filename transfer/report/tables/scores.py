"""Tables of scores in percent: of single runs, of configurations, means over datasets, and of each class; of the task
`tokens` its diagnostics by layer, and the norms of the first theorem of arXiv 2109.03810.

Scores of a class have the intervals of the configuration's score: over resampled test images and seeds.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from transfer.comparison.paired_intervals import read_outcomes
from transfer.core.errors import count, shortened
from transfer.core.grouped import values_by_key
from transfer.records.evidence import Arm, Unit, informative, is_seeded
from transfer.records.grouping import Group, dataset_label, grouped, marks
from transfer.records.per_sample import RESAMPLED, scoring
from transfer.records.protocol import OF_DATA, backbone_of, known_task, protocol
from transfer.records.record import Record, digest_of
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.tables import columns
from transfer.report.tables.table import Endings, Note, Table
from transfer.statistics.intervals import mean_and_deviation
from transfer.statistics.verdicts import Breakdowns
from transfer.task import Outcomes

OfClass = tuple[Record, Outcomes]
"""A run's record with the scores of a class in the place of all, and its outcomes with their resamples."""


def class_table(runs: StoredRuns, names: Sequence[str] = ()) -> Table:
    """Return a row for each configuration and class: mean scores over seeds in percent, with 95 % intervals.

    Configurations are named as in `summary`. Resamples are those of the score over all classes; an interval is from
    those in which the class occurs, and over the images in which it does: from one image there is none. The table is
    empty if no task of the runs has scores by class.

    Args:
        runs: runs of one task.
        names: the scores, by default those that readers look for.

    Raises:
        UserError: the results of a run cannot be read.
    """
    rows: list[dict[str, Any]] = []
    notes: dict[Note, None] = {}
    for group in runs.groups:
        scores = names or columns.looked_for(group.first)
        titles, classes = group.first.details.get("classes", {}), defaultdict[str, dict[str, OfClass]](dict)
        for run in (runs.by_id[record.run_id] for record in group.records if record.scores):
            for class_id, results in _of_classes(run, scores).items():
                classes[titles.get(class_id, class_id)][run.record.run_id] = results
        if classes and (absent := sorted({*titles.values()} - {*classes})):
            notes[Note(f"not in the test images, so no score: {shortened(absent, 3)}", group.dataset)] = None
        for title, members in classes.items():
            row: dict[str, Any] = {"task": group.first.task, **columns.group_cells(group), "class": title}
            outcomes = {run_id: resamples for run_id, (_, resamples) in members.items()}
            of_class = {run_id: record for run_id, (record, _) in members.items()}
            records = [of_class.get(record.run_id, replace(record, scores={})) for record in group.records]
            variant = runs.evidence.variant(records)
            for score in scores:
                row[score] = mean_and_deviation(variant.values(score))[0]
                row[f"{score} low"], row[f"{score} high"] = columns.interval(runs, records, score, outcomes)
            rows.append(row | columns.run_ids(group.records))
    return columns.without_unused(Table.from_rows(rows, columns.score_columns(runs.records), notes))


def _of_classes(run: StoredRun, scores: Sequence[str]) -> dict[str, OfClass]:
    """Return what the table needs of a run, by the ids of the classes."""
    outcomes, record = read_outcomes(run), run.record
    with scoring():
        by_class = known_task(record.task).by_class([name for name in scores if name in record.scores], outcomes)
    members = {}
    for class_id, (images, columns_of_class) in by_class.items():
        shared = {name: outcomes[name][images] for name in ("sample", "cluster")}
        resampled = {f"{RESAMPLED}{name}": values[1:] for name, values in columns_of_class.items()}
        class_scores = {name: float(values[0]) for name, values in columns_of_class.items()}
        members[class_id] = replace(record, scores=class_scores), shared | resampled
    return members


TRAIN_SECONDS = "train_seconds"


def each_run(runs: StoredRuns, *, intervals: bool = False) -> Table:
    """Return one row per run: its configuration, outcome, scores in percent and training time in seconds.

    Backbone, pretraining and protocol are named as in `summary`; the last two are left out where all rows agree.
    With `intervals` the scores that readers look for have their 95 % intervals over test samples.
    """
    group_of = {id(record): group for group in runs.groups for record in group.records}
    rows: list[dict[str, Any]] = []
    for record in runs.records:
        group, values = group_of[id(record)], _scores(record)
        for name in columns.looked_for(record) if intervals else ():
            values[f"{name} low"], values[f"{name} high"] = columns.interval(runs, [record], name)
        cells = {"task": record.task, **columns.group_cells(group), "machines": None}
        cells |= {"dataset": dataset_label([record], runs.exports)}
        cells |= {"chance": columns.chance_level(record, record.primary), **columns.seed_cells(runs, record)}
        cells |= {"outcome": record.status, **values, TRAIN_SECONDS: record.cost.get(TRAIN_SECONDS)}
        rows.append(cells | columns.run_ids([record]))
    of_rows = [[record] for record in runs.records]
    notes = columns.failed_notes(of_rows) + columns.unjudged_note(runs.records) + image_notes(of_rows)
    return columns.without_unused(Table.from_rows(rows, columns.score_columns(runs.records), notes))


def _scores(record: Record) -> dict[str, float | None]:
    """Return the scores in percent, each with its standard error over draws if it has several draws."""
    values: dict[str, float | None] = {}
    for name in informative(record):
        values[name] = record.shown(name)
        if (error := record.standard_error(name)) is not None:
            values[f"{name} se"] = record.scale(name) * error
    return values


def image_notes(records_of_rows: Sequence[Sequence[Record]]) -> list[Note]:
    """Return a note for each dataset with fewer images in some classes than shots.

    Args:
        records_of_rows: the runs behind each row of the table.
    """
    rows: dict[tuple[str, str], dict[int, None]] = {}
    for row, records in enumerate(records_of_rows):
        for record in records:
            support = record.details.get("support")  # of a user's task it may be anything
            fewer = support.get("classes_with_fewer") if isinstance(support, dict) else None
            for shots, classes in (fewer or {}).items():
                if not classes:
                    continue
                about = f"accuracy_{shots}shot on {record.dataset.get('name')}"
                text = f"{count(classes, 'class', 'es')} with fewer than {shots} training images, all of them used"
                rows.setdefault((text, about), {})[row] = None
    return [Note(text, about, tuple(places)) for (text, about), places in rows.items()]


def summary(runs: StoredRuns) -> Table:
    """Return one row per configuration (backbone, pretraining, protocol): mean scores over its seeds, and their cost.

    `transfer.records.evidence.Evidence.variant` defines what counts as one seed; fine-tuning runs from one pretraining
    are averaged if there are several pretrainings. The primary score has its 95 % interval over test samples and seeds,
    where there are per-sample results; `seeds` is the number of seeds with a score. Failed runs have no score:
    `statuses` counts the statuses of the runs and of the pretrainings that left no weights; `failed` has the rate of
    seeds without a score with its 95 % Wilson interval; and a mean that counts these at chance is shown beside the mean
    of the completed runs. Rows of a task with different protocols have different values of `Comparability`.
    """
    groups, records = runs.groups, runs.records
    variants = [runs.evidence.variant(group.records) for group in groups]
    scores = list(dict.fromkeys(chain.from_iterable(map(informative, records))))
    rates = any(len(variant.units) > 1 for variant in variants) and any(variant.absent for variant in variants)
    rows = [_row(runs, group, variant, scores, rates) for group, variant in zip(groups, variants, strict=True)]
    notes = [Note("failed runs counted at chance level, or at 0 where it is not known", columns.WITH_FAILED)]
    of_rows = [group.records for group in groups]
    notes = (notes if rates else []) + columns.failed_notes(of_rows) + columns.unjudged_note(records)
    notes += image_notes(of_rows)
    return columns.without_unused(Table.from_rows(rows, columns.score_columns(records), notes))


def _row(runs: StoredRuns, group: Group, variant: Arm, scores: Sequence[str], rates: bool) -> dict[str, Any]:
    first = group.first
    row: dict[str, Any] = {"task": first.task, **columns.group_cells(group)}
    row |= {"chance": columns.chance_level(first, first.primary), first.primary: None}
    row[f"{first.primary} low"], row[f"{first.primary} high"] = columns.interval(runs, group.records, first.primary)
    statuses = tuple(record.status for record in variant.records)
    of_lost = tuple(record.status for record in variant.lost)
    row |= {"seeds": len(variant.units) - variant.broken, "statuses": Endings(statuses, of_lost)}
    for name in columns.COST_COLUMNS:
        row[name] = columns.mean_cost(name, group.records)
    if rates:
        row["failed"] = Breakdowns("", *variant.breakdowns)
        counted = [*variant.with_breakdowns(first.primary).values()]
        row[f"{first.primary} {columns.WITH_FAILED}"] = mean_and_deviation(counted)[0]
    for name in scores:
        row[name], row[f"{name} sd"] = mean_and_deviation(variant.values(name))
        errors = [error for record in group.records if (error := record.standard_error(name)) is not None]
        if len(errors) == 1:
            row[f"{name} se"] = first.scale(name) * errors[0]
    return row | columns.run_ids(group.records)


def over_datasets(runs: StoredRuns) -> Table:
    """Return the unweighted mean over datasets of runs that differ in nothing else, where metrics are averaged.

    There is one row per backbone, seed and set of options; of seeds without effect the first alone. The mean is over
    the datasets that all rows of its protocol with several datasets have; notes name those that are left out.
    Of several records of a dataset (it was stored in another format, or repaired) the latest counts. If the run of a
    dataset failed, the mean is empty, and `datasets` has the number of failures. The standard error of the mean takes
    the errors of the datasets as independent.
    """
    members: dict[tuple[str, str], dict[str, Record]] = {}
    for record in sorted(runs.records, key=lambda record: (str(record.environment.get("started") or ""), -record.seed)):
        if any(metric.get("averaged") for metric in record.metrics.values()):
            members.setdefault(_all_but_dataset(record), {})[record.dataset["name"]] = record
    several = {key: datasets for key, datasets in members.items() if len(datasets) > 1}
    common: dict[str, set[str]] = {}
    for (key, _), datasets in several.items():
        common[key] = common.get(key, {*datasets}) & datasets.keys()
    firsts = [next(iter(datasets.values())) for datasets in several.values()]
    group_of = {id(record): group for group in grouped(firsts, runs.exports) for record in group.records}
    rows = []
    for ((key, _), datasets), first in zip(several.items(), firsts, strict=True):
        averaged = {name: datasets[name] for name in sorted(common[key])}
        rows.append(_mean_row(averaged, first, group_of[id(first)], runs))
    lacking = (datasets.keys() - common.get(key, {*datasets}) for (key, _), datasets in members.items())
    notes = [Note(f"not in the means, since other rows lack it: {name}") for name in sorted(set().union(*lacking))]
    return columns.without_unused(Table.from_rows(rows, columns.score_columns(runs.records), notes))


def _mean_row(datasets: Mapping[str, Record], first: Record, group: Group, runs: StoredRuns) -> dict[str, Any]:
    """Return a row of `over_datasets`.

    Args:
        datasets: records of the datasets in common.
        first: any record of the row, in `datasets` or not.
        group: its configuration.
        runs: all runs.
    """
    members = list(datasets.values())
    row: dict[str, Any] = {"task": first.task, "backbone": group.backbone, "pretraining": group.pretraining}
    row |= {"protocol": group.protocol, **columns.seed_cells(runs, first)}
    if len(members) < 2:
        return row | {"datasets": f"{len(members) or 'none'} in common with the other rows"}
    broken, lost = sum(record.training_failed for record in members), len(runs.evidence.lost(members))
    remarks = marks(members, runs.exports)
    remarks += [f"{broken} failed"] if broken else []
    remarks += [f"completed runs only: {lost} of its pretraining runs failed"] if lost else []
    row["datasets"] = ", ".join(datasets) + (f" ({', '.join(remarks)})" if remarks else "")
    for name in first.scores if not broken else ():
        if all(name in record.scores for record in members):
            row[name] = fmean(record.shown(name) for record in members)
    errors = [record.standard_error(first.primary) for record in members]
    if first.primary in row and None not in errors:
        error = math.hypot(*(error or 0.0 for error in errors)) / len(members)
        row[f"{first.primary} se"] = first.scale(first.primary) * error
    return row | columns.run_ids(members)


def _all_but_dataset(record: Record) -> tuple[str, str]:
    """Return the digest of what the rows of one protocol share, and the digest that identifies the row."""
    shared = {name: value for name, value in protocol(record).items() if name not in ("dataset", "skipped")}
    shared = {name: value for name, value in shared.items() if not name.startswith(OF_DATA)}
    seed = record.seed if is_seeded(record) else None
    return digest_of(shared), digest_of([shared, backbone_of(record), record.weights_id, seed])


LAYER = ("similarity", "operator_norm", "smallest_norm", "bound", "norm", "effective_rank", "zero_rows")
ATTENTION = ("row_sum", "entropy")
NORM_MEASURES = ("pearson", "spearman", "inverse_pearson", "inverse_spearman", "balance")

LayerHistories = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lines with `layers` of each run's history, by run id: diagnostics that were measured during training."""


def layer_table(runs: StoredRuns, layer_histories: LayerHistories | None = None) -> Table:
    """Return a row for each configuration and place: means over seeds of the diagnostics of `tasks.tokens.measuring`.

    With `layer_histories` the values are those measured during training, with a row for each epoch. `row_sum` and
    `entropy` describe the attention of a block. Configurations are named as in `summary`.
    """
    return _layers_table(runs, layer_histories, "place", _layers, (*LAYER, *ATTENTION))


def norm_table(runs: StoredRuns, layer_histories: LayerHistories | None = None) -> Table:
    """Return how the weights after the stem's last activation agree with scale and shift before it (theorem 1).

    There is a row for each configuration and reading of W_c (`backbones.diagnostics.stem`), each value with its
    standard deviation over seeds if there are several. The table is empty if no stem has such weights and scales.
    `layer_histories` is used as in `layer_table`.
    """
    table = _layers_table(runs, layer_histories, "weights W_c", _norms, NORM_MEASURES, deviations=True)
    table.notes += [Note(CORRELATION), Note(BALANCE)] if len(table) else []
    return table


CORRELATION = (
    "pearson, spearman: correlation of the norm of W_c with s_c = sqrt(alpha_c^2 + beta_c^2) over the channels c; "
    "inverse: with 1 / s_c"
)
BALANCE = "balance: 2 sum(norm s_c) / sum(norm^2 + s_c^2), which is 1 where both are equal in every channel"


def _layers_table(
    runs: StoredRuns,
    layer_histories: LayerHistories | None,
    title: str,
    measured: Callable[[Mapping[str, Any]], dict[str, Mapping[str, Any]]],
    names: Sequence[str],
    *,
    deviations: bool = False,
) -> Table:
    """Return a row for each configuration, epoch and place: the mean over seeds of each value, nan if a seed has none.

    Args:
        runs, layer_histories: see `layer_table`.
        title: name of the column of places.
        measured: returns the values at each place from details of a run, or from a line of its history.
        names: names of the values.
        deviations: whether there are standard deviations, too.
    """
    titles, rows = (title,) if layer_histories is None else ("epoch", title), list[dict[str, Any]]()
    for group in runs.groups:
        together: dict[tuple[Any, ...], list[tuple[Unit, Mapping[str, Any]]]] = {}
        for record, unit in zip(group.records, runs.evidence.variant(group.records).labels, strict=True):
            lines = [record.details] if layer_histories is None else layer_histories.get(record.run_id, ())
            for line in lines:
                for place, values in measured(line).items():
                    key = (line["epoch"], place) if layer_histories else (place,)
                    together.setdefault(key, []).append((unit, values))
        for key, members in together.items():
            units = values_by_key(members)
            row = {**columns.group_cells(group), "seeds": len(units), **dict(zip(titles, key, strict=True))}
            for name in names:
                means = [fmean(_number(values, name) for values in of_unit) for of_unit in units.values()]
                row[name], deviation = mean_and_deviation(means)
                row |= {f"{name} sd": deviation} if deviations else {}
            rows.append(row | columns.run_ids(group.records))
    described = columns.significant([*names, *(f"{name} sd" for name in names)])
    return columns.without_unused(Table.from_rows(rows, described))


def _number(values: Mapping[str, Any], name: str) -> float:
    """Return a value, nan if it is missing."""
    return math.nan if (number := values.get(name)) is None else float(number)


def _layers(facts: Mapping[str, Any]) -> dict[str, Any]:
    attention = {layer["place"]: layer for layer in facts.get("attention") or ()}
    return {layer["place"]: {**attention.get(layer["place"], {}), **layer} for layer in facts.get("layers") or ()}


def _norms(facts: Mapping[str, Any]) -> dict[str, Any]:
    last = (facts.get("stem") or {}).get("last_activation") or {}
    return {weights["of"]: weights for weights in last.get("weights", ()) if "balance" in weights}
