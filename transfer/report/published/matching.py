"""Matches of the user's own runs with published cells, and their differences from the table. Imports no torch.

A run matches a cell if its task, its dataset (or a stand-in for it) and the options of the row agree, and if its
pretraining agrees with the backbone parts of the row. Any other difference from the full tier of the table's sweep
makes the numbers not comparable, and is listed as a reason.

If a recipe has precision `auto`, bf16 and fp16 both agree with the table: the recipes' references train in fp16, and on
the GPUs of the full tier `auto` resolves to bf16. fp32 does not agree.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from backbones.archs import VOLOS
from backbones.spec import LEFT_TO_RECIPES, SPEC_FIELDS, BackboneSpec, resolve
from transfer.core.grouped import grouped_by
from transfer.data.spec import flat_counts, resolve_dataset
from transfer.engine.options import RESOLVED
from transfer.experiments.published_rows import Paper, Row, Value, used_values
from transfer.experiments.step import Step
from transfer.experiments.sweep_file import SweepFile
from transfer.records import protocol
from transfer.records.fields import value_label
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns

BACKBONE_FIELDS = tuple(name for name in SPEC_FIELDS if name != "drop_path")
"""Fields of a backbone; stochastic depth is an option of the task."""
Reading = tuple[str, ...]
"""What a run has of the options of a row that can be read in several ways: "lr 0.002, printed 0.001"."""


def reading_of(record: Record, row_options: Mapping[str, Any]) -> Reading | None:
    """Return the reading of a row's options that a run has; None if it has other values.

    Args:
        row_options: options that the row names.
    """
    reading = []
    for name, option in row_options.items():
        same = [value for value in used_values(option) if _has(record, name, value)]
        if not same:
            return None
        if isinstance(option, dict):
            reading.append(f"{name} {value_label(same[0])}, printed {value_label(option['printed'])}")
    return tuple(reading)


def _has(record: Record, name: str, value: Any) -> bool:
    if name == "weights":
        return bool(record.weights_id == value)
    if name == "stem":
        return _same_stem(record, str(value))
    return _equal((record.backbone if name in BACKBONE_FIELDS else record.options).get(name), value)


def _same_stem(record: Record, text: str) -> bool:
    """Return whether a run's backbone has a stem, under this or another name."""
    stem, patch = record.backbone.get("stem"), record.backbone.get("patch")
    if not stem or not patch or "stem" in (record.backbone.get("files") or {}):
        return False
    return protocol.canonical_stem(stem, patch) == protocol.canonical_stem(text, patch)


def _equal(left: Any, right: Any) -> bool:
    """Return whether two values of an option are equal, numbers up to a relative difference of 1e-9."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right)]
    return math.isclose(left, right, rel_tol=1e-9) if all(numbers) else bool(left == right)


WORLD_SIZE = "world_size"
ASSUMED = " taken, not stated"
"""Mark of a value that the paper leaves open, so that the table's is the shipped sweep's."""
_HALF = ("bf16", "fp16")
# Fields of a backbone that must agree besides the options that a row names.
_BACKBONE = tuple(name for name in BACKBONE_FIELDS if name not in ("weights", "load", "train_size"))


def _differs(name: str, ours: Any, published: Any, mark: str = "") -> str:
    """Return the reason that a value of a run differs from the table's, which stands in brackets."""
    return f"{name} {value_label(ours)} ({value_label(published)}{mark})"


def _unless_one_of(name: str, ours: Any, *published: Any, mark: str = "") -> list[str]:
    """Return the reason that a value of a run is none of the table's; empty where it is one."""
    return [] if any(_equal(ours, value) for value in published) else [_differs(name, ours, published[0], mark)]


def run_marks(records: Iterable[Record]) -> list[str]:
    """Return the marks of runs and of their pretrainings, unreadable images, and untrained parameters."""
    records = list(records)
    marks = chain.from_iterable((*record.marks, *record.origin_marks) for record in records)
    names = ["weights modified" if mark == "modified" else mark for mark in marks]
    names += [f"{skipped} images unreadable" for record in records if (skipped := record.dataset.get("skipped"))]
    return names + [f"left untrained: {', '.join(record.untrained)}" for record in records if record.untrained]


