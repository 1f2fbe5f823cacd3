"""Scores against operations and hours, and what a step of one variant costs beside one of another. Imports no torch.

"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586, Figure 1) plots scores against hours of one kind
of device; here operations are the cost, which no machine changes. Wall times of runs are never compared: they say what
else the machine did. `transfer.doctor.speed_pairs` measures two models in turns in one process.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transfer.comparison.pairing import MatchedRuns
from transfer.core.errors import UserError
from transfer.core.files import parse_json, write_atomic
from transfer.records.comparability import shown_fields
from transfer.records.evidence import Arm, Evidence
from transfer.records.grouping import Group
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import group_cells, run_ids, significant
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation

COSTS = ("gflops", "params_million")
HOURS = ("run_hours", "pretrain_hours", "total_hours")


def cost_table(runs: RunSet) -> Table:
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
    fronts: dict[Any, list[dict[str, Any]]] = {}
    for group, row in zip(groups, rows, strict=True):
        key = (group.first.primary, *shown_fields(group.first), str(group.protocol))
        fronts.setdefault(key, []).append(row)
    for front in fronts.values():
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
    done = [record for record in records if not record.training_failed] or records  # failed runs are short
    gflops, params = (_mean(name, done) for name in ("gflops", "params"))
    return {"gflops": gflops, "params_million": params / 1e6, **_hours(done, evidence)}


def _hours(records: Sequence[Record], evidence: Evidence) -> dict[str, Any]:
    before, kinds = [], set()
    for record in records:
        chain = evidence.lineage(record)
        kinds |= {kind_of_hours(run) for run in (record, *chain)}
        unknown = (chain[-1] if chain else record).weights_id != "random"
        before.append(math.nan if unknown else math.fsum(hours(run) for run in chain))
    of_runs, earlier = (mean_and_deviation(values)[0] for values in ([*map(hours, records)], before))
    found = (math.nan,) * 3 if len(kinds) > 1 else (of_runs, earlier, of_runs + earlier)
    return dict(zip(HOURS, found, strict=True)) | {"hours_of": "mixed" if len(kinds) > 1 else kinds.pop()}


def hours(record: Record) -> float:
    """Return the GPU hours of a run; on CPUs the core hours, over threads and loader processes of each rank.

    The hours in which other runs extracted features that this run read from a store are included; nan where hours are
    not recorded.
    """
    own, found = record.cost.get("device_hours"), record.cost.get("found_hours", 0.0)
    if own is None or found is None:
        return math.nan
    cores = (record.environment.get("threads") or 1) + (record.environment.get("workers") or 0)
    return float(own) * (1 if kind_of_hours(record) == "GPU" else cores) + float(found)


def kind_of_hours(record: Record) -> str:
    """Return "GPU" or "core", by the type of the device."""
    return "GPU" if record.environment.get("device_type") == "cuda" else "core"


def _mean(name: str, records: Sequence[Record]) -> float:
    """Return the mean of a cost over the records that have it."""
    return mean_and_deviation([float(record.cost[name]) for record in records if record.cost.get(name) is not None])[0]


def pareto(scores: Sequence[float], costs: Sequence[float]) -> list[bool]:
    """Return for each point whether it is on the Pareto front; a point with nan never is.

    A point is on the front if no other has a higher score at no higher cost, or the same score at a lower cost. Nine
    digits count: means that are equal in exact arithmetic differ by some 1e-15 as floating-point numbers.
    """
    points = [(float(f"{score:.9g}"), float(f"{cost:.9g}")) for score, cost in zip(scores, costs, strict=True)]
    return [
        not math.isnan(score + cost)
        and not any(s >= score and c <= cost and (s > score or c < cost) for s, c in points)
        for score, cost in points
    ]


KEPT = "costs.json"
"""File of a sweep or a folder of runs with what was measured for its report."""
UNMEASURED = "; measure time: --measure-cost"
"""What stands in the place of a cost ratio that nobody has measured."""
RATIOS = ("training", "forward")


@dataclass(frozen=True)
class Ratio:
    """Time of an image in the first variant over that in the second: median and quartiles over rounds A B B A."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        """Return "1.04 (quartiles 1.03 to 1.06)"."""
        return f"{self.median:.2f} (quartiles {self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class CostRatio:
    """Cost of the model of one run beside that of another.

    Attributes:
        forward: of a forward pass.
        training: of a training step; None where a run trains nothing.
        batch: images in a step.
        clock: what was measured, such as "CPU time of one thread".
        device: name of the processor or GPU.
    """

    forward: Ratio
    training: Ratio | None
    batch: int
    clock: str
    device: str


@dataclass
class CostRatios:
    """Measured cost ratios, each pair of models once; a pair is measured again once `costs.json` is deleted.

    Attributes:
        measure: measures the first of two runs beside the second; None: only what is known is shown.
        known: cost ratio by pair of models, or the reason why there is none.
    """

    measure: Callable[[Record, Record], CostRatio] | None = None
    known: dict[str, CostRatio | str] = field(default_factory=dict)

    def read(self, folder: Path) -> None:
        """Take up what was measured for the report of the runs or the sweep in a folder."""
        kept = parse_json((folder / KEPT).read_bytes()) if (folder / KEPT).is_file() else {}
        for key, values in kept.items():
            ratios = {name: values[name] and Ratio(**values[name]) for name in RATIOS}
            self.known[key] = CostRatio(**values | ratios)

    def write(self, folder: Path) -> None:
        """Keep what was measured, for further reports of the runs or the sweep in a folder."""
        kept = {key: asdict(ratio) for key, ratio in self.known.items() if isinstance(ratio, CostRatio)}
        if kept:
            write_atomic(folder / KEPT, json.dumps(kept, indent=1).encode())

    def of(self, a: Record, b: Record) -> CostRatio | str | None:
        """Return the cost of one run's model beside another's, `UNMEASURED`, or why it cannot be measured.

        None: both have the same model.
        """
        first, second = _model(a), _model(b)
        key = json.dumps([first, second], sort_keys=True)
        if key not in self.known and self.measure and first != second:
            try:
                self.known[key] = self.measure(a, b)
            except UserError as error:
                self.known[key] = str(error).splitlines()[0]
        return self.known.get(key, UNMEASURED if first != second else None)

    def of_matches(self, matches: Iterable[MatchedRuns]) -> list[tuple[str, CostRatio | str]]:
        """Return (tasks and datasets, cost ratio or why there is none), equal pairs of models once."""
        found: dict[int, tuple[list[str], CostRatio | str]] = {}
        for matched in matches:
            ratio = self.of(*(runs[0].record for runs in matched.variants))
            if ratio is not None:
                found.setdefault(id(ratio), ([], ratio))[0].append(matched.label)
        return [(", ".join(labels), ratio) for labels, ratio in found.values()]


def image_size(record: Record) -> tuple[int, int]:
    """Return (H, W) in pixels of the images of a run; 224 where the task has no option `size`."""
    size = record.options.get("size") or 224
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def step_images(record: Record) -> int:
    """Return the images that a process sends through the model at once: a micro-batch, or what is scored at once."""
    options = record.options
    identities = options.get("num_identities", 0) * options.get("num_instances", 0)  # of ReID's sampler
    batch = options.get("batch_size") or identities
    if record.environment.get("precision") is None or not batch:
        return int(options.get("eval_batch_size") or 1)
    processes = record.environment.get("world_size") or 1
    return max(1, int(batch) // (processes * (options.get("grad_accum_steps") or 1)))


def _model(record: Record) -> list[Any]:
    """Return what the cost of a run's step depends on, as plain values."""
    parts = {name: value for name, value in record.backbone.items() if name not in ("name", "weights", "load")}
    precisions = [record.environment.get(name) for name in ("precision", "eval_precision")]
    around = record.run_key_content.get("options") if record.task == "detect" else None
    return [parts, *image_size(record), step_images(record), *precisions, around]


def ratio_table(matches: Iterable[MatchedRuns], ratios: CostRatios) -> Table:
    """Return a row for each pair of models: what a step of the first variant takes, as a multiple of one of the second.

    Columns: `runs of` (tasks and datasets), `batch`, `training` and `forward` (medians over rounds A B B A), their
    quartiles `... low` and `... high`, `rounds`, `measured` (which time) and `device`.
    """
    rows, notes = [], []
    for label, ratio in ratios.of_matches(matches):
        if isinstance(ratio, str):
            notes += [Note(f"not measured: {ratio}", label)] * (ratio != UNMEASURED)
            continue
        row: dict[str, Any] = {"runs of": label, "batch": ratio.batch}
        for name in RATIOS:
            part: Ratio | None = getattr(ratio, name)
            row |= {name: part and part.median, f"{name} low": part and part.low, f"{name} high": part and part.high}
        rows.append(row | {"rounds": ratio.forward.rounds, "measured": ratio.clock, "device": ratio.device})
    return Table.from_rows(rows, notes=notes)
