"""What keeps an own number apart from a published one, fact by fact of a run. Imports no torch.

Where a recipe says `auto` precision, half precision is the table's: the recipes' references train in fp16, and on the
GPUs of the full tier `auto` comes to bf16. Either counts as the table's; fp32 does not.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from backbones.data.spec import DatasetSpec, resolve_dataset
from backbones.spec import FIELDS, BackboneSpec
from transfer.cli.options import EXECUTION
from transfer.published.reasons import (
    ContentsNotRecorded,
    Differs,
    Lacks,
    Marked,
    OtherDataset,
    OtherTaskVersion,
    OtherWeights,
    Reason,
    UnreadableImages,
    Untrained,
    hashable,
)
from transfer.published.rows import Row, used_values
from transfer.records.protocol import NO_EFFECT, NOT_RECORDED, displayed_fields, protocol
from transfer.records.record import Record
from transfer.records.task_versions import latest
from transfer.report.published.option_readings import equal, same_stem
from transfer.sweep.definition.step import BACKBONE_OPTIONS, Step

WORLD_SIZE = "world_size"
_HALF = ("bf16", "fp16")
# Of a backbone, what two numbers must have in common besides the row's own options; the name and the weights are not.
_BACKBONE = tuple(name for name in FIELDS if name not in ("weights", "load", "drop_path", "train_size"))
_NO_OPTIONS = frozenset((*EXECUTION, *BACKBONE_OPTIONS, "dataset", "method", "precision", "eval_precision"))


def marks(records: Iterable[Record]) -> list[Reason]:
    """Return what marks these runs and the trainings behind them, and the parts that stayed untrained."""
    records = list(records)
    origins = [mark for record in records for mark in record.origin_marks]
    here = {"smoke": any(record.smoke for record in records), "dirty": any(record.dirty for record in records)}
    names = [mark for mark, is_here in here.items() if is_here or mark in origins]
    names += [f"subset {record.subset}" for record in records if record.subset is not None]
    names += [mark for mark in origins if mark.startswith("subset")]
    reasons: list[Reason] = [Marked(name) for name in names]
    reasons += [UnreadableImages(skipped) for record in records if (skipped := record.dataset.get("skipped"))]
    return reasons + [Untrained(tuple(map(str, record.untrained))) for record in records if record.untrained]


def of_data(record: Record, published: Sequence[str], versions: Mapping[str, str]) -> list[Reason]:
    """Return where the data set is another one, or holds something else than its published files.

    Args:
        published: names of data sets, of which the record's is to be one.
        versions: by data set, the table's where the facts of the set state none.
    """
    name, subset = str(record.dataset.get("name")), record.subset is not None
    if name not in published:
        return [OtherDataset(name, tuple(published))]
    facts, reasons = _facts(name), list[Reason]()
    version, recorded = facts.version or versions.get(name), record.dataset.get("version")
    if version is not None and recorded != version:
        reasons.append(Differs(f"{name} version", recorded, version))
    expected, counts = _flat(facts.counts or {}), _flat(record.dataset.get("counts") or {})
    if record.smoke or subset or record.dataset.get("skipped"):
        return reasons  # which says why the counts are others
    if expected and not counts:
        return [*reasons, ContentsNotRecorded(name)]
    return reasons + [
        Differs(f"{name} {split}", counts[split], number)
        for split, number in expected.items()
        if split in counts and counts[split] != number
    ]


@lru_cache
def _facts(name: str) -> DatasetSpec:
    return resolve_dataset(name)


def _flat(counts: Mapping[str, Any]) -> dict[str, Any]:
    """{"train": {"images": 5}, "classes": 1} -> {"train images": 5, "classes": 1}."""
    flat: dict[str, Any] = {}
    for key, value in counts.items():
        inner = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key} {unit}".strip(): number for unit, number in inner.items()}
    return flat


def of_downloads(record: Record, needs: Mapping[str, str]) -> list[Reason]:
    """Return what the published number was made with and this run was not; in which folder it lies does not matter.

    Args:
        needs: by option that names the folder, what is in it.
    """
    return [Lacks(download) for option, download in needs.items() if record.options.get(option) is None]


def of_version(record: Record) -> list[Reason]:
    """Return whether the record is of a version of its task whose scores do not stand beside those of today's."""
    today = latest(record.task)
    return [] if record.task_version == today else [OtherTaskVersion(record.task, record.task_version, today)]