def dataset_differences(record: Record, published: Sequence[str], versions: Mapping[str, str]) -> list[str]:
    """Return the differences of the dataset: another name, another version, or other counts than its published files.

    Args:
        published: names of datasets that agree with the table.
        versions: version that the table uses, by dataset, for datasets whose specification has none.
    """
    name = str(record.dataset.get("name"))
    if name not in published:
        return [f"{name} for {', '.join(published)}"]
    facts = resolve_dataset(name)
    version, recorded = facts.version or versions.get(name), record.dataset.get("version")
    reasons = [] if version is None else _unless_one_of(f"{name} version", recorded, version)
    if record.smoke or record.subset is not None or record.dataset.get("skipped"):
        return reasons  # other reasons explain the counts
    expected, counts = flat_counts(facts.counts or {}), flat_counts(record.dataset.get("counts") or {})
    if expected and not counts:
        return [*reasons, f"{name}: what it holds is not recorded"]
    for split, number in expected.items():
        reasons += _unless_one_of(f"{name} {split}", counts.get(split, number), number)
    return reasons


def option_differences(
    record: Record, step: Step, expected: Mapping[str, Any], needs: Mapping[str, str], left_open: Collection[str]
) -> list[str]:
    """Return the differences in the task's version, in downloads, in options that have an effect, and in precision.

    Args:
        step: step of the table's sweep.
        expected: all options of the step.
        needs: name of each download that the published number used, by the option that names its folder.
        left_open: names of options that the paper does not state.
    """
    effective = protocol.protocol(record)
    reasons = _unless_one_of(f"{record.task} version", record.task_version, step.task.version)
    reasons += [f"no {download}" for option, download in needs.items() if record.options.get(option) is None]
    for name, value in expected.items():
        if name in effective and name not in ("dataset", *RESOLVED, *needs):
            mark = ASSUMED if name in left_open else ""
            reasons += _unless_one_of(name, record.options.get(name), *used_values(value), mark=mark)
    training = record.environment.get("precision")
    precisions = {"precision": training, "eval_precision": record.environment.get("eval_precision", training)}
    for name, used in precisions.items():
        table = expected.get(name, used)
        accepted = (f"auto: {' or '.join(_HALF)}", *_HALF) if table == "auto" else (table or protocol.NOT_RECORDED,)
        reasons += _unless_one_of(name, used or protocol.NOT_RECORDED, *accepted)
    world, processes = protocol.displayed_fields(record)[WORLD_SIZE], process_count(step)
    return reasons + ([] if processes is None else _unless_one_of(WORLD_SIZE, world, processes, protocol.NO_EFFECT))


def process_count(step: Step) -> int | None:
    """Return the number of processes of a step at its tier; None if it is not stated."""
    gpus = step.resources.get("gpus")
    return gpus * (step.resources.get("nodes") or 1) if gpus else None


def backbone_differences(record: Record, expected: BackboneSpec, matched: Collection[str]) -> list[str]:
    """Return the differences in parts of the backbone.

    Args:
        expected: backbone of the table's step.
        matched: names of parts that a row names, which the run is known to match.
    """
    reasons: list[str] = []
    softmax = expected.attention == record.backbone.get("attention") == "softmax"
    for name in _BACKBONE if record.backbone else ():
        used, value = record.backbone.get(name), getattr(expected, name)
        same = _same_stem(record, value) if name == "stem" and value else _equal(used, value)
        unused = softmax and name in ("alpha", "length")
        of_timm = name in ("mean", "std") and used is None  # the values of timm's weights
        if not (name in matched or same or unused or of_timm):
            reasons.append(_differs(name, used, value))
    return reasons


ID = 40
"""Number of characters shown of an id of weights."""


