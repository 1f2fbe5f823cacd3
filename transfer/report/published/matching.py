"""Matches of the user's own runs with published cells, and their differences from the table. Imports no torch.

A run matches a cell if its task, its dataset (or a stand-in for it) and the options of the row agree, and if its
pretraining agrees with the backbone parts of the row. Any other difference from the full tier of the table's sweep
makes the numbers not comparable, and is listed as a reason (`transfer.report.published.differences`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from backbones.archs import VOLOS
from backbones.spec import FIELDS, LEFT_TO_RECIPES, BackboneSpec, resolve
from transfer.core.settings import read_yaml
from transfer.experiments.published_rows import Paper, Row, Value, used_values
from transfer.experiments.step import Step
from transfer.experiments.sweep_file import SweepFile
from transfer.records.protocol import configurations
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.published.differences import (
    ASSUMED,
    Reading,
    backbone_differences,
    dataset_differences,
    option_differences,
    reading_of,
    run_marks,
)

ID = 40
"""Number of characters shown of an id of weights."""


def _expected_options(step: Step, row_options: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return all options of a step, overridden by those of a row."""
    return read_yaml(step.source.path) | step.options | row_options.get(step.name, {})


def _expected_backbone(sweep: SweepFile, step: Step, row_options: Mapping[str, dict[str, Any]]) -> BackboneSpec:
    """Return the backbone of a step, whose parts the preceding steps may name.

    Args:
        row_options: options of a row, by step.
    """
    parts: dict[str, Any] = {}
    names: tuple[str, ...] = ()
    current: Step | None = step
    while current is not None:
        values = _expected_options(current, row_options)
        parts = {name: item for name, item in values.items() if name in FIELDS and name != "drop_path"} | parts
        names = names or current.backbone
        current = sweep.steps[current.after] if current.after else None
    parts = {name: used_values(item)[0] for name, item in parts.items()} | {"weights": "random"}
    return _resolved(names[0], json.dumps(parts, sort_keys=True))


@lru_cache
def _resolved(name: str, parts: str) -> BackboneSpec:
    named = json.loads(parts)
    usual = {key: named.pop(key) for key in LEFT_TO_RECIPES if key in named}
    return resolve(name, usual=usual, **named)


@dataclass(frozen=True)
class OwnRuns:
    """The user's own runs of one configuration for a cell, which differ in their seeds alone.

    Attributes:
        records: records of the runs.
        reasons: reasons why their scores cannot be compared; empty where they can.
        reading: reading of the row's printed options that they have.
    """

    records: Sequence[Record]
    reasons: tuple[str, ...]
    reading: Reading = ()


def _rank(runs: OwnRuns) -> tuple[int, int, str]:
    return -len(runs.reasons), len(runs.records), max(str(record.environment.get("started")) for record in runs.records)


