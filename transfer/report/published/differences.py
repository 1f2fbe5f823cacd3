"""Differences between a run and the sweep of a published table: reasons why numbers differ. Imports no torch.

If a recipe has precision `auto`, bf16 and fp16 both agree with the table: the recipes' references train in fp16, and on
the GPUs of the full tier `auto` resolves to bf16. fp32 does not agree.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from backbones.spec import FIELDS, BackboneSpec
from transfer.data.spec import flat_counts, resolve_dataset
from transfer.engine.options import RESOLVED
from transfer.experiments.published_rows import used_values
from transfer.experiments.step import Step
from transfer.records.fields import value_label
from transfer.records.protocol import NO_EFFECT, NOT_RECORDED, canonical_stem, displayed_fields, protocol
from transfer.records.record import Record
from transfer.task import load_task

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
    part = name in FIELDS and name != "drop_path"
    return _equal(record.backbone.get(name) if part else record.options.get(name), value)


def _same_stem(record: Record, text: str) -> bool:
    """Return whether a run's backbone has a stem, under this or another name."""
    stem, patch = record.backbone.get("stem"), record.backbone.get("patch")
    if not stem or not patch or "stem" in (record.backbone.get("files") or {}):
        return False
    return canonical_stem(stem, patch) == canonical_stem(text, patch)


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
_BACKBONE = tuple(name for name in FIELDS if name not in ("weights", "load", "drop_path", "train_size"))


def _differs(name: str, own: Any, published: Any, mark: str = "") -> str:
    """Return the reason that a value of a run differs from the table's, which stands in brackets."""
    return f"{name} {value_label(own)} ({value_label(published)}{mark})"


def run_marks(records: Iterable[Record]) -> list[str]:
    """Return the marks of runs and of their pretrainings, unreadable images, and untrained parameters."""
    records = list(records)
    marks = [mark for record in records for mark in (*record.marks, *record.origin_marks)]
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
    reasons = [_differs(f"{name} version", recorded, version)] if version not in (None, recorded) else []
    if record.smoke or record.subset is not None or record.dataset.get("skipped"):
        return reasons  # other reasons explain the counts
    expected, counts = flat_counts(facts.counts or {}), flat_counts(record.dataset.get("counts") or {})
    if expected and not counts:
        return [*reasons, f"{name}: what it holds is not recorded"]
    return reasons + [
        _differs(f"{name} {split}", counts[split], number)
        for split, number in expected.items()
        if counts.get(split, number) != number
    ]


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
    here, effective = load_task(record.task).version, protocol(record)
    reasons = [] if record.task_version == here else [_differs(f"{record.task} version", record.task_version, here)]
    reasons += [f"no {download}" for option, download in needs.items() if record.options.get(option) is None]
    for name, value in expected.items():
        used, published = record.options.get(name), used_values(value)
        compared = name in effective and name not in ("dataset", *RESOLVED, *needs)
        if compared and not any(_equal(used, reading) for reading in published):
            reasons.append(_differs(name, used, published[0], ASSUMED * (name in left_open)))
    training = record.environment.get("precision")
    precisions = {"precision": training, "eval_precision": record.environment.get("eval_precision", training)}
    for name, used in precisions.items():
        table = expected.get(name, used)
        if used not in (_HALF if table == "auto" else (table,)):
            table = f"auto: {' or '.join(_HALF)}" if table == "auto" else table
            reasons.append(_differs(name, used or NOT_RECORDED, table))
    world, processes = displayed_fields(record)[WORLD_SIZE], process_count(step)
    if processes is not None and world not in (NO_EFFECT, processes):
        reasons.append(_differs(WORLD_SIZE, world, processes))
    return reasons


def process_count(step: Step) -> int | None:
    """Return the number of processes of a step at its tier; None if it is not stated."""
    each = step.resources.get("gpus")
    return each * (step.resources.get("nodes") or 1) if each else None


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
