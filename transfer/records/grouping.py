"""Records as the rows of a table: runs of one configuration together, and the words that tell rows apart.

Imports neither torch nor pandas.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer.cli.ignored_options import FROZEN
from transfer.records.protocol import (
    NO_EFFECT,
    NOT_RECORDED,
    OF_DATA,
    backbone_of,
    by_export,
    configurations,
    differences,
    digest_of,
    displayed_fields,
    distinguishing_fields,
    in_pretraining,
    lineage,
    processes,
)
from transfer.records.store import Record
from transfer.records.task_versions import between

# Fields of the protocol that a row says in its columns `task` and `dataset`.
_SHOWN = ("task", "dataset", "dataset_version", "skipped", "smoke", "subset")
# Fields of a backbone that are not its parts.
_OF_TRAINING = ("name", "load", "drop_path", "train_size")
_SHORT = 8  # hex digits of a digest


@dataclass
class Group:
    """Runs that differ in seeds alone, and what their row says of them.

    `protocol` is a letter where the rows of a task are of several protocols, else empty; so is `pretraining` where all
    start from the same weights.
    """

    records: list[Record]
    dataset: str
    backbone: str
    pretraining: str = ""
    protocol: str = ""

    @property
    def first(self) -> Record:
        """Any of the records: what the row says is the same in all."""
        return self.records[0]


def grouped(
    records: Sequence[Record], known: Iterable[Record] | None = None, without: Collection[str] = ()
) -> tuple[list[Group], list[str]]:
    """The configurations among records in order of appearance, and notes on the letters of their protocols.

    Args:
        known: all records at hand, among which the runs are looked for that weights come from; by default `records`.
        without: names of options and of the backbone's fields that do not tell rows apart, as a map's axes.
    """
    exports = by_export(records if known is None else known)
    groups, several = [], machines_of_tasks(records)
    for members in _members(records, exports, without):
        chain = lineage(members[0], exports)
        name = _backbone_name(members[0], chain)
        made_on = [mark for mark in machines(members) if mark in several[members[0].task]]
        groups.append(Group(members, dataset_label(members, exports, made_on), name, origin_label(members[0], chain)))
    _tell_backbones_apart(groups, without)
    _tell_pretraining_apart(groups, exports, without)
    return groups, _letter_protocols(groups, without)


def _members(
    records: Sequence[Record], exports: Mapping[str, Record], without: Collection[str]
) -> Iterable[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record, key in zip(records, configurations(records, exports, without), strict=True):
        groups.setdefault(key, []).append(record)
    return groups.values()


def _backbone_name(record: Record, chain: Sequence[Record]) -> str:
    """Its name; that of the pretrained backbone where it is the same one, called by the folder of its weights."""
    one = backbone_of(record)
    other = backbone_of(chain[0]) if chain else one
    same = all(one.get(name) == value for name, value in other.items() if name not in _OF_TRAINING)
    return str((other if same else one).get("name"))


def machines(records: Iterable[Record]) -> list[str]:
    """Where runs were computed, as far as it may show in their last digits and counts in no protocol: the kinds of
    device, torch's minor versions and, of trainings, the numbers of processes; "cpu", "torch 2.13", "8 processes".
    """
    found: dict[str, None] = {}
    for record in records:
        environment = record.environment
        torch = str((environment.get("versions") or {}).get("torch") or "").split(".")[:2]
        found |= dict.fromkeys([str(environment["device_type"])] if environment.get("device_type") else [])
        found |= dict.fromkeys([f"torch {'.'.join(torch)}"] if torch[0] else [])
        if (world := environment.get("world_size")) and record.task not in FROZEN and not processes(record):
            found[f"{world} process{'es' * (world > 1)}"] = None
    return sorted(found)


def machines_of_tasks(records: Iterable[Record]) -> dict[str, set[str]]:
    """Of `machines` what tells the runs of each task apart: what all of them share need not be said."""
    of_task: dict[str, list[set[str]]] = {}
    for record in records:
        of_task.setdefault(record.task, []).append({*machines([record])})
    return {task: set().union(*marks) - set(marks[0]).intersection(*marks) for task, marks in of_task.items()}


def dataset_label(records: Sequence[Record], exports: Mapping[str, Record], made_on: Iterable[str] = ()) -> str:
    """The data set of the runs of one configuration, with all that marks them: smoke, dirty, subset, version.

    Args:
        made_on: of `machines`, what tells them from other runs.
    """
    first = records[0]
    found = [*marks(records, exports), *made_on]
    found += [f"subset {first.subset}"] * (first.subset is not None)
    version, skipped = first.dataset.get("version"), first.dataset.get("skipped")
    found += [f"version {version}"] * bool(version) + [f"{skipped} unreadable"] * bool(skipped)
    return str(first.dataset.get("name")) + (f" ({', '.join(found)})" if found else "")


def marks(records: Sequence[Record], exports: Mapping[str, Record]) -> list[str]:
    """ "smoke" and "dirty" where any of the runs is, else "pretraining smoke" and so on, "pretraining subset 8" too.

    Of trainings that are not at hand, each record says it itself.
    """
    parents = [parent for record in records for parent in lineage(record, exports)]
    told = [mark for record in (*records, *parents) for mark in record.origin_marks]
    found = []
    for mark, is_marked in (("smoke", lambda record: record.smoke), ("dirty", lambda record: record.dirty)):
        if any(map(is_marked, records)):
            found.append(mark)
        elif any(map(is_marked, parents)) or mark in told:
            found.append(f"pretraining {mark}")
    subsets = [f"subset {parent.subset}" for parent in parents if parent.subset is not None]
    subsets += [mark for mark in told if mark.startswith("subset")]
    return found + [f"pretraining {mark}" for mark in dict.fromkeys(subsets)]


def origin_label(record: Record, chain: Sequence[Record]) -> str:
    """Where a record's weights come from: the runs of its lineage, or the id of the weights."""
    if not chain:
        return record.weights_id[:15] if record.weights_id.startswith("sha256:") else record.weights_id
    said = (f"{run.task.removeprefix('pretrain-')} {run.dataset.get('name')}" for run in chain)
    return " after ".join(said)


