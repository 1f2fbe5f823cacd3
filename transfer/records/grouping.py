"""Records as the rows of a table: runs of one configuration together, and the words that tell rows apart.

Imports neither torch nor pandas.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer.cli.ignored_options import FROZEN
from transfer.records.comparability import Comparabilities, Comparability, comparabilities
from transfer.records.labels import content_label
from transfer.records.protocol import (
    NOT_RECORDED,
    backbone_of,
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

# Fields of a backbone that are not its parts.
_OF_TRAINING = ("name", "load", "drop_path", "train_size")


@dataclass
class Group:
    """Runs that differ in seeds alone, and what their row says of them.

    Attributes:
        pretraining: where the weights come from; empty where all rows start from the same ones.
        protocol: whose numbers theirs may be compared with; None where the rows of the task are all of one protocol.
    """

    records: list[Record]
    dataset: str
    backbone: str
    pretraining: str = ""
    protocol: Comparability | None = None

    @property
    def first(self) -> Record:
        """Any of the records: what the row says is the same in all."""
        return self.records[0]


@dataclass(frozen=True)
class Grouping:
    """The configurations among some runs, and what their comparability groups differ in."""

    groups: list[Group]
    comparability: Comparabilities


def grouped(records: Sequence[Record], exports: Mapping[str, Record], without: Collection[str] = ()) -> Grouping:
    """Return the configurations among records, in order of appearance.

    Args:
        exports: the runs that weights may come from, by the id of these; see `transfer.records.protocol.by_export`.
        without: names of options and of the backbone's fields that do not tell rows apart, as a map's axes.
    """
    groups, several = [], machines_of_tasks(records)
    for members in _members(records, exports, without):
        chain = lineage(members[0], exports)
        name = _backbone_name(members[0], chain)
        made_on = [mark for mark in machines(members) if mark in several[members[0].task]]
        groups.append(Group(members, dataset_label(members, exports, made_on), name, origin_label(members[0], chain)))
    _tell_backbones_apart(groups, without)
    _tell_pretraining_apart(groups, exports, without)
    comparability = comparabilities([group.first for group in groups], without)
    for group, protocol in zip(groups, comparability.of_row, strict=True):
        group.protocol = protocol
    return Grouping(groups, comparability)


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


def _unlike(contents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each content once."""
    return list({digest_of(content): content for content in contents}.values())
