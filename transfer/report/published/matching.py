"""Matches of the user's own runs with published cells, and their differences from the table. Imports no torch.

A run matches a cell if its task, its dataset (or a stand-in for it) and the options of the row agree, and if its
pretraining agrees with the backbone parts of the row. Any other difference from the full tier of the table's sweep
makes the numbers not comparable, and is listed as a reason (`transfer.report.published.differences`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from backbones.archs import VOLOS
from backbones.spec import FIELDS, LEFT_TO_RECIPES, BackboneSpec, resolve
from transfer.cli.recipe import pretraining_recipe, task_recipe
from transfer.core.settings import read_yaml
from transfer.experiments.published_rows import Paper, Reason, Row, Value, used_values
from transfer.experiments.step import Step
from transfer.experiments.sweep_file import SweepFile
from transfer.records.protocol import lineage
from transfer.records.record import Record
from transfer.report.published import differences


def expected_options(step: Step, row: Row) -> dict[str, Any]:
    """Return all options of a step, overridden by those of a row."""
    return _recipe(step) | step.options | row.steps.get(step.name, {})


def expected_backbone(sweep: SweepFile, step: Step, row_options: Mapping[str, dict[str, Any]]) -> BackboneSpec:
    """Return the backbone of a step, whose parts the preceding steps may name.

    Args:
        row_options: options of a row, by step.
    """
    parts: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    current: Step | None = step
    while current is not None:
        values = _recipe(current) | current.options | row_options.get(current.name, {})
        parts = {name: item for name, item in values.items() if name in FIELDS and name != "drop_path"} | parts
        names = names or current.backbone
        current = sweep.steps[current.after] if current.after else None
    parts = {name: used_values(item)[0] for name, item in parts.items()} | {"weights": "random"}
    return _resolved(names[0], json.dumps(parts, sort_keys=True))


def expects_volo(sweep: SweepFile, step: Step) -> bool:
    """Return whether a step trains or evaluates a VOLO."""
    return expected_backbone(sweep, step, {}).arch in VOLOS


def _recipe(step: Step) -> dict[str, Any]:
    return read_yaml((pretraining_recipe if step.kind == "pretrain" else task_recipe)(step.recipe).path)


@lru_cache
def _resolved(name: str, parts: str) -> BackboneSpec:
    named = json.loads(parts)
    usual = {key: named.pop(key) for key in LEFT_TO_RECIPES if key in named}
    return resolve(name, usual=usual, **named)


@dataclass(frozen=True)
class PublishedMatch:
    """Run that matches a cell.

    Attributes:
        record: record of the run.
        reasons: reasons why its number cannot be compared; empty where it can.
        reading: reading of the row's printed options that it has.
        processes: number of its processes, if it matters and the table states none; otherwise None.
    """

    record: Record
    reasons: tuple[Reason, ...]
    reading: differences.Reading = ()
    processes: int | str | None = None


@dataclass(frozen=True)
class Matcher:
    """Finds the runs of a cell among records.

    Attributes:
        sweep: sweep of the table at its full tier.
        paper: the paper, with its datasets and the options it leaves open.
        exports: records of runs that exported weights, by the id of the weights.
        records: records of the runs to choose from.
    """

    sweep: SweepFile
    paper: Paper
    exports: Mapping[str, Record]
    records: Sequence[Record] = field(repr=False)

    @cached_property
    def _by_task(self) -> dict[tuple[str, str], list[Record]]:
        records: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            records.setdefault((record.task, str(record.dataset.get("name"))), []).append(record)
        return records

    @cached_property
    def _tasks(self) -> dict[str, str]:
        return {name: step.task for name, step in self.sweep.steps.items()}

    def matches(self, row: Row, value: Value) -> list[PublishedMatch]:
        """Return the runs that match a cell."""
        step = self.sweep.steps[value.step]
        names = (value.dataset, *self.paper.stand_ins.get(value.dataset, ()))
        records = [record for name in names for record in self._by_task.get((self._tasks[step.name], name), ())]
        matches = [self._match(record, row, step, value) for record in records if row.steps]
        return [match for match in matches if match is not None]

    def broken_before(self, row: Row, step: Step) -> list[PublishedMatch]:
        """Return the failed runs of a cell's pretraining."""
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            return []
        records = [
            record
            for (task, _), of_task in self._by_task.items()
            if task == self._tasks[parent.name]
            for record in of_task
        ]
        matches = [
            self._broken(record, row, parent) for record in records if record.training_failed and record.backbone
        ]
        return [match for match in matches if match is not None]

    def _broken(self, record: Record, row: Row, parent: Step) -> PublishedMatch | None:
        reading, chain = differences.reading_of(record, row.steps.get(parent.name, {})), lineage(record, self.exports)
        behind = self._weights_reasons(record, chain, row, parent) if reading is not None else None
        if reading is None or behind is None:
            return None
        reasons = [
            *differences.run_marks([record, *chain]),
            *self._pretraining_differences(record, row, parent),
            *behind,
        ]
        return PublishedMatch(record, tuple(dict.fromkeys(reasons)), reading)

    def _match(self, record: Record, row: Row, step: Step, value: Value) -> PublishedMatch | None:
        reading = differences.reading_of(record, row.steps.get(step.name, {}))
        if reading is None or differences.is_volo(record) != expects_volo(self.sweep, step):
            return None
        chain = lineage(record, self.exports)
        behind = self._weights_reasons(record, chain, row, step)
        if behind is None:
            return None
        reasons = differences.run_marks([record, *chain]) + differences.dataset_differences(
            record, [value.dataset], self.paper.versions
        )
        reasons += self._differences(record, row, step) + behind
        return PublishedMatch(
            record, tuple(dict.fromkeys(reasons)), reading, differences.unstated_processes(record, step)
        )

    def _differences(self, record: Record, row: Row, step: Step) -> list[Reason]:
        """Return the differences of a run from a step of the table, except those of dataset and weights."""
        options, backbone = expected_options(step, row), expected_backbone(self.sweep, step, row.steps)
        needs, left_open = self.paper.needs.get(step.name, {}), self.paper.open.get(step.name, ())
        compared = {name: value for name, value in options.items() if name not in needs}
        reasons = (
            differences.task_version_differences(record)
            + differences.missing_downloads(record, needs)
            + differences.option_differences(record, compared, left_open)
        )
        reasons += differences.backbone_differences(record, backbone, frozenset(row.steps.get(step.name, ())))
        return (
            reasons
            + differences.precision_differences(record, options)
            + differences.process_count_differences(record, step)
        )

    def _weights_reasons(self, record: Record, chain: Sequence[Record], row: Row, step: Step) -> list[Reason] | None:
        """Return the differences of a run's initial weights from the table's; None if they match another row.

        Args:
            chain: records of the trainings that the weights come from, the latest first.
        """
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            left_open = "weights" in self.paper.open.get(step.name, ())
            return differences.weights_differences(record, step, row, trained=bool(chain), left_open=left_open)
        parts = {name: option for name, option in row.steps.get(parent.name, {}).items() if name in FIELDS}
        if not chain:
            unknown = Reason(f"unknown pretraining: weights {record.weights_id[: differences.ID]}")
            return [unknown] if differences.reading_of(record, parts) is not None else None
        if chain[0].task != self._tasks[parent.name] or differences.reading_of(chain[0], parts) is None:
            return None
        behind = self._weights_reasons(chain[0], chain[1:], row, parent)
        if behind is None:
            return None
        return self._pretraining_differences(chain[0], row, parent) + behind

    def _pretraining_differences(self, record: Record, row: Row, parent: Step) -> list[Reason]:
        """Return the differences of a pretraining from its step of the table."""
        reasons = differences.dataset_differences(record, parent.dataset, self.paper.versions) + self._differences(
            record, row, parent
        )
        return [reason.of_step(parent.name) for reason in reasons]
