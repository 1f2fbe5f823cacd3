"""Runs with the facts that every part of a report needs, computed once: lineage, marks, configurations. No torch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from transfer.records.evidence import Evidence
from transfer.records.fields import is_baseline, value_label
from transfer.records.grouping import Group, grouped
from transfer.records.protocol import pretraining
from transfer.records.record import Record
from transfer.records.store import StoredRun

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class StoredRuns:
    """Some finished runs among all loaded runs.

    Attributes:
        runs: the runs that are shown or compared.
        known: all loaded runs, in which the training runs of weights are looked up.
        problems: messages on records that could not be read, or are disputed.
    """

    runs: tuple[StoredRun, ...] = ()
    known: tuple[StoredRun, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, runs: Iterable[StoredRun], known: Iterable[StoredRun] | None = None) -> Self:
        """Return a set of runs; `known` is by default the runs themselves."""
        runs = tuple(runs)
        return cls(runs, runs if known is None else tuple(known))

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    def __iter__(self) -> Iterator[StoredRun]:
        """Iterate over the runs in order."""
        return iter(self.runs)

    @cached_property
    def records(self) -> list[Record]:
        """The runs' records."""
        return [run.record for run in self.runs]

    @cached_property
    def evidence(self) -> Evidence:
        """Lineage, units and lost pretrainings among all loaded runs."""
        return Evidence([run.record for run in self.known])

    @property
    def exports(self) -> dict[str, Record]:
        """The loaded runs that exported weights, by the id of the weights."""
        return self.evidence.exports

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of the runs, in order of appearance."""
        return list(dict.fromkeys(record.task for record in self.records))

    def select(self, runs: Iterable[StoredRun]) -> Self:
        """Return a set of some of the runs, with the same loaded runs."""
        selected = replace(self, runs=tuple(runs))
        selected.__dict__["evidence"] = self.evidence  # depends only on the loaded runs, so it is computed once
        return selected

    def where(self, keep: Callable[[Record], object]) -> Self:
        """Return the runs whose records `keep` accepts, with the same loaded runs."""
        return self.select(run for run in self.runs if keep(run.record))

    def of_task(self, task: str) -> Self:
        """Return the runs of one task, with the same loaded runs."""
        part = self.where(lambda record: record.task == task)
        part.__dict__["groups"] = [group for group in self.groups if group.first.task == task]  # named among all
        return part

    @cached_property
    def by_id(self) -> dict[str, StoredRun]:
        """The runs by their ids."""
        return {run.record.run_id: run for run in self.runs}

    @cached_property
    def groups(self) -> list[Group]:
        """The configurations of the runs, the baseline first; runs of one configuration differ only in seeds."""
        groups = grouped(self.records, self.exports)
        return sorted(groups, key=lambda group: (group.dataset, not is_baseline(group.first), group.backbone))


_SAME = ("run_id", "task", "weights_id", "seed", "smoke", "subset", "dirty", "config_digest")
_COSTS = ("train_seconds", "eval_seconds", "device_hours", "peak_mib", "images_per_second", "gflops", "params")
_TEXTS = ("run_id", "task", "dataset", "backbone", "arch", "stem", "attention", "weights_id", "pretraining")
FRAME_COLUMNS = {
    **dict.fromkeys((*_TEXTS, "pretraining_dataset", "pretraining_recipe"), "string"),
    **{"pretraining_epochs": "float64", "pretraining_seed": "Int64", "recipe": "string", "epochs": "float64"},
    **{"seed": "int64", "metric": "string"},
    **{"value": "float64", "unit": "string", "direction": "string", "primary": "bool", "standard_error": "float64"},
    **{"outcome": "string", "smoke": "bool", "subset": "Int64", "dirty": "bool"},
    **{**dict.fromkeys(_COSTS, "float64"), "params": "Int64"},
    **{"config_digest": "string", "started": "datetime64[ns, UTC]", "folder": "string"},
}
"""Column -> dtype of pandas.

`value` and `standard_error` (over the draws of a few-shot probe) are in `unit`: a fraction lies in [0, 1]. `direction`
says whether higher or lower is better, and `primary` whether tables sort by this score. A run whose training failed has
one row, of its primary score, with nan as the value; `outcome` says how it ended. `config_digest` is equal for runs
that differ in their seed alone. The `pretraining` columns are the method, dataset, recipe, epochs and seed of the run
that the weights come from, missing where its record is not among the runs. `gflops` are 10^9 FLOPs of one image, two
per multiply-add, `device_hours` are summed over devices.
"""


def frame_of_runs(runs: StoredRuns) -> "pd.DataFrame":
    """Return a row per run and score; without runs the columns alone."""
    import pandas as pd

    rows = [row for run in runs for row in _rows(run, pretraining(run.record, runs.exports))]
    frame = pd.DataFrame({name: [row[name] for row in rows] for name in FRAME_COLUMNS})
    frame["started"] = pd.to_datetime(frame["started"], format="ISO8601", utc=True)  # with or without microseconds
    return frame.astype(FRAME_COLUMNS)


def _rows(run: StoredRun, parent: Record | None) -> Iterator[dict[str, Any]]:
    record = run.record
    parts = {name: record.backbone.get(name) for name in ("arch", "stem", "attention")}
    facts = {
        **{name: getattr(record, name) for name in _SAME},
        **{name: getattr(record, name).get("name") for name in ("dataset", "backbone")},
        **{name: value and value_label(value) for name, value in parts.items()},
        "pretraining": parent and parent.task.removeprefix("pretrain-"),
        "pretraining_dataset": parent and parent.dataset.get("name"),
        "pretraining_recipe": parent and parent.recipe and value_label(parent.recipe),
        "pretraining_epochs": parent and parent.options.get("epochs"),
        "pretraining_seed": parent and parent.seed,
        "recipe": record.recipe and value_label(record.recipe),
        "epochs": record.options.get("epochs"),
        "outcome": record.status,
        **{name: record.cost.get(name) for name in _COSTS},
        "started": record.environment.get("started"),
        "folder": str(run.folder),
    }
    for name in record.scores or (record.primary,):
        metric = record.metrics.get(name, {})
        yield facts | {
            "metric": name,
            "value": record.scores.get(name, float("nan")),
            "unit": metric.get("unit", "fraction"),
            "direction": metric.get("direction", "higher"),
            "primary": name == record.primary,
            "standard_error": record.standard_error(name),
        }
