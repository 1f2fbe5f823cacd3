"""Own runs for published cells: which run belongs to which row, and what keeps their numbers apart. Imports no torch.

A run belongs to a cell by its task, its data set or one that stands in for it, and the row's options; of the training
that its weights come from, the row's parts of the backbone must be the same. Whatever else differs from the full tier
of the table's sweep, and so from the recipe behind it, makes its number not comparable, and is named
(`transfer.report.published.differences`).
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from backbones.archs import VOLOS
from backbones.errors import UserError
from backbones.settings import read_yaml
from backbones.spec import FIELDS, LEFT_TO_RECIPES, BackboneSpec, resolve
from backbones.stems import find_stem
from transfer.cli.command import pretraining_recipe, task_recipe
from transfer.cli.options import EXECUTION
from transfer.published.rows import Paper, Row, Value, used_values
from transfer.records.labels import value_label
from transfer.records.protocol import lineage, protocol
from transfer.records.record import Record
from transfer.report.published.differences import (
    TAKEN,
    Reason,
    marks,
    notes_on_processes,
    of_data,
    of_downloads,
    of_precision,
    of_processes,
    of_version,
)
from transfer.sweep.definition.step import BACKBONE_OPTIONS, Step
from transfer.sweep.definition.sweep_file import SweepFile

# Of a backbone, what two numbers must have in common besides the row's own options; the name and the weights are not.
_BACKBONE = tuple(name for name in FIELDS if name not in ("weights", "load", "drop_path", "train_size"))
_NO_OPTIONS = frozenset((*EXECUTION, *BACKBONE_OPTIONS, "dataset", "method", "precision", "eval_precision"))


@dataclass(frozen=True)
class PublishedMatch:
    """A run that belongs to a cell: why its number cannot be compared, and which reading of a printed option it has."""

    record: Record
    reasons: tuple[Reason, ...]
    reading: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matcher:
    """Finds the runs of a cell among records.

    Args:
        exports: see `transfer.records.protocol.by_export`.
        sweep: the table's, at its full tier.
        paper: what it says of data sets and options.
    """

    sweep: SweepFile
    paper: Paper
    exports: Mapping[str, Record]
    records: Sequence[Record] = field(repr=False)

    @cached_property
    def _by_task(self) -> dict[tuple[str, str], list[Record]]:
        found: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            found.setdefault((record.task, str(record.dataset.get("name"))), []).append(record)
        return found

    @cached_property
    def _tasks(self) -> dict[str, str]:
        return {name: step.task for name, step in self.sweep.steps.items()}

    def of(self, row: Row, value: Value) -> list[PublishedMatch]:
        """The runs of one cell."""
        step = self.sweep.steps[value.step]
        names = (value.dataset, *self.paper.stand_ins.get(value.dataset, ()))
        found = [record for name in names for record in self._by_task.get((self._tasks[step.name], name), ())]
        matches = [self._match(record, row, step, value) for record in found if row.steps]
        return [match for match in matches if match is not None]

    def broken_before(self, row: Row, step: Step) -> list[PublishedMatch]:
        """The breakdowns of the training that a cell's weights would have come from."""
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            return []
        records = (r for (task, _), own in self._by_task.items() if task == self._tasks[parent.name] for r in own)
        matches = [
            self._broken(record, row, parent) for record in records if record.training_failed and record.backbone
        ]
        return [match for match in matches if match is not None]

    def _broken(self, record: Record, row: Row, parent: Step) -> PublishedMatch | None:
        reading, chain = _reading(record, row.steps.get(parent.name, {})), lineage(record, self.exports)
        behind = self._behind(record, chain, row, parent) if reading is not None else None
        if reading is None or behind is None:
            return None
        reasons = [*marks([record, *chain]), *self._unlike(record, row, parent), *behind]
        return PublishedMatch(record, tuple(dict.fromkeys(reasons)), reading)

    def _match(self, record: Record, row: Row, step: Step, value: Value) -> PublishedMatch | None:
        given = row.steps.get(step.name, {})
        reading = _reading(record, given)
        if reading is None or _is_volo(record) != self._expects_volo(step):
            return None
        chain = lineage(record, self.exports)
        behind = self._behind(record, chain, row, step)
        if behind is None:
            return None
        reasons = marks([record, *chain]) + of_data(record, [value.dataset], self.paper.versions)
        reasons += self._not_as_run(record, row, step) + behind
        return PublishedMatch(record, tuple(dict.fromkeys(reasons)), reading, tuple(notes_on_processes(record, step)))

    def _not_as_run(self, record: Record, row: Row, step: Step) -> list[Reason]:
        """What a run has otherwise than a step of the table, but for its data set and its weights."""
        options, spec = self._expected(step, row)
        needs, left_open = self.paper.needs.get(step.name, {}), self.paper.open.get(step.name, ())
        compared = {name: value for name, value in options.items() if name not in needs}
        found = of_version(record) + of_downloads(record, needs)
        found += _differences(record, (compared, spec), frozenset(row.steps.get(step.name, ())), left_open)
        return found + of_precision(record, options) + of_processes(record, step)

    def _behind(self, record: Record, chain: Sequence[Record], row: Row, step: Step) -> list[Reason] | None:
        """Why the weights that a run starts from are not the table's; None where they belong to another row."""
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            left_open = "weights" in self.paper.open.get(step.name, ())
            return _other_weights(record, step, row, trained=bool(chain), left_open=left_open)
        given = row.steps.get(parent.name, {})
        parts = {name: option for name, option in given.items() if name in FIELDS}
        if not chain:
            unknown = Reason(f"unknown pretraining: weights {record.weights_id[:40]}")
            return [unknown] if _reading(record, parts) is not None else None
        if chain[0].task != self._tasks[parent.name] or _reading(chain[0], parts) is None:
            return None
        behind = self._behind(chain[0], chain[1:], row, parent)
        if behind is None:
            return None
        return self._unlike(chain[0], row, parent) + behind

    def _unlike(self, record: Record, row: Row, parent: Step) -> list[Reason]:
        """What a training behind a cell has otherwise than the table's."""
        reasons = of_data(record, parent.dataset, self.paper.versions) + self._not_as_run(record, row, parent)
        return [reason.of_step(parent.name) for reason in reasons]

    def _expects_volo(self, step: Step) -> bool:
        return self._expected_backbone(step, {}).arch in VOLOS

    def _expected(self, step: Step, row: Row) -> tuple[dict[str, Any], BackboneSpec]:
        """All options of a step at its full tier, a row's laid over them, and the backbone."""
        return _recipe(step) | step.options | row.steps.get(step.name, {}), self._expected_backbone(step, row.steps)

    def _expected_backbone(self, step: Step, given: Mapping[str, dict[str, Any]]) -> BackboneSpec:
        parts: dict[str, Any] = {}
        names: tuple[str, ...] = ()
        found: Step | None = step
        while found is not None:
            values = _recipe(found) | found.options | given.get(found.name, {})
            parts = {name: item for name, item in values.items() if name in FIELDS and name != "drop_path"} | parts
            names = names or found.backbone
            found = self.sweep.steps[found.after] if found.after else None
        parts = {name: used_values(item)[0] for name, item in parts.items()} | {"weights": "random"}
        return _resolved(names[0], json.dumps(parts, sort_keys=True))


