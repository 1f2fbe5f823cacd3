"""Differences between a run and the sweep of a published table: reasons why numbers differ. Imports no torch.

If a recipe has precision `auto`, bf16 and fp16 both agree with the table: the recipes' references train in fp16, and on
the GPUs of the full tier `auto` resolves to bf16. fp32 does not agree.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from backbones.archs import VOLOS
from backbones.spec import FIELDS, BackboneSpec
from transfer.cli.options import EXECUTION
from transfer.data.spec import DatasetSpec, flat_counts, resolve_dataset
from transfer.experiments.published_rows import Reason, Row, used_values
from transfer.experiments.step import BACKBONE_OPTIONS, Step
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
        return same_stem(record, str(value))
    part = name in FIELDS and name != "drop_path"
    return equal(record.backbone.get(name) if part else record.options.get(name), value)


def same_stem(record: Record, text: str) -> bool:
    """Return whether a run's backbone has a stem, under this or another name."""
    stem, patch = record.backbone.get("stem"), record.backbone.get("patch")
    if not stem or not patch or "stem" in (record.backbone.get("files") or {}):
        return False
    return canonical_stem(stem, patch) == canonical_stem(text, patch)


def equal(left: Any, right: Any) -> bool:
    """Return whether two values of an option are equal, numbers up to a relative difference of 1e-9."""
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (left, right)]
    return math.isclose(left, right, rel_tol=1e-9) if all(numbers) else bool(left == right)


def is_volo(record: Record) -> bool:
    """Return whether a run's backbone is a VOLO."""
    return (record.backbone.get("arch") or record.options.get("arch")) in VOLOS


ID = 40
"""Number of characters shown of an id of weights."""
WORLD_SIZE = "world_size"
_HALF = ("bf16", "fp16")
# Fields of a backbone that must agree besides the options that a row names.
_BACKBONE = tuple(name for name in FIELDS if name not in ("weights", "load", "drop_path", "train_size"))
_NO_OPTIONS = frozenset((*EXECUTION, *BACKBONE_OPTIONS, "dataset", "method", "precision", "eval_precision"))


def differs(name: str, own: Any, published: Any, *, assumed: bool = False, option: bool = False) -> Reason:
    """Return the reason that a value of a run differs from the table's.

    Args:
        name: name of the option, of the backbone's part, or of a fact about the dataset.
        own: value of the own run.
        published: value of the table.
        assumed: whether the paper leaves the value open, so that the table's value is the shipped sweep's.
        option: see `Reason.is_option`.
    """
    return Reason(f"{name} {value_label(own)} ({value_label(published)}{_assumed(assumed)})", option)


def _assumed(assumed: bool) -> str:
    return " taken, not stated" * assumed


def run_marks(records: Iterable[Record]) -> list[Reason]:
    """Return the marks of runs and of their pretrainings, unreadable images, and untrained parameters."""
    records = list(records)
    origins = [mark for record in records for mark in record.origin_marks]
    here = {"smoke": any(record.smoke for record in records), "dirty": any(record.dirty for record in records)}
    names = [mark for mark, is_here in here.items() if is_here or mark in origins]
    names += [f"subset {record.subset}" for record in records if record.subset is not None]
    names += [mark for mark in origins if mark.startswith("subset")]
    skipped = [record.dataset["skipped"] for record in records if record.dataset.get("skipped")]
    names += [f"{count} images unreadable" for count in skipped]
    names += [f"left untrained: {', '.join(record.untrained)}" for record in records if record.untrained]
    return list(map(Reason, names))


def dataset_differences(record: Record, published: Sequence[str], versions: Mapping[str, str]) -> list[Reason]:
    """Return the differences of the dataset: another name, another version, or other counts than its published files.

    Args:
        published: names of datasets that agree with the table.
        versions: version that the table uses, by dataset, for datasets whose specification has none.
    """
    name, subset = str(record.dataset.get("name")), record.subset is not None
    if name not in published:
        return [Reason(f"{name} for {', '.join(published)}")]
    facts, reasons = _facts(name), list[Reason]()
    version, recorded = facts.version or versions.get(name), record.dataset.get("version")
    if version is not None and recorded != version:
        reasons.append(differs(f"{name} version", recorded, version))
    expected, counts = flat_counts(facts.counts or {}), flat_counts(record.dataset.get("counts") or {})
    if record.smoke or subset or record.dataset.get("skipped"):
        return reasons  # other reasons explain the counts
    if expected and not counts:
        return [*reasons, Reason(f"{name}: what it holds is not recorded")]
    return reasons + [
        differs(f"{name} {split}", counts[split], number)
        for split, number in expected.items()
        if split in counts and counts[split] != number
    ]


