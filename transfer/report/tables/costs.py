"""Scores against what they cost: operations, parameters, hours with those of pretraining. Imports no torch.

The axis of "Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586, Figure 1), for any task.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transfer.records.evidence import Arm, Evidence
from transfer.records.fields import check_fields, value_of
from transfer.records.grouping import Group
from transfer.records.protocol import digest
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import group_cells, grouping_notes, run_ids, score_unit
from transfer.report.tables.table import SIGNIFICANT, Column, Note, NoteKind, Table
from transfer.statistics.intervals import mean_and_deviation

COSTS = ("gflops", "params_million", "train_hours", "pretrain_hours", "total_hours", "ms_per_image")
"""Columns that can be the horizontal axis; less is better in each."""
KIND_OF = {"train_hours": "train_hours_of", "pretrain_hours": "pretrain_hours_of", "total_hours": "hours_of"}
"""The columns that say of what kind the hours of a cost are; hours of unlike kinds are never set against each other."""
TIE = 1e-9
"""Scores that differ by no more points are equal, and so are costs relative to their size: means that are equal on
paper differ by some 1e-15 as floating-point numbers."""
_GPU = re.compile(r"nvidia|geforce|tesla|quadro|titan|instinct|radeon|\brtx\b|\b[ahbv]\d{3}\b", re.IGNORECASE)


UNITS = {
    "gflops": "GFLOPs",
    "params_million": "millions",
    "train_hours": "hours",
    "pretrain_hours": "hours",
    "total_hours": "hours",
    "ms_per_image": "milliseconds",
}


@dataclass
class CostTable(Table):
    """Scores against costs, a row per configuration.

    Attributes:
        by: the fields that a plot has a series for.
    """

    by: tuple[str, ...] = ()


def cost_table(runs: RunSet, by: Sequence[str] = (), *, across: Sequence[str] = ()) -> CostTable:
    """Return one row per configuration: its primary score and what it took. What is plotted, to the digit.

    Columns: `task dataset backbone pretraining protocol`, those of `by`; `metric`, `score` and `score_sd` (percent,
    over seeds with a score; nan where there is none), `seeds` (of these; what counts as one is said by
    `transfer.records.evidence.Evidence.arm`), `broke_down` (seeds without one, those included whose pretraining broke
    down); `gflops` (of one image), `params_million`, `train_hours` (of one run with its evaluation and the extraction
    of its features, by whichever run that was), `pretrain_hours` (of all runs that the weights come from; 0 for random
    weights, nan where they are not known), `total_hours`; `hours_of`, `train_hours_of`, `pretrain_hours_of` ("GPU",
    "core", or "mixed", and then there is no number); `images_per_second` (in training), `ms_per_image` (its inverse);
    `pareto_<cost>` for each of `COSTS`: whether no row that it can be compared with has a better score for no more, or
    the same for less; `run` (ids). Costs are means over the runs that completed.

    Args:
        by: fields to have as columns, for a plot's series; see `transfer.records.fields.value_of`.
        across: options in which rows may differ and yet be compared, as the rate; else they are of equal protocol.

    Raises:
        UsageError: an unknown field in `by` or `across`.
    """
    evidence, grouping = runs.evidence, runs.grouping
    check_fields([*by, *across], runs.records, runs.exports)
    rows = [_row(group, evidence.arm(group.records), by, evidence) for group in grouping.groups]
    for cost in COSTS:
        _mark_front(grouping.groups, rows, cost, across)
    rows = [row | run_ids(group.records) for row, group in zip(rows, grouping.groups, strict=True)]
    columns = [Column(name, score_unit(runs.records)) for name in ("score", "score_sd")]
    columns += [Column(name, significant_digits=SIGNIFICANT) for name in by]
    columns += [Column(name, UNITS[name], "lower", significant_digits=SIGNIFICANT) for name in COSTS]
    columns.append(Column("images_per_second", "images per second", "higher", significant_digits=SIGNIFICANT))
    table = Table.of(rows, columns, grouping_notes(grouping) + _feature_notes(runs.records))
    return CostTable(table.columns, table.rows, table.notes, tuple(by))


def _mark_front(groups: Sequence[Group], rows: Sequence[dict[str, Any]], cost: str, across: Sequence[str]) -> None:
    """Adds to each row whether it is on the Pareto front among the rows that it can be compared with."""
    fronts: dict[Any, list[int]] = {}
    for place, (group, row) in enumerate(zip(groups, rows, strict=True)):
        kind = row.get(KIND_OF.get(cost, ""))
        fronts.setdefault((group.first.primary, digest(group.first, across), kind), []).append(place)
    for places in fronts.values():
        signs = [-1 if _lower_is_better(groups[place]) else 1 for place in places]
        scores = [sign * rows[place]["score"] for sign, place in zip(signs, places, strict=True)]
        flags = pareto(scores, [rows[place][cost] for place in places])
        for place, flag in zip(places, flags, strict=True):
            rows[place][f"pareto_{cost}"] = flag


def _lower_is_better(group: Group) -> bool:
    return group.first.metrics.get(group.first.primary, {}).get("direction") == "lower"


def _feature_notes(records: Sequence[Record]) -> list[Note]:
    """How the hours of runs that found their features in a store are to be read."""
    hours_found = [found_hours(record) for record in records]
    unknown, counted = sum(map(math.isnan, hours_found)), sum(hours > 0 for hours in hours_found)
    texts = [f"hours of {counted} runs are with those that other runs took to extract their features"] * bool(counted)
    why = "their features were in the store, which does not say what they took"
    texts += [f"hours of {unknown} runs are not known: {why}"] * bool(unknown)
    return [Note(NoteKind.READING, text, columns=("train_hours", "total_hours")) for text in texts]


def _row(group: Group, arm: Arm, by: Sequence[str], evidence: Evidence) -> dict[str, Any]:
    records, first = group.records, group.first
    metric = first.primary
    scores = arm.values(metric)
    mean, deviation = mean_and_deviation(scores)
    done = [record for record in records if not record.training_failed] or records  # a break-down is short
    rate = _mean([record.cost.get("images_per_second") for record in done])
    return {
        "task": first.task,
        **group_cells(group),
        **{name: value_of(first, name, evidence.exports) for name in by},
        "metric": metric,
        "score": mean,
        "score_sd": deviation,
        "seeds": len(scores),
        "broke_down": arm.breakdowns[0],
        "gflops": _mean([record.cost.get("gflops") for record in done]),
        "params_million": _mean([record.cost.get("params") for record in done]) / 1e6,
        **_hours(done, evidence),
        "images_per_second": rate,
        "ms_per_image": 1000 / rate if rate else math.nan,
    }


def _hours(records: Sequence[Record], evidence: Evidence) -> dict[str, Any]:
    own, before, kinds, kinds_before = [], [], set(), set()
    for record in records:
        chain = evidence.lineage(record)
        kinds.add(kind_of_hours(record))
        kinds_before |= {kind_of_hours(run) for run in chain}
        own.append(hours(record))
        unknown = (chain[-1] if chain else record).weights_id != "random"
        before.append(math.nan if unknown else math.fsum(hours(run) for run in chain))
    train, pretrain = _of_one_kind(own, kinds), _of_one_kind(before, kinds_before or kinds)
    both = kinds | kinds_before
    return {
        "train_hours": train,
        "pretrain_hours": pretrain,
        "total_hours": math.nan if len(both) > 1 else train + pretrain,
        "hours_of": _kind(both),
        "train_hours_of": _kind(kinds),
        "pretrain_hours_of": _kind(kinds_before or kinds),
    }


def _kind(kinds: Collection[str]) -> str:
    return "mixed" if len(kinds) > 1 else next(iter(kinds))


def _of_one_kind(values: Sequence[float], kinds: Collection[str]) -> float:
    """The mean of hours, nan where some are of GPUs and some of cores."""
    return math.nan if len(kinds) > 1 else math.fsum(values) / len(values)


def hours(record: Record) -> float:
    """GPU hours of a run, or core hours where it ran on CPUs: threads and loader processes of each rank count.

    What other runs took to extract features that this one found in the store counts as its own.
    """
    recorded = record.cost.get("device_hours")
    of_devices = math.nan if recorded is None else float(recorded)
    environment = record.environment
    cores = (environment.get("threads") or 1) + (environment.get("workers") or 0)
    return of_devices * (1 if kind_of_hours(record) == "GPU" else cores) + found_hours(record)


def found_hours(record: Record) -> float:
    """Of `hours`, those that other runs took to extract its features; nan where that is not known."""
    if "found_hours" in record.cost:
        recorded = record.cost["found_hours"]
        return math.nan if recorded is None else float(recorded)
    features = record.details.get("features")  # of an older record
    whole = not isinstance(features, dict) or features.get("computed") == features.get("images")
    return 0.0 if whole else math.nan


def kind_of_hours(record: Record) -> str:
    """ "GPU" or "core", by the kind of device; by its name where the record does not say the kind."""
    kind = record.environment.get("device_type")
    on_gpu = kind == "cuda" if kind else bool(_GPU.search(str(record.environment.get("device"))))
    return "GPU" if on_gpu else "core"


def _mean(values: Sequence[float | None]) -> float:
    return mean_and_deviation([value for value in values if value is not None])[0]


def pareto(scores: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """For each point whether none has a higher score at no more cost, or the same score at less; nan is never on it.

    Numbers within `TIE` of each other are the same.
    """
    score, cost = np.asarray(scores, dtype=float), np.asarray(costs, dtype=float)
    flags = []
    for own, price in zip(score, cost, strict=True):
        same, level = np.abs(score - own) <= TIE, np.abs(cost - price) <= TIE * np.abs(price)
        higher, less = (score > own) & ~same, (cost < price) & ~level
        beaten = (higher & (less | level)) | ((same | higher) & less)
        flags.append(not (beaten.any() or np.isnan(own) or np.isnan(price)))
    return flags