def value_label(value: Any) -> str:
    """An option's value as one would say it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(map(value_label, value)) or "none"
    return str(value)


def content_label(content: Mapping[str, Any], names: Iterable[str]) -> str:
    """Some fields with their values, where they have an effect: "lr 0.05, epochs 20"."""
    values = {name: content.get(name, NOT_RECORDED) for name in names}
    return ", ".join(f"{name} {value_label(value)}" for name, value in values.items() if value != NO_EFFECT)


def _tell_backbones_apart(groups: Sequence[Group], without: Collection[str]) -> None:
    """Adds to a backbone's name the fields that are not the same in all rows of that name and task."""
    same: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        same.setdefault((group.first.task, group.backbone), []).append(group)
    for several in same.values():
        contents = _unlike([backbone_of(group.first) for group in several])
        # Stochastic depth is the task's option, and the size of pretraining matters to a length of that name alone.
        hidden = {"name", "drop_path", *without}
        hidden |= set() if any(one.get("length") == "train" for one in contents) else {"train_size"}
        names = [name for name in differences(contents) if name not in hidden]
        for group in several if names else ():
            said = {name: group.first.backbone.get(name, NOT_RECORDED) for name in names}
            group.backbone += f", {content_label(said, names)}"


def _tell_pretraining_apart(groups: Sequence[Group], exports: Mapping[str, Record], without: Collection[str]) -> None:
    """Adds the fields that differ between trainings of one label; none has a label where all weights are the same."""
    same: dict[str, list[tuple[Group, dict[str, Any]]]] = {}
    for group in groups:
        if chain := lineage(group.first, exports):
            same.setdefault(group.pretraining, []).append((group, _trainings(chain, in_pretraining(without, {}))))
    for several in same.values():
        names = list(distinguishing_fields(content for _, content in several))
        for group, content in several if names else ():
            group.pretraining += f", {content_label(content, names)}"
    if not same and len({group.pretraining for group in groups}) == 1:
        for group in groups:
            group.pretraining = ""


def _trainings(chain: Sequence[Record], without: Collection[str]) -> dict[str, Any]:
    """The protocols of a lineage in one dict, those behind the last run under names of their own."""
    found = {
        name: value for name, value in displayed_fields(chain[0], without).items() if name not in ("task", "dataset")
    }
    for number, record in enumerate(chain[1:], 2):
        found |= {f"{name} of run {number}": value for name, value in displayed_fields(record).items()}
    return found


def _letter_protocols(groups: Sequence[Group], without: Collection[str]) -> list[str]:
    """Gives rows of different protocols different letters; returns what the letters stand for."""
    notes: list[str] = []
    of_task: dict[str, list[Group]] = {}
    for group in groups:
        of_task.setdefault(group.first.task, []).append(group)
    for several in of_task.values():
        contents = _comparable(several, without)
        names = list(distinguishing_fields(contents))
        letters: dict[str, str] = {}
        for group, content in zip(several, contents, strict=True) if names else ():
            said = content_label({name: _said(group.first, name, content) for name in names}, names)
            said = said or f"{', '.join(names)} without effect"
            if said not in letters:
                letters[said] = letter(len(notes))
                notes.append(f"{letters[said]}: {said}")
            group.protocol = letters[said]
    for task, several in of_task.items():
        notes += between(task, (group.first.task_version for group in several if group.protocol))
    return notes


def _comparable(groups: Sequence[Group], without: Collection[str]) -> list[dict[str, Any]]:
    """The protocols without what the row says elsewhere.

    What a data set holds is the same for all rows of its name and version unless these have several contents.
    """
    contents = [displayed_fields(group.first, without) for group in groups]
    held = [name for name in dict.fromkeys(name for one in contents for name in one) if name.startswith(OF_DATA)]
    for name in held:
        several: dict[tuple[Any, Any], set[Any]] = {}
        for content in contents:
            several.setdefault((content.get("dataset"), content.get("dataset_version")), set()).add(content.get(name))
        for content in contents:
            if name not in _SHOWN and len(several[content.get("dataset"), content.get("dataset_version")]) == 1:
                content[name] = "the same"
    return [{name: value for name, value in content.items() if name not in _SHOWN} for content in contents]


def _said(record: Record, name: str, content: Mapping[str, Any]) -> Any:
    """A field's value in short: of a file its name and the start of its digest."""
    value = content.get(name, NOT_RECORDED)
    if isinstance(value, str) and len(hexadecimal := value.removeprefix("sha256:")) == 64:
        file = Path(str(record.options.get(name) or "")).name
        return f"{file} {hexadecimal[:_SHORT]}".strip()
    return value


def _unlike(contents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each content once."""
    return list({digest_of(content): content for content in contents}.values())


def letter(number: int) -> str:
    """a, b, ... z, aa, ab, ... for 0, 1, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text