@lru_cache
def _facts(name: str) -> DatasetSpec:
    return resolve_dataset(name)


def missing_downloads(record: Record, needs: Mapping[str, str]) -> list[Reason]:
    """Return the downloads that the published number used and the run did not.

    Args:
        needs: name of each download, by the option that names its folder.
    """
    return [Reason(f"no {download}") for option, download in needs.items() if record.options.get(option) is None]


def task_version_differences(record: Record) -> list[Reason]:
    """Return the difference of the task's version from that of the task here, if any."""
    here = load_task(record.task).version
    return [] if record.task_version == here else [differs(f"{record.task} version", record.task_version, here)]


def precision_differences(record: Record, options: Mapping[str, Any]) -> list[Reason]:
    """Return the differences in precision of training and evaluation; `auto` counts as the precision it resolved to."""
    training = record.environment.get("precision")
    scoring = record.environment.get("eval_precision", training)
    reasons = [_precision_difference("precision", training, options["precision"])] if "precision" in options else []
    published = options.get("eval_precision")
    if published is not None and published != "run":
        reasons.append(_precision_difference("eval_precision", scoring, published))
    elif published == "run" and scoring != training:
        reasons.append(_precision_difference("eval_precision", scoring, training))
    return [reason for reason in reasons if reason]


def _precision_difference(name: str, used: Any, published: Any) -> Reason | None:
    if used in (_HALF if published == "auto" else (published,)):
        return None
    table = f"auto: {' or '.join(_HALF)}" if published == "auto" else published
    return differs(name, used or NOT_RECORDED, table, option=True)


def process_count_differences(record: Record, step: Step) -> list[Reason]:
    """Return the difference in the number of processes, where each process computes on its part of a batch alone."""
    table = process_count(step)
    if table is None or (world := displayed_fields(record)[WORLD_SIZE]) in (NO_EFFECT, table):
        return []
    return [differs(WORLD_SIZE, world, table, option=True)]


def unstated_processes(record: Record, step: Step) -> int | str | None:
    """Return the number of processes of a run, if it matters and the table's step states none; otherwise None."""
    world: int | str = displayed_fields(record)[WORLD_SIZE]
    return None if process_count(step) is not None or world == NO_EFFECT else world


def process_count(step: Step) -> int | None:
    """Return the number of processes of a step at its tier; None if it is not stated."""
    each = step.resources.get("gpus") or step.resources.get("processes")
    return each * (step.resources.get("nodes") or 1) if each else None


def option_differences(record: Record, expected: Mapping[str, Any], left_open: Collection[str]) -> list[Reason]:
    """Return the differences in options that have an effect.

    Args:
        expected: all options of the table's step.
        left_open: names of options that the paper does not state.
    """
    effective, reasons = protocol(record), list[Reason]()
    for name, value in expected.items():
        used, published = record.options.get(name), used_values(value)
        if name not in _NO_OPTIONS and name in effective and not any(equal(used, reading) for reading in published):
            reasons.append(differs(name, used, published[0], assumed=name in left_open, option=True))
    return reasons


def backbone_differences(record: Record, expected: BackboneSpec, matched: Collection[str]) -> list[Reason]:
    """Return the differences in parts of the backbone.

    Args:
        expected: backbone of the table's step.
        matched: names of parts that a row names, which the run is known to match.
    """
    reasons: list[Reason] = []
    for name in _BACKBONE if record.backbone else ():
        if name in matched:
            continue
        used, value = record.backbone.get(name), getattr(expected, name)
        if name == "stem" and value and same_stem(record, value):
            continue
        if name in ("alpha", "length") and expected.attention == record.backbone.get("attention") == "softmax":
            continue  # softmax uses neither
        if name in ("mean", "std") and used is None:
            continue  # the values of timm's weights
        if not equal(used, value):
            reasons.append(differs(name, used, value, option=True))
    return reasons


def weights_differences(record: Record, step: Step, row: Row, *, trained: bool, left_open: bool) -> list[Reason]:
    """Return the difference in the initial weights of a run of a step without a preceding step.

    The table's weights are those that its row names, or else its step, and random by default.

    Args:
        trained: whether the run starts from another run's weights.
        left_open: whether the paper does not state the weights.
    """
    named = used_values(row.steps.get(step.name, {}).get("weights", step.options.get("weights", "random")))
    if record.weights_id in named:
        return []
    start = "an own pretraining" if trained else f"weights {record.weights_id[:ID]}"
    return [Reason(f"starts from {start} ({named[0]}{_assumed(left_open)})")]
