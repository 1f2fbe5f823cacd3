"""Scores against their costs: operations and parameters, with the hours of the runs. Imports no torch.

"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586, Figure 1) plots scores against hours of one kind
of device; here operations are the cost, which no machine changes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from transfer.records.comparability import comparable_with
from transfer.records.evidence import Arm, Evidence
from transfer.records.grouping import Group
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import group_cells, run_ids, significant
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation

COSTS = ("gflops", "params_million")
"""Columns in which rows are compared; less is better in each. Hours are not, see `cost_table`."""
TIE = 1e-9
"""Largest difference at which two scores, in points, or two costs, relative to their size, count as equal: means that
are equal in exact arithmetic differ by some 1e-15 as floating-point numbers."""
HOURS = ("run_hours", "run_hours_sd", "pretrain_hours", "total_hours")
RATES = ("images_per_second", "images_per_second_sd")
"""Columns of wall times."""


def cost_table(runs: RunSet) -> Table:
    """Return one row per configuration: its primary score and its costs, which are means over the completed runs.

    Hours and rates are wall times of the runs, with their standard deviation (n - 1) over these. They depend on what
    else a machine did, and so say nothing of one row beside another; operations do, and `CostRatios`.

    Columns:
        `task dataset backbone pretraining protocol`;
        `metric`, `score`, `score_sd`: mean and standard deviation in percent over seeds with a score, nan without any;
        `seeds`: number of seeds with a score, as `transfer.records.evidence.Evidence.variant` counts them;
        `failed`: number of seeds without a score, including those whose pretraining failed;
        `gflops`: 10^9 FLOPs of a forward pass of one image, two per multiply-add;
        `params_million`;
        `run_hours`, `run_hours_sd`: of one run: training, evaluation and feature extraction, even if another run
        extracted them;
        `pretrain_hours`: of all runs that produced the weights; 0 for random weights, nan for unknown ones;
        `total_hours`: their sum;
        `hours_of`: "GPU", "core", or "mixed", for which the hours are nan;
        `images_per_second`, `images_per_second_sd`: in training;
        `pareto_<cost>` for each of `COSTS`: whether no comparable row has a better score at no higher cost, or the same
        score at a lower one; of a row that is comparable with no other, False;
        `run`: ids of the runs.
    """
    evidence, groups = runs.evidence, runs.groups
    rows = [_row(group, evidence.variant(group.records), evidence) for group in groups]
    for cost in COSTS:
        _mark_front(groups, rows, cost)
    rows = [row | run_ids(group.records) for row, group in zip(rows, groups, strict=True)]
    notes = _feature_notes(runs.records)
    return Table.from_rows(rows, significant([*COSTS, *HOURS, *RATES]), notes)


def _mark_front(groups: Sequence[Group], rows: Sequence[dict[str, Any]], cost: str) -> None:
    """Set `pareto_<cost>` of each row: whether it is on the Pareto front of the rows comparable with it."""
    fronts: dict[Any, list[int]] = {}
    keys = comparable_with([group.first for group in groups])
    for place, (key, group) in enumerate(zip(keys, groups, strict=True)):
        fronts.setdefault((group.first.primary, key), []).append(place)
    for places in fronts.values():
        of_primary = (groups[place].first.metrics.get(groups[place].first.primary, {}) for place in places)
        signs = [-1 if metric.get("direction") == "lower" else 1 for metric in of_primary]
        scores = [sign * rows[place]["score"] for sign, place in zip(signs, places, strict=True)]
        flags = pareto(scores, [rows[place][cost] for place in places])
        alone = sum(not math.isnan(score) for score in scores) < 2  # one point does not make a front
        for place, flag in zip(places, flags, strict=True):
            rows[place][f"pareto_{cost}"] = flag and not alone


def _feature_notes(records: Sequence[Record]) -> list[Note]:
    """Return the notes on hours of runs that read their features from a store."""
    stored = [stored_feature_hours(record) for record in records]
    unknown, counted = sum(map(math.isnan, stored)), sum(hours > 0 for hours in stored)
    texts = [f"hours of {counted} runs are with those that other runs took to extract their features"] * bool(counted)
    why = "their features were in the store, which does not say what they took"
    texts += [f"hours of {unknown} runs are not known: {why}"] * bool(unknown)
    return [Note(text) for text in texts]


def _row(group: Group, variant: Arm, evidence: Evidence) -> dict[str, Any]:
    records, first = group.records, group.first
    metric = first.primary
    scores = variant.values(metric)
    mean, deviation = mean_and_deviation(scores)
    done = [record for record in records if not record.training_failed] or records  # a break-down is short
    return {
        "task": first.task,
        **group_cells(group),
        "metric": metric,
        "score": mean,
        "score_sd": deviation,
        "seeds": len(scores),
        "failed": variant.breakdowns[0],
        "gflops": _mean("gflops", done)[0],
        "params_million": _mean("params", done)[0] / 1e6,
        **_hours(done, evidence),
        **dict(zip(RATES, _mean("images_per_second", done), strict=True)),
    }


def _hours(records: Sequence[Record], evidence: Evidence) -> dict[str, Any]:
    of_runs, before, kinds = [], [], set()
    for record in records:
        chain = evidence.lineage(record)
        kinds |= {kind_of_hours(run) for run in (record, *chain)}
        of_runs.append(hours(record))
        unknown = (chain[-1] if chain else record).weights_id != "random"
        before.append(math.nan if unknown else math.fsum(hours(run) for run in chain))
    if len(kinds) > 1:
        return dict.fromkeys(HOURS, math.nan) | {"hours_of": "mixed"}
    (mean, deviation), earlier = mean_and_deviation(of_runs), mean_and_deviation(before)[0]
    return dict(zip(HOURS, (mean, deviation, earlier, mean + earlier), strict=True)) | {"hours_of": kinds.pop()}


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


def _mean(name: str, records: Sequence[Record]) -> tuple[float, float]:
    """Return mean and standard deviation of a cost over the records that have it."""
    return mean_and_deviation([float(record.cost[name]) for record in records if record.cost.get(name) is not None])


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
