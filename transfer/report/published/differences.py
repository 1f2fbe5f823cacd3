"""What keeps an own number apart from a published one: each difference as a value. Imports no torch.

Where a recipe says `auto` precision, half precision is the table's: the recipes' references train in fp16, and on the
GPUs of the full tier `auto` comes to bf16. Either counts as the table's; fp32 does not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from backbones.data.spec import DatasetSpec, resolve_dataset
from transfer.records.labels import value_label
from transfer.records.protocol import NO_EFFECT, displayed_fields
from transfer.records.record import Record
from transfer.records.task_versions import between, latest
from transfer.sweep.definition.step import Step

WORLD_SIZE = "world_size"
_HALF = ("bf16", "fp16")
TAKEN = " taken, not stated"
"""Behind a value of the table's sweep that the paper leaves open."""


@dataclass(frozen=True)
class Reason:
    """Why a number cannot be compared with a published one."""

    text: str
    option: bool = False
    """Whether it names an option or a part of the backbone, with the table's value in brackets."""
    notes: tuple[str, ...] = ()
    """What is to be said below the table besides."""

    def of_step(self, step: str) -> "Reason":
        """The same of the training behind a cell."""
        return replace(self, text=f"{step}: {self.text}")


def marks(records: Iterable[Record]) -> list[Reason]:
    """What marks these runs and the trainings behind them, and the parts that stayed untrained."""
    records = list(records)
    told = [mark for record in records for mark in record.origin_marks]
    there = {"smoke": any(record.smoke for record in records), "dirty": any(record.dirty for record in records)}
    found = [mark for mark, is_there in there.items() if is_there or mark in told]
    found += [f"subset {record.subset}" for record in records if record.subset is not None]
    found += [mark for mark in told if mark.startswith("subset")]
    found += [f"{skipped} images unreadable" for record in records if (skipped := record.dataset.get("skipped"))]
    found += [f"left untrained: {', '.join(map(str, one.untrained))}" for one in records if one.untrained]
    return [Reason(text) for text in found]


def of_data(record: Record, wanted: Sequence[str], versions: Mapping[str, str]) -> list[Reason]:
    """Where the data set is another one, or holds something else than its published files.

    Args:
        wanted: names of data sets, of which the record's is to be one.
        versions: by data set, the table's where the facts of the set state none.
    """
    name, subset = str(record.dataset.get("name")), record.subset is not None
    if name not in wanted:
        return [Reason(f"{name} for {', '.join(wanted)}")]
    facts, found = _facts(name), []
    version, held = facts.version or versions.get(name), record.dataset.get("version")
    if version is not None and held != version:
        found.append(Reason(f"{name} version {value_label(held)} ({version})"))
    expected, counts = _flat(facts.counts or {}), _flat(record.dataset.get("counts") or {})
    if record.smoke or subset or record.dataset.get("skipped"):
        return found  # which says why the counts are others
    if expected and not counts:
        return [*found, Reason(f"{name}: what it holds is not recorded")]
    return found + [
        Reason(f"{name} {what} {counts[what]} ({number})")
        for what, number in expected.items()
        if what in counts and counts[what] != number
    ]


@lru_cache
def _facts(name: str) -> DatasetSpec:
    return resolve_dataset(name)


def _flat(counts: Mapping[str, Any]) -> dict[str, Any]:
    """{"train": {"images": 5}, "classes": 1} -> {"train images": 5, "classes": 1}."""
    found: dict[str, Any] = {}
    for key, value in counts.items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{key} {unit}".strip(): number for unit, number in inner.items()}
    return found


def of_downloads(record: Record, needs: Mapping[str, str]) -> list[Reason]:
    """Where it was made without what the published number was made with; in which folder that lies does not matter.

    Args:
        needs: by option that names the folder, what is in it.
    """
    return [Reason(f"no {what}") for option, what in needs.items() if record.options.get(option) is None]


def of_version(record: Record) -> list[Reason]:
    """Where the record is of a version of its task whose scores do not stand beside those of today's."""
    today = latest(record.task)
    if record.task_version == today:
        return []
    text = f"{record.task} version {record.task_version} ({today})"
    return [Reason(text, notes=tuple(between(record.task, (record.task_version, today))))]


def of_precision(record: Record, options: Mapping[str, Any]) -> list[Reason]:
    """Where it trained or scored in another precision than the table's options say; what `auto` came to counts."""
    training = record.environment.get("precision")
    scoring = record.environment.get("eval_precision", training)
    found = [_unlike("precision", training, options["precision"])] if "precision" in options else []
    said = options.get("eval_precision")
    if said is not None and said != "run":
        found.append(_unlike("eval_precision", scoring, said))
    elif said == "run" and scoring != training:
        found.append(_unlike("eval_precision", scoring, training))
    return [reason for reason in found if reason]


def _unlike(name: str, held: Any, said: Any) -> Reason | None:
    if held in (_HALF if said == "auto" else (said,)):
        return None
    table = f"auto: {' or '.join(_HALF)}" if said == "auto" else value_label(said)
    return Reason(f"{name} {held or 'not recorded'} ({table})", option=True)


def of_processes(record: Record, step: Step) -> list[Reason]:
    """Where each process saw to its part of a batch by itself, and the table's step has another number of them."""
    table = processes(step)
    if table is None or (world := displayed_fields(record)[WORLD_SIZE]) in (NO_EFFECT, table):
        return []
    return [Reason(f"{WORLD_SIZE} {world} ({table})", option=True)]


def notes_on_processes(record: Record, step: Step) -> list[str]:
    """What is to be said where the number of processes matters and the table's step states none."""
    if processes(step) is not None or (world := displayed_fields(record)[WORLD_SIZE]) == NO_EFFECT:
        return []
    said = "each of which sees to its part of a batch by itself; the table's sweep does not say how many there are"
    return [f"{record.run_id}: processes {world}, {said}"]


def processes(step: Step) -> int | None:
    """How many processes the step has at its tier; None where it does not say."""
    each = step.resources.get("gpus") or step.resources.get("processes")
    return each * (step.resources.get("nodes") or 1) if each else None
