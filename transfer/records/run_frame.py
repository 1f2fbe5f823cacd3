"""The data frame of a set of runs: a row per run and score. Imports no torch."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from transfer.records.labels import value_label
from transfer.records.protocol import pretraining
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "run_id": "string",
    "task": "string",
    "dataset": "string",
    "backbone": "string",
    "arch": "string",
    "stem": "string",
    "attention": "string",
    "weights_id": "string",
    "pretraining": "string",
    "pretraining_dataset": "string",
    "pretraining_epochs": "float64",
    "pretraining_seed": "Int64",
    "seed": "int64",
    "metric": "string",
    "value": "float64",
    "unit": "string",
    "direction": "string",
    "primary": "bool",
    "standard_error": "float64",
    "outcome": "string",
    "smoke": "bool",
    "subset": "Int64",
    "dirty": "bool",
    "train_seconds": "float64",
    "eval_seconds": "float64",
    "device_hours": "float64",
    "peak_mib": "float64",
    "images_per_second": "float64",
    "gflops": "float64",
    "params": "Int64",
    "config_digest": "string",
    "started": "datetime64[ns, UTC]",
    "folder": "string",
}
"""Column -> dtype of pandas.

`value` and `standard_error` (over the draws of a few-shot probe) are in `unit`: a fraction lies in [0, 1]. `direction`
says whether higher or lower is better, and `primary` whether tables sort by this score. A run whose training failed has
one row, of its primary score, with nan as the value; `outcome` says how it ended. `config_digest` is equal for runs
that differ in their seed alone. The `pretraining` columns are the method, dataset, epochs and seed of the run that the
weights come from, missing where its record is not among the runs. `gflops` are 10^9 FLOPs of one image, two per
multiply-add, `device_hours` are summed over devices.
"""
_COSTS = ("train_seconds", "eval_seconds", "device_hours", "peak_mib", "images_per_second", "gflops", "params")


def frame_of_runs(runs: RunSet) -> "pd.DataFrame":
    """Return a row per run and score; without runs the columns alone."""
    import pandas as pd

    rows = [row for run in runs for row in _rows(run, pretraining(run.record, runs.exports))]
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in COLUMNS})
    # of whatever form; pandas would want that of the first row in all
    frame["started"] = pd.to_datetime([(at := row["started"]) and datetime.fromisoformat(at) for row in rows], utc=True)
    return frame.astype(COLUMNS)


def _rows(run: Run, parent: Record | None) -> Iterator[dict[str, Any]]:
    record = run.record
    parts = {name: record.backbone.get(name) for name in ("arch", "stem", "attention")}
    facts = {
        "run_id": record.run_id,
        "task": record.task,
        "dataset": record.dataset.get("name"),
        "backbone": record.backbone.get("name"),
        **{name: value and value_label(value) for name, value in parts.items()},
        "weights_id": record.weights_id,
        "pretraining": parent and parent.task.removeprefix("pretrain-"),
        "pretraining_dataset": parent and parent.dataset.get("name"),
        "pretraining_epochs": parent and parent.options.get("epochs"),
        "pretraining_seed": parent and parent.seed,
        "seed": record.seed,
        "outcome": record.status,
        "smoke": record.smoke,
        "subset": record.subset,
        "dirty": record.dirty,
        **{name: record.cost.get(name) for name in _COSTS},
        "config_digest": record.config_digest,
        "started": record.environment.get("started"),
        "folder": str(run.folder),
    }
    for name in record.scores or (record.primary,):
        yield facts | _score(record, name)


def _score(record: Record, name: str) -> dict[str, Any]:
    metric, details = record.metrics.get(name, {}), record.details.get(name)
    return {
        "metric": name,
        "value": record.scores.get(name, float("nan")),
        "unit": metric.get("unit", "fraction"),
        "direction": metric.get("direction", "higher"),
        "primary": name == record.primary,
        "standard_error": details.get("standard_error") if isinstance(details, dict) else None,
    }