def _reading(record: Record, given: Mapping[str, Any]) -> str | None:
    """Which values of the options of a row a run has, in words where there are several; None where it has others."""
    words = []
    for name, option in given.items():
        used = used_values(option)
        same = [value for value in used if _has(record, name, value)]
        if not same:
            return None
        if isinstance(option, dict):
            words.append(f"{name} {value_label(same[0])}, printed {value_label(option['printed'])}")
    return "; ".join(words)


def _has(record: Record, name: str, value: Any) -> bool:
    if name == "weights":
        return record.weights_id == value
    if name == "stem":
        return _same_stem(record, str(value))
    held = record.backbone.get(name) if name in FIELDS and name != "drop_path" else record.options.get(name)
    return _equal(held, value)


def _same_stem(record: Record, text: str) -> bool:
    stem, patch = record.backbone.get("stem"), record.backbone.get("patch")
    if not stem or not patch or "stem" in (record.backbone.get("files") or {}):
        return False
    try:
        return find_stem(stem).sized(patch) == find_stem(text).sized(patch)
    except UserError:  # its strides do not fit this patch size
        return False


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right)]
    return math.isclose(left, right, rel_tol=1e-9) if all(numbers) else bool(left == right)


def _differences(
    record: Record,
    expected: tuple[dict[str, Any], BackboneSpec],
    matched: Collection[str],
    left_open: Collection[str],
) -> list[Reason]:
    """Options and parts of the backbone that are not the table's, as "epochs 20 (300)".

    Args:
        matched: parts of the backbone that a row names, in one reading or another.
        left_open: options that the paper does not state.
    """
    options, spec = expected
    effective = protocol(record)  # options without effect are no difference
    found = []
    for name, value in options.items():
        held = record.options.get(name)
        if name not in _NO_OPTIONS and name in effective and not any(_equal(held, used) for used in used_values(value)):
            taken = value_label(used_values(value)[0]) + TAKEN * (name in left_open)
            found.append(Reason(f"{name} {value_label(held)} ({taken})", option=True))
    for name in _BACKBONE if record.backbone else ():
        if name in matched:
            continue
        held, value = record.backbone.get(name), getattr(spec, name)
        if name == "stem" and value and _same_stem(record, value):
            continue
        if name in ("alpha", "length") and spec.attention == record.backbone.get("attention") == "softmax":
            continue  # softmax has neither
        if name in ("mean", "std") and held is None:
            continue  # those of timm's weights
        if not _equal(held, value):
            found.append(Reason(f"{name} {value_label(held)} ({value_label(value)})", option=True))
    return found


def _other_weights(record: Record, step: Step, row: Row, *, trained: bool, left_open: bool) -> list[Reason]:
    """Of a step that starts from no other step's weights: from random ones, or from those that are named.

    A row names the weights before its step does.
    """
    named = row.steps.get(step.name, {}).get("weights", step.options.get("weights", "random"))
    if record.weights_id in used_values(named):
        return []
    start = "an own pretraining" if trained else f"weights {record.weights_id[:40]}"
    return [Reason(f"starts from {start} ({used_values(named)[0]}{TAKEN * left_open})")]


@lru_cache
def _recipe_values(kind: str, name: str) -> dict[str, Any]:
    return read_yaml((pretraining_recipe if kind == "pretrain" else task_recipe)(name).path)


def _recipe(step: Step) -> dict[str, Any]:
    return _recipe_values(step.kind, step.recipe)


@lru_cache
def _resolved(name: str, parts: str) -> BackboneSpec:
    named = json.loads(parts)
    usual = {key: named.pop(key) for key in LEFT_TO_RECIPES if key in named}
    return resolve(name, usual=usual, **named)


def _is_volo(record: Record) -> bool:
    return (record.backbone.get("arch") or record.options.get("arch")) in VOLOS