@dataclass(frozen=True)
class Matcher:
    """Finds the runs of a cell among records.

    Attributes:
        sweep: sweep of the table at its full tier.
        paper: the paper, with its datasets and the options it leaves open.
        runs: runs to choose from.
    """

    sweep: SweepFile
    paper: Paper
    runs: RunSet

    @cached_property
    def keys(self) -> dict[str, str]:
        """The configuration of each run, by its id."""
        keys = configurations(self.runs.records, self.runs.exports)
        return dict(zip((record.run_id for record in self.runs.records), keys, strict=True))

    def matches(self, row: Row, value: Value) -> list[OwnRuns]:
        """Return the runs that match a cell, each for itself."""
        step = self.sweep.steps[value.step]
        names = (value.dataset, *self.paper.stand_ins.get(value.dataset, ()))
        records = [record for record in self._of_step(step) if record.dataset.get("name") in names and row.steps]
        return self._matches(records, row, step, [value.dataset])

    def own_runs(self, row: Row, value: Value) -> list[OwnRuns]:
        """Return the configurations that are shown beside a cell: of each reading every comparable one.

        If none is comparable, it is the one with the fewest reasons, of equals the one with most runs, then the one
        that was started last. Runs of one configuration with different reasons, for instance a run of changed files,
        are kept apart, so that they do not make the others incomparable.
        """
        groups: dict[tuple[Reading, str, tuple[str, ...]], list[OwnRuns]] = {}
        for run in self.matches(row, value):
            groups.setdefault((run.reading, self.keys[run.records[0].run_id], run.reasons), []).append(run)
        found = [replace(runs[0], records=[run.records[0] for run in runs]) for runs in groups.values()]
        shown = []
        for reading in dict.fromkeys(runs.reading for runs in found):
            of_reading = [runs for runs in found if runs.reading == reading]
            shown += [runs for runs in of_reading if not runs.reasons] or [max(of_reading, key=_rank)]
        return shown

    def broken_before(self, row: Row, step: Step) -> list[OwnRuns]:
        """Return the failed runs of a cell's pretraining, each for itself."""
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            return []
        broken = [record for record in self._of_step(parent) if record.training_failed and record.backbone]
        return self._matches(broken, row, parent, parent.dataset, f"{parent.name}: ")

    def _of_step(self, step: Step) -> list[Record]:
        task = step.task
        return [record for record in self.runs.records if record.task == task]

    def _matches(
        self, records: Iterable[Record], row: Row, step: Step, datasets: Sequence[str], prefix: str = ""
    ) -> list[OwnRuns]:
        """Return the runs that match a step of a row.

        Args:
            datasets: names of datasets that agree with the table.
            prefix: stands before the differences from the step.
        """
        found = []
        for record in records:
            reading, chain = reading_of(record, row.steps.get(step.name, {})), self.runs.evidence.lineage(record)
            behind = None if reading is None else self._weights_reasons(record, chain, row, step)
            is_volo = (record.backbone.get("arch") or record.options.get("arch")) in VOLOS
            if reading is None or behind is None or is_volo != self._expects_volo(step):
                continue
            reasons = self._differences(record, row, step, datasets)
            reasons = [*run_marks([record, *chain]), *(prefix + reason for reason in reasons), *behind]
            found.append(OwnRuns([record], tuple(dict.fromkeys(reasons)), reading))
        return found

    def _expects_volo(self, step: Step) -> bool:
        return _expected_backbone(self.sweep, step, {}).arch in VOLOS

    def _differences(self, record: Record, row: Row, step: Step, datasets: Sequence[str]) -> list[str]:
        """Return the differences of a run from a step of the table, except those of its weights."""
        needs, left_open = self.paper.needs.get(step.name, {}), self.paper.open.get(step.name, ())
        backbone = _expected_backbone(self.sweep, step, row.steps)
        return [
            *dataset_differences(record, datasets, self.paper.versions),
            *option_differences(record, step, _expected_options(step, row.steps), needs, left_open),
            *backbone_differences(record, backbone, row.steps.get(step.name, {}).keys()),
        ]

    def _weights_reasons(self, record: Record, chain: Sequence[Record], row: Row, step: Step) -> list[str] | None:
        """Return the differences of a run's initial weights from the table's; None if they match another row.

        The weights of a step without a preceding one are those that its row names, or else its step, or random.

        Args:
            chain: records of the trainings that the weights come from, the latest first.
        """
        parent, weights = self.sweep.steps.get(step.after or ""), f"weights {record.weights_id[:ID]}"
        if parent is None:
            named = used_values((step.options | row.steps.get(step.name, {})).get("weights", "random"))
            mark = ASSUMED * ("weights" in self.paper.open.get(step.name, ()))
            start = f"starts from {'an own pretraining' if chain else weights} ({named[0]}{mark})"
            any_will_do = "weights" in self.paper.needs.get(step.name, {})
            return [] if any_will_do or record.weights_id in named else [start]
        parts = {name: option for name, option in row.steps.get(parent.name, {}).items() if name in FIELDS}
        if reading_of(chain[0] if chain else record, parts) is None:
            return None
        if not chain:
            return [f"unknown pretraining: {weights}"]
        behind = self._weights_reasons(chain[0], chain[1:], row, parent) if chain[0].task == parent.task else None
        if behind is None:
            return None
        return [f"{parent.name}: {one}" for one in self._differences(chain[0], row, parent, parent.dataset)] + behind
