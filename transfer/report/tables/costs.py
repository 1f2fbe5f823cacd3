"""Scores against their costs: operations, parameters, and hours including pretraining. Imports no torch.

"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586, Figure 1) plots scores so; here for any task.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from transfer.records.comparability import comparable_with
from transfer.records.evidence import Arm, Evidence
from transfer.records.grouping import Group
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import group_cells, grouping_notes, run_ids, score_unit
from transfer.report.tables.table import SIGNIFICANT, Column, Note, Table
from transfer.statistics.intervals import mean_and_deviation

COSTS = ("gflops", "params_million", "train_hours", "pretrain_hours", "total_hours", "ms_per_image")
"""Columns that can be the horizontal axis; less is better in each."""
KIND_OF = {"train_hours": "train_hours_of", "pretrain_hours": "pretrain_hours_of", "total_hours": "hours_of"}
"""Columns with the kind of device of each column of hours; hours of different kinds are never compared."""
TIE = 1e-9
"""Largest difference at which two scores, in points, or two costs, relative to their size, count as equal: means that
are equal in exact arithmetic differ by some 1e-15 as floating-point numbers."""
UNITS = {
    "gflops": "GFLOPs",
    "params_million": "millions",
    "train_hours": "hours",
    "pretrain_hours": "hours",
    "total_hours": "hours",
    "ms_per_image": "milliseconds",
}


def cost_table(runs: RunSet) -> Table:
    """Return one row per configuration: its primary score and its costs, which are means over the completed runs.

    Columns:
        `task dataset backbone pretraining protocol`;
        `metric`, `score`, `score_sd`: mean and standard deviation in percent over seeds with a score, nan without any;
        `seeds`: number of seeds with a score, as `transfer.records.evidence.Evidence.arm` counts them;
        `broke_down`: number of seeds without a score, including those whose pretraining broke down;
        `gflops`: for one image;
        `params_million`;
        `train_hours`: of one run with its evaluation and feature extraction, even if another run extracted them;
        `pretrain_hours`: of all runs that produced the weights; 0 for random weights, nan for unknown ones;
        `total_hours`;
        `hours_of`, `train_hours_of`, `pretrain_hours_of`: "GPU", "core", or "mixed", for which the hours are nan;
        `images_per_second`: in training; `ms_per_image` is its inverse;
        `pareto_<cost>` for each of `COSTS`: whether no comparable row has a better score at no higher cost, or the same
        score at a lower one;
        `run`: ids of the runs.
    """
    evidence, grouping = runs.evidence, runs.grouping
    rows = [_row(group, evidence.arm(group.records), evidence) for group in grouping.groups]
    for cost in COSTS:
        _mark_front(grouping.groups, rows, cost)
    rows = [row | run_ids(group.records) for row, group in zip(rows, grouping.groups, strict=True)]
    columns = [Column(name, score_unit(runs.records)) for name in ("score", "score_sd")]
    columns += [Column(name, UNITS[name], "lower", significant_digits=SIGNIFICANT) for name in COSTS]
    columns.append(Column("images_per_second", "images per second", "higher", significant_digits=SIGNIFICANT))
    return Table.from_rows(rows, columns, grouping_notes(grouping) + _feature_notes(runs.records))


def _mark_front(groups: Sequence[Group], rows: Sequence[dict[str, Any]], cost: str) -> None:
    """Set `pareto_<cost>` of each row: whether it is on the Pareto front of the rows comparable with it."""
    fronts: dict[Any, list[int]] = {}
    keys = comparable_with([group.first for group in groups])
    for place, (key, group, row) in enumerate(zip(keys, groups, rows, strict=True)):
        kind = row.get(KIND_OF.get(cost, ""))
        fronts.setdefault((group.first.primary, key, kind), []).append(place)
    for places in fronts.values():
        signs = [-1 if _lower_is_better(groups[place]) else 1 for place in places]
        scores = [sign * rows[place]["score"] for sign, place in zip(signs, places, strict=True)]
        flags = pareto(scores, [rows[place][cost] for place in places])
        for place, flag in zip(places, flags, strict=True):
            rows[place][f"pareto_{cost}"] = flag


def _lower_is_better(group: Group) -> bool:
    return group.first.metrics.get(group.first.primary, {}).get("direction") == "lower"


def _feature_notes(records: Sequence[Record]) -> list[Note]:
    """Return the notes on hours of runs that read their features from a store."""
    stored = [stored_feature_hours(record) for record in records]
    unknown, counted = sum(map(math.isnan, stored)), sum(hours > 0 for hours in stored)
    texts = [f"hours of {counted} runs are with those that other runs took to extract their features"] * bool(counted)
    why = "their features were in the store, which does not say what they took"
    texts += [f"hours of {unknown} runs are not known: {why}"] * bool(unknown)
    return [Note(text) for text in texts]


def _row(group: Group, arm: Arm, evidence: Evidence) -> dict[str, Any]:
    records, first = group.records, group.first
    metric = first.primary
    scores = arm.values(metric)
    mean, deviation = mean_and_deviation(scores)
    done = [record for record in records if not record.training_failed] or records  # a break-down is short
    rate = _mean([record.cost.get("images_per_second") for record in done])
    return {
        "task": first.task,
        **group_cells(group),
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
    of_runs, before, kinds, kinds_before = [], [], set(), set()
    for record in records:
        chain = evidence.lineage(record)
        kinds.add(kind_of_hours(record))
        kinds_before |= {kind_of_hours(run) for run in chain}
        of_runs.append(hours(record))
        unknown = (chain[-1] if chain else record).weights_id != "random"
        before.append(math.nan if unknown else math.fsum(hours(run) for run in chain))
    train, pretrain = _mean_hours(of_runs, kinds), _mean_hours(before, kinds_before or kinds)
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


def _mean_hours(values: Sequence[float], kinds: Collection[str]) -> float:
    """Return the mean of hours, nan for a mixture of GPU and core hours."""
    return math.nan if len(kinds) > 1 else math.fsum(values) / len(values)


def hours(record: Record) -> float:
    """Return the GPU hours of a run; on CPUs the core hours, over threads and loader processes of each rank.

    The hours in which other runs extracted features that this run read from a store are included.
    """
    recorded = record.cost.get("device_hours")
    of_devices = math.nan if recorded is None else float(recorded)
    environment = record.environment
    cores = (environment.get("threads") or 1) + (environment.get("workers") or 0)
    return of_devices * (1 if kind_of_hours(record) == "GPU" else cores) + stored_feature_hours(record)


def stored_feature_hours(record: Record) -> float:
    """Return the hours in which other runs extracted the features of a run; nan where they are not recorded."""
    recorded = record.cost.get("found_hours", 0.0)
    return math.nan if recorded is None else float(recorded)


def kind_of_hours(record: Record) -> str:
    """Return "GPU" or "core", by the type of the device."""
    return "GPU" if record.environment.get("device_type") == "cuda" else "core"


def _mean(values: Sequence[float | None]) -> float:
    return mean_and_deviation([value for value in values if value is not None])[0]


def pareto(scores: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Return for each point whether it is on the Pareto front; a point with nan never is.

    A point is on the front if no other has a higher score at no higher cost, or the same score at a lower cost. Numbers
    within `TIE` of each other count as equal.
    """
    score, cost = np.asarray(scores, dtype=float), np.asarray(costs, dtype=float)
    flags = []
    for point_score, point_cost in zip(score, cost, strict=True):
        same_score = np.abs(score - point_score) <= TIE
        same_cost = np.abs(cost - point_cost) <= TIE * np.abs(point_cost)
        higher, less = (score > point_score) & ~same_score, (cost < point_cost) & ~same_cost
        beaten = (higher & (less | same_cost)) | ((same_score | higher) & less)
        flags.append(not (beaten.any() or np.isnan(point_score) or np.isnan(point_cost)))
    return flags
