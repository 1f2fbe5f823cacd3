"""Scores against operations and hours, and what a step of one variant costs beside one of another. Imports no torch.

"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586, Figure 1) plots scores against hours of one kind
of device; here operations are the cost, which no machine changes. Wall times of runs are never compared: they say what
else the machine did. `transfer.measure.steps` measures two models in turns in one process.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from transfer.comparison.pairing import MatchedRuns
from transfer.core.grouped import values_by_key
from transfer.measure.ratios import RATIOS, UNMEASURED, CostRatios, Ratio
from transfer.records.evidence import Arm, Evidence
from transfer.records.grouping import Group, shown_fields
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.report.tables.columns import completed, group_cells, mean_cost, run_ids, significant
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation

COSTS = ("gflops", "params_million")
HOURS = ("run_hours", "pretrain_hours", "total_hours")


def cost_table(runs: StoredRuns) -> Table:
    """Return one row per configuration: its primary score and its costs, which are means over the completed runs.

    Columns:
        `task dataset backbone pretraining protocol`;
        `metric`, `score`, `score_sd`: mean and standard deviation in percent over seeds with a score, nan without any;
        `seeds`: number of seeds with a score, as `transfer.records.evidence.Evidence.variant` counts them;
        `failed`: number of seeds without a score, including those whose pretraining failed;
        `gflops`: 10^9 FLOPs of a forward pass of one image, two per multiply-add;
        `params_million`;
        `run_hours`: of one run: training, evaluation and feature extraction, even if another run extracted them; nan
        where that is not known;
        `pretrain_hours`: of all runs that produced the weights; 0 for random weights, nan for unknown ones;
        `total_hours`: their sum;
        `hours_of`: "GPU", "core", or "mixed", for which the hours are nan;
        `pareto_gflops`: whether no comparable row has a better score at no more FLOPs, or the same score at fewer; of a
        row that is comparable with no other, False;
        `run`: ids of the runs.
    """
    groups = runs.groups
    rows = [_row(group, runs.evidence.variant(group.records), runs.evidence) for group in groups]
    comparable = ((group.first.primary, *shown_fields(group.first), str(group.protocol)) for group in groups)
    for front in values_by_key(zip(comparable, rows, strict=True)).values():
        flags = pareto([row.pop("better") for row in front], [row["gflops"] for row in front])
        alone = sum(not math.isnan(row["score"]) for row in front) < 2  # one point does not make a front
        for row, flag in zip(front, flags, strict=True):
            row["pareto_gflops"] = flag and not alone
    rows = [row | run_ids(group.records) for row, group in zip(rows, groups, strict=True)]
    return Table.from_rows(rows, significant([*COSTS, *HOURS]))


def _row(group: Group, variant: Arm, evidence: Evidence) -> dict[str, Any]:
    """Return the row of a configuration; `better` is its score, or less it where lower ones are better."""
    first, metric = group.first, group.first.primary
    mean, deviation = mean_and_deviation(scores := variant.values(metric))
    return {
        "task": first.task,
        **group_cells(group),
        "metric": metric,
        "score": mean,
        "score_sd": deviation,
        "seeds": len(scores),
        "failed": variant.breakdowns[0],
        **mean_costs(group.records, evidence),
        "better": -mean if first.metrics.get(metric, {}).get("direction") == "lower" else mean,
    }


def mean_costs(records: Sequence[Record], evidence: Evidence) -> dict[str, Any]:
    """Return the columns of `cost_table` from `gflops` to `hours_of`, as means over the completed runs among some."""
    gflops, params = (mean_cost(name, records) for name in ("gflops", "params"))
    return {"gflops": gflops, "params_million": params / 1e6, **_hours(completed(records), evidence)}


def _hours(records: Sequence[Record], evidence: Evidence) -> dict[str, Any]:
    before, kinds = [], set()
    for record in records:
        chain = evidence.lineage(record)
        kinds |= {run.kind_of_hours for run in (record, *chain)}
        unknown = (chain[-1] if chain else record).weights_id != "random"
        before.append(math.nan if unknown else math.fsum(run.hours for run in chain))
    of_runs, earlier = (mean_and_deviation(values)[0] for values in ([run.hours for run in records], before))
    if len(kinds) > 1:
        return dict.fromkeys(HOURS, math.nan) | {"hours_of": "mixed"}
    return dict(zip(HOURS, (of_runs, earlier, of_runs + earlier), strict=True)) | {"hours_of": kinds.pop()}


def pareto(scores: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Return for each point whether it is on the Pareto front; a point with nan never is.

    A point is on the front if no other has a higher score at no higher cost, or the same score at a lower cost. Nine
    digits count: means that are equal in exact arithmetic differ by some 1e-15 as floating-point numbers.
    """
    points = [(float(f"{score:.9g}"), float(f"{cost:.9g}")) for score, cost in zip(scores, costs, strict=True)]

    def is_beaten(score: float, cost: float) -> bool:
        as_good = (point for point in points if point[0] >= score)
        return any(point[1] <= cost and point != (score, cost) for point in as_good)

    return [not math.isnan(score + cost) and not is_beaten(score, cost) for score, cost in points]


def ratio_table(matches: Iterable[MatchedRuns], ratios: CostRatios) -> Table:
    """Return a row for each pair of models: what a step of the first variant takes, as a multiple of one of the second.

    Columns: `runs of` (tasks and datasets), `batch`, `training` and `forward` (medians over rounds A B B A), their
    quartiles `... low` and `... high`, `rounds`, `measured` (which time) and `device`.
    """
    rows, notes = [], []
    for label, ratio in ratios.of_matches(matches):
        if isinstance(ratio, str):
            notes += [Note(f"not measured: {ratio}", label)] if ratio != UNMEASURED else []
            continue
        row: dict[str, Any] = {"runs of": label, "batch": ratio.batch}
        for name in RATIOS:
            part: Ratio | None = getattr(ratio, name)
            row |= {name: part and part.median, f"{name} low": part and part.low, f"{name} high": part and part.high}
        rows.append(row | {"rounds": ratio.forward.rounds, "measured": ratio.clock, "device": ratio.device})
    return Table.from_rows(rows, notes=notes)