def _expected_options(step: Step, row_options: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return all options of a step, overridden by those of a row."""
    return step.source.values() | step.options | row_options.get(step.name, {})


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
        parts = {name: option for name, option in values.items() if name in BACKBONE_FIELDS} | parts
        names = names or current.backbone
        current = sweep.steps[current.after] if current.after else None
    overrides = {name: used_values(option)[0] for name, option in parts.items()} | {"weights": "random"}
    usual = {name: overrides.pop(name) for name in LEFT_TO_RECIPES if name in overrides}
    return resolve(names[0], usual=usual, **overrides)


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
    runs: StoredRuns

    @cached_property
    def keys(self) -> dict[str, str]:
        """The configuration of each run, by its id."""
        keys = protocol.configurations(self.runs.records, self.runs.exports)
        return dict(zip((record.run_id for record in self.runs.records), keys, strict=True))

    def matches(self, row: Row, value: Value) -> list[OwnRuns]:
        """Return the runs that match a cell, each for itself."""
        if not row.steps:
            return []
        names = (value.dataset, *self.paper.stand_ins.get(value.dataset, ()))
        records = [record for record in self.runs.records if record.dataset.get("name") in names]
        return self._matches(records, row, self.sweep.steps[value.step], [value.dataset])

    def own_runs(self, row: Row, value: Value) -> list[OwnRuns]:
        """Return the configurations that are shown beside a cell: of each reading every comparable one.

        If none is comparable, it is the one with the fewest reasons, of equals the one with most runs, then the one
        that was started last. Runs of one configuration with different reasons, for instance a run of changed files,
        are kept apart, so that they do not make the others incomparable.
        """
        matches = self.matches(row, value)
        groups = grouped_by(matches, lambda run: (run.reading, self.keys[run.records[0].run_id], run.reasons))
        by_reading = dict[Reading, list[OwnRuns]]()
        for (reading, *_), runs in groups.items():
            merged = replace(runs[0], records=[run.records[0] for run in runs])
            by_reading.setdefault(reading, []).append(merged)
        shown = []
        for configurations in by_reading.values():
            shown += [runs for runs in configurations if not runs.reasons] or [max(configurations, key=_rank)]
        return shown

    def broken_before(self, row: Row, value: Value) -> list[OwnRuns]:
        """Return the failed runs of a cell's pretraining, each for itself."""
        if (after := self.sweep.steps[value.step].after) is None:
            return []
        parent = self.sweep.steps[after]
        broken = [record for record in self.runs.records if record.training_failed and record.backbone]
        return self._matches(broken, row, parent, parent.dataset, f"{parent.name}: ")

    def _matches(
        self, records: Iterable[Record], row: Row, step: Step, datasets: Sequence[str], prefix: str = ""
    ) -> list[OwnRuns]:
        """Return the runs that match a step of a row.

        Args:
            datasets: names of datasets that agree with the table.
            prefix: stands before the differences from the step.
        """
        own_runs, task = [], step.task.name
        expects_volo = _expected_backbone(self.sweep, step, {}).arch in VOLOS
        for record in (record for record in records if record.task == task):
            reading, trainings = reading_of(record, row.steps.get(step.name, {})), self.runs.evidence.lineage(record)
            behind = None if reading is None else self._weights_reasons(record, trainings, row, step)
            is_volo = (record.backbone.get("arch") or record.options.get("arch")) in VOLOS
            if reading is None or behind is None or is_volo != expects_volo:
                continue
            reasons = self._differences(record, row, step, datasets)
            reasons = [*run_marks([record, *trainings]), *(prefix + reason for reason in reasons), *behind]
            own_runs.append(OwnRuns([record], tuple(dict.fromkeys(reasons)), reading))
        return own_runs

    def _differences(self, record: Record, row: Row, step: Step, datasets: Sequence[str]) -> list[str]:
        """Return the differences of a run from a step of the table, except those of its weights."""
        needs, left_open = self.paper.needs.get(step.name, {}), self.paper.open.get(step.name, ())
        backbone = _expected_backbone(self.sweep, step, row.steps)
        return [
            *dataset_differences(record, datasets, self.paper.versions),
            *option_differences(record, step, _expected_options(step, row.steps), needs, left_open),
            *backbone_differences(record, backbone, row.steps.get(step.name, {}).keys()),
        ]

    def _weights_reasons(self, record: Record, trainings: Sequence[Record], row: Row, step: Step) -> list[str] | None:
        """Return the differences of a run's initial weights from the table's; None if they match another row.

        The weights of a step without a preceding one are those that its row names, or else its step, or random.

        Args:
            trainings: records of the trainings that the weights come from, the latest first.
        """
        parent, weights = self.sweep.steps.get(step.after or ""), f"weights {record.weights_id[:ID]}"
        if parent is None:
            accepted = used_values((step.options | row.steps.get(step.name, {})).get("weights", "random"))
            mark = ASSUMED if "weights" in self.paper.open.get(step.name, ()) else ""
            start = f"starts from {'an own pretraining' if trainings else weights} ({accepted[0]}{mark})"
            any_will_do = "weights" in self.paper.needs.get(step.name, {})
            return [] if any_will_do or record.weights_id in accepted else [start]
        parts = {name: option for name, option in row.steps.get(parent.name, {}).items() if name in SPEC_FIELDS}
        if reading_of(trainings[0] if trainings else record, parts) is None:
            return None
        if not trainings:
            return [f"unknown pretraining: {weights}"]
        last, *earlier = trainings
        behind = self._weights_reasons(last, earlier, row, parent) if last.task == parent.task.name else None
        if behind is None:
            return None
        return [f"{parent.name}: {reason}" for reason in self._differences(last, row, parent, parent.dataset)] + behind