def of_precision(record: Record, options: Mapping[str, Any]) -> list[Reason]:
    """Return where a run trained or scored in another precision than the table's; what `auto` came to counts."""
    training = record.environment.get("precision")
    scoring = record.environment.get("eval_precision", training)
    reasons = [_unlike("precision", training, options["precision"])] if "precision" in options else []
    published = options.get("eval_precision")
    if published is not None and published != "run":
        reasons.append(_unlike("eval_precision", scoring, published))
    elif published == "run" and scoring != training:
        reasons.append(_unlike("eval_precision", scoring, training))
    return [reason for reason in reasons if reason]


def _unlike(name: str, own: Any, published: Any) -> Reason | None:
    if own in (_HALF if published == "auto" else (published,)):
        return None
    table = f"auto: {' or '.join(_HALF)}" if published == "auto" else published
    return Differs(name, own or NOT_RECORDED, table, option=True)


def of_processes(record: Record, step: Step) -> list[Reason]:
    """Return where the table has another number of processes, and each of them works on its part of a batch alone."""
    table = processes(step)
    if table is None or (world := displayed_fields(record)[WORLD_SIZE]) in (NO_EFFECT, table):
        return []
    return [Differs(WORLD_SIZE, world, table, option=True)]


def unstated_processes(record: Record, step: Step) -> int | str | None:
    """Return how many processes a run had where their number matters and the table's step states none; else None."""
    world: int | str = displayed_fields(record)[WORLD_SIZE]
    return None if processes(step) is not None or world == NO_EFFECT else world


def processes(step: Step) -> int | None:
    """Return how many processes the step has at its tier; None where it does not say."""
    each = step.resources.get("gpus") or step.resources.get("processes")
    return each * (step.resources.get("nodes") or 1) if each else None


def of_options(record: Record, expected: Mapping[str, Any], left_open: Collection[str]) -> list[Reason]:
    """Return the options that are not the table's, where they have an effect.

    Args:
        expected: all options of the table's step.
        left_open: options that the paper does not state.
    """
    effective, reasons = protocol(record), list[Reason]()
    for name, value in expected.items():
        own, used = record.options.get(name), used_values(value)
        if name not in _NO_OPTIONS and name in effective and not any(equal(own, one) for one in used):
            reasons.append(Differs(name, hashable(own), hashable(used[0]), taken=name in left_open, option=True))
    return reasons


def of_backbone(record: Record, expected: BackboneSpec, matched: Collection[str]) -> list[Reason]:
    """Return the parts of the backbone that are not the table's.

    Args:
        matched: parts that a row names, in one reading or another.
    """
    reasons: list[Reason] = []
    for name in _BACKBONE if record.backbone else ():
        if name in matched:
            continue
        own, value = record.backbone.get(name), getattr(expected, name)
        if name == "stem" and value and same_stem(record, value):
            continue
        if name in ("alpha", "length") and expected.attention == record.backbone.get("attention") == "softmax":
            continue  # softmax has neither
        if name in ("mean", "std") and own is None:
            continue  # those of timm's weights
        if not equal(own, value):
            reasons.append(Differs(name, hashable(own), hashable(value), option=True))
    return reasons


def of_weights(record: Record, step: Step, row: Row, *, trained: bool, left_open: bool) -> list[Reason]:
    """Return whether a run of a step that no other step comes before starts from other weights than the table's.

    These are random ones, or those that are named; a row names them before its step does.
    """
    named = used_values(row.steps.get(step.name, {}).get("weights", step.options.get("weights", "random")))
    if record.weights_id in named:
        return []
    return [OtherWeights("" if trained else record.weights_id, str(named[0]), taken=left_open)]
