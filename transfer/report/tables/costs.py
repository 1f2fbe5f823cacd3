"""Scores against what they cost: operations, parameters, hours with those of pretraining. Imports no torch.

The axis of "Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586, Figure 1), for any task.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transfer.records.evidence import Arm, Evidence
from transfer.records.fields import check_fields, value_of
from transfer.records.grouping import Group, grouped
from transfer.records.protocol import digest
from transfer.records.store import Record
from transfer.report.tables.render import NOTES, SIGNIFICANT
from transfer.statistics.intervals import mean_and_deviation

if TYPE_CHECKING:
    import pandas as pd

COSTS = ("gflops", "params_million", "train_hours", "pretrain_hours", "total_hours", "ms_per_image")
"""Columns that can be the horizontal axis; less is better in each."""
KIND_OF = {"train_hours": "train_hours_of", "pretrain_hours": "pretrain_hours_of", "total_hours": "hours_of"}
"""The columns that say of what kind the hours of a cost are; hours of unlike kinds are never set against each other."""
TIE = 1e-9
"""Scores that differ by no more points are equal, and so are costs relative to their size: means that are equal on
paper differ by some 1e-15 as floating-point numbers."""
FEWEST = 4  # points of a fit: three leave its error to one degree of freedom
_GPU = re.compile(r"nvidia|geforce|tesla|quadro|titan|instinct|radeon|\brtx\b|\b[ahbv]\d{3}\b", re.IGNORECASE)


def cost_table(
    records: Sequence[Record],
    by: Sequence[str] = (),
    *,
    known: Sequence[Record] | None = None,
    across: Sequence[str] = (),
) -> "pd.DataFrame":
    """One row per configuration: its primary score and what it took. What is plotted, to the digit.

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
        known: all records at hand, among which the runs are looked for that weights come from; by default `records`.
        across: options in which rows may differ and yet be compared, as the rate; else they are of equal protocol.

    Raises:
        WrongWords: an unknown field in `by` or `across`.
    """
    import pandas as pd

    evidence = Evidence.of(records, known)
    check_fields([*by, *across], records, evidence.exports)
    groups, notes = grouped(records, known)
    lines = [_line(group, evidence.arm(group.records), by, evidence) for group in groups]
    keys = [(group.first.primary, digest(group.first, across)) for group in groups]
    lower = [group.first.metrics.get(group.first.primary, {}).get("direction") == "lower" for group in groups]
    for cost in COSTS:
        fronts: dict[Any, list[int]] = {}
        for place, (key, line) in enumerate(zip(keys, lines, strict=True)):
            fronts.setdefault((key, line.get(KIND_OF.get(cost, ""))), []).append(place)
        for places in fronts.values():
            scores = [-lines[place]["score"] if lower[place] else lines[place]["score"] for place in places]
            flags = pareto(scores, [lines[place][cost] for place in places])
            for place, flag in zip(places, flags, strict=True):
                lines[place][f"pareto_{cost}"] = flag
    table = pd.DataFrame([line | {"run": line.pop("run")} for line in lines])
    shown = [*by, *COSTS, "images_per_second"]
    said = [f"protocol {note}" for note in notes] + _notes_on_features(records)
    table.attrs |= {"by": list(by), NOTES: said, SIGNIFICANT: shown}
    return table


def _notes_on_features(records: Sequence[Record]) -> list[str]:
    """What is said of runs that found features in a store."""
    found = [found_hours(record) for record in records]
    unknown, counted = sum(map(math.isnan, found)), sum(hours > 0 for hours in found)
    notes = [f"hours of {counted} runs are with those that other runs took to extract their features"] * bool(counted)
    why = "their features were in the store, which does not say what they took"
    return notes + [f"hours of {unknown} runs are not known: {why}"] * bool(unknown)


def _line(group: Group, arm: Arm, by: Sequence[str], evidence: Evidence) -> dict[str, Any]:
    records, first = group.records, group.first
    metric = first.primary
    scores = arm.values(metric)
    mean, deviation = mean_and_deviation(scores)
    done = [record for record in records if not record.training_failed] or records  # a break-down is short
    rate = _mean([record.cost.get("images_per_second") for record in done])
    return {
        "task": first.task,
        **{name: getattr(group, name) for name in ("dataset", "backbone", "pretraining", "protocol")},
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
        "run": " ".join(record.run_id for record in records),
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
    found = record.cost.get("device_hours")
    of_devices = math.nan if found is None else float(found)
    environment = record.environment
    cores = (environment.get("threads") or 1) + (environment.get("workers") or 0)
    return of_devices * (1 if kind_of_hours(record) == "GPU" else cores) + found_hours(record)


def found_hours(record: Record) -> float:
    """Of `hours`, those that other runs took to extract its features; nan where that is not known."""
    if "found_hours" in record.cost:
        found = record.cost["found_hours"]
        return math.nan if found is None else float(found)
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


@dataclass(frozen=True)
class CostFit:
    """score = intercept + slope * log10(cost) by least squares, with 95 % intervals by Student's t.

    `slope` is in points of percent for ten times the cost. The intervals take the points as independent and their
    scatter about the line as equal; seeds' own spread does not enter.
    """

    points: int
    intercept: float
    slope: float
    slope_low: float
    slope_high: float
    curve: "pd.DataFrame"
    """Columns `cost score low high`: the line and the interval of its mean."""


def cost_fits(rows: "pd.DataFrame", cost: str = "total_hours") -> dict[tuple[Any, ...], CostFit]:
    """A fit for each task, data set, metric, kind of hours and combination of `by` that has at least `FEWEST` points.

    Args:
        rows: of `cost_table`.
        cost: one of `COSTS`; points without it, at 0 or without a score are left out.
    """
    kind = [KIND_OF[cost]] if cost in KIND_OF else []
    names = ["task", "dataset", "metric", *kind, *rows.attrs.get("by", [])]
    series: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for line in rows.to_dict("records"):
        if line[cost] > 0 and not math.isnan(line["score"]):
            series.setdefault(tuple(line[name] for name in names), []).append((line[cost], line["score"]))
    return {key: found for key, points in series.items() if (found := fit_log(points)) is not None}


def fit_log(points: Sequence[tuple[float, float]], level: float = 0.95, steps: int = 50) -> CostFit | None:
    """The fit through (cost, score) points; None for fewer than `FEWEST` or all at one cost."""
    import pandas as pd
    from scipy.special import stdtrit

    costs, scores = np.array(points, dtype=float).reshape(-1, 2).T
    x = np.log10(costs)
    if len(x) < FEWEST or np.ptp(x) == 0:
        return None
    centre, spread = x.mean(), ((x - x.mean()) ** 2).sum()
    slope = ((x - centre) * (scores - scores.mean())).sum() / spread
    residual = scores - scores.mean() - slope * (x - centre)
    freedom = len(x) - 2
    variance = (residual**2).sum() / freedom
    t = stdtrit(freedom, 0.5 + level / 2)
    grid = np.linspace(x.min(), x.max(), steps)
    line = scores.mean() + slope * (grid - centre)
    margin = t * np.sqrt(variance * (1 / len(x) + (grid - centre) ** 2 / spread))
    half = float(t * math.sqrt(variance / spread))
    curve = pd.DataFrame({"cost": 10**grid, "score": line, "low": line - margin, "high": line + margin})
    slope = float(slope)
    return CostFit(len(x), float(scores.mean() - slope * centre), slope, slope - half, slope + half, curve)
