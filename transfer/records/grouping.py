"""Groups records into the rows of a table, one per configuration, and labels the rows by what differs between them.

Rows of one `Comparability` have numbers that may be compared.

Imports neither torch nor pandas.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from transfer.cli.options import BACKBONE_OPTIONS
from transfer.core.errors import count
from transfer.core.grouped import grouped_by, values_by_key
from transfer.records import fields, protocol
from transfer.records.record import Record

# Parts that a command sets in the place of a backbone's own; of `pos_embed_interp` the record does not say who set it.
_SET = {*BACKBONE_OPTIONS} - {"weights", "load", "pos_embed_interp"}
# Fields of a backbone that do not change its architecture.
_NOT_ARCHITECTURE = ("name", "load", "drop_path", "train_size", "pos_embed_interp")
OF_PRETRAINING = "dataset of the pretraining"
"""The mark of runs that are scored on it."""
NO_PRETRAINING = "none (random weights)"
"""The pretraining of randomly initialized backbones."""


# Fields of the protocol that a row shows in its columns `task` and `dataset`.
_SHOWN = ("task", "dataset", "dataset_version", "skipped", "smoke", "subset")
_SAME = "the same in all rows of the dataset"


@dataclass(frozen=True)
class Comparability:
    """The group of rows whose numbers may be compared: equal in every field of the protocol.

    Attributes:
        fields: the protocol's fields that differ between the groups of the task, with this group's values.
    """

    fields: tuple[tuple[str, Any], ...]


@dataclass
class Group:
    """The runs of one configuration, which differ only in seeds, with the labels of their row.

    Attributes:
        dataset: the name of the dataset with its marks.
        backbone: the name of the backbone with the fields in which rows of that name differ.
        machines: the labels of `machines` that not all runs of the task have.
        pretraining: the trainings that the weights come from; empty if all rows start from the same weights.
        protocol: the group whose numbers may be compared; None if all rows of the task have one protocol.
        name: the name of the backbone alone.
    """

    records: list[Record]
    dataset: str
    backbone: str
    machines: str
    pretraining: str = ""
    protocol: Comparability | None = None
    name: str = ""

    @property
    def first(self) -> Record:
        """One of the records, with scores if any has; the labels of the row are the same for all."""
        return next((record for record in self.records if record.scores), self.records[0])


def grouped(records: Sequence[Record], exports: protocol.Exports, without: Collection[str] = ()) -> list[Group]:
    """Return the configurations among records, in order of appearance.

    Args:
        records: the records to group.
        exports: the runs that weights may come from, by the id of these; see `transfer.records.protocol.by_export`.
        without: names of options and fields of the backbone that do not separate rows, such as the axes of a map.
    """
    groups, distinguishing = [], machines_of_tasks(records)
    keys = zip(protocol.configurations(records, exports, without), records, strict=True)
    for members in values_by_key(keys).values():
        trainings = protocol.lineage(members[0], exports)
        name = _backbone_name(members[0], trainings)
        machine_labels = ", ".join(label for label in machines(members) if label in distinguishing[members[0].task])
        origin = origin_label(members, trainings)
        groups.append(Group(members, dataset_label(members, exports), name, machine_labels, origin, name=name))
    _tell_backbones_apart(groups, without)
    _tell_pretraining_apart(groups, exports, without)
    for same_task in grouped_by(groups, lambda group: group.first.task).values():
        _tell_protocols_apart(same_task, without)
    return groups


def shown_fields(record: Record) -> tuple[Any, ...]:
    """Return the fields of the protocol that a row shows in its columns; with these and its `Comparability` equal, the
    numbers of two rows may be compared.

    A digest of the protocol cannot say it: an option that affects a single stem, as `sync_bn` affects one with BN,
    would separate the stems that are to be compared.
    """
    content = protocol.protocol(record)
    return tuple(content.get(name) for name in _SHOWN)


def _backbone_name(record: Record, trainings: Sequence[Record]) -> str:
    """Return the backbone's name; for an export of the same architecture the name of the pretrained backbone."""
    backbone = protocol.backbone_of(record)
    pretrained = protocol.backbone_of(trainings[0]) if trainings else backbone
    architecture = pretrained.keys() - {*_NOT_ARCHITECTURE}
    same_architecture = all(backbone.get(name) == pretrained[name] for name in architecture)
    return str((pretrained if same_architecture else backbone).get("name"))


def machines(records: Iterable[Record]) -> list[str]:
    """Return where runs were computed, sorted: "2 threads", "8 processes", "torch 2.13".

    These are the minor versions of torch and, for trainings, the numbers of processes and on a CPU of threads. They may
    change the last digits of a score, in a training more of them, and belong to no protocol: networks of unlike sizes
    get unlike numbers of threads.
    """
    labels = set[str]()
    for record in records:
        environment = record.environment
        if torch := (environment.get("versions") or {}).get("torch"):
            labels.add(f"torch {'.'.join(str(torch).split('.')[:2])}")
        if not protocol.trains(record.options):
            continue
        if world := environment.get("world_size"):
            labels.add(count(world, "process", "es"))
        if (threads := environment.get("threads")) and environment.get("device_type") == "cpu":
            labels.add(count(threads, "thread"))
    return sorted(labels)


def machines_of_tasks(records: Iterable[Record]) -> dict[str, set[str]]:
    """Return, for each task, the labels of `machines` that are not the same for all of its runs."""
    differing_labels = {}
    for task, runs in grouped_by(records, lambda record: record.task).items():
        labels = [{*machines([run])} for run in runs]
        differing_labels[task] = set().union(*labels) - labels[0].intersection(*labels)
    return differing_labels


def dataset_label(records: Sequence[Record], exports: protocol.Exports, machine_labels: Iterable[str] = ()) -> str:
    """Return the dataset of the runs of one configuration with their marks: smoke, dirty, subset, version.

    Args:
        records: the runs.
        exports: see `transfer.records.protocol.by_export`.
        machine_labels: the labels of `machines` that distinguish them from other runs.
    """
    first = records[0]
    facts = {
        "subset {}": first.subset,
        "version {}": first.dataset.get("version"),
        "{} unreadable": first.dataset.get("skipped"),
        "trained on {}": first.details.get("trained_on"),
    }
    labels = [*marks(records, exports), *machine_labels, *(text.format(fact) for text, fact in facts.items() if fact)]
    return str(first.dataset.get("name")) + (f" ({', '.join(labels)})" if labels else "")


def marks(records: Sequence[Record], exports: protocol.Exports) -> list[str]:
    """Return the marks of runs: "smoke" and "dirty" if one of the runs is, else "pretraining smoke" and so on; and
    `OF_PRETRAINING`.

    Marks of pretraining runs that are not loaded are taken from each record's `origin`.
    """
    labels = [mark for mark in ("smoke", "dirty") if any(mark in record.marks for record in records)]
    labels += weights_marks(records, exports)
    if nearness_to_pretraining(records, exports) == 1:
        labels.append(OF_PRETRAINING)
    if any(record.details.get("resumed") for record in records):
        labels.append("resumed otherwise")  # by other processes, threads or devices, or with a damaged history
    return labels


def weights_marks(records: Sequence[Record], exports: protocol.Exports) -> list[str]:
    """Return the marks of the weights that runs start from: those of their trainings, unless a run has the same mark,
    and "weights modified".
    """
    parents = list(chain.from_iterable(protocol.lineage(record, exports) for record in records))
    before = (*(parent.marks for parent in parents), *(record.origin_marks for record in (*records, *parents)))
    told = {"smoke", "dirty"}.intersection(chain.from_iterable(record.marks for record in records))
    marks_of_weights = (mark for mark in dict.fromkeys(chain.from_iterable(before)) if mark not in told)
    return ["weights modified" if mark == "modified" else f"pretraining {mark}" for mark in marks_of_weights]


def nearness_to_pretraining(records: Iterable[Record], exports: protocol.Exports) -> int:
    """Return 2 if some of the runs is a pretraining, 1 if one scores weights on the dataset of their pretraining, which
    does not measure transfer, else 0.
    """
    nearness = 0
    for record in records:
        if record.task.startswith("pretrain-"):
            return 2
        before = [run.dataset for run in protocol.lineage(record, exports) if run.task.startswith("pretrain-")]
        nearness |= any(data.get(key) == record.dataset.get(key) for data in before for key in ("name", "digest"))
    return nearness


def origin_label(records: Sequence[Record], trainings: Sequence[Record]) -> str:
    """Return the trainings that the weights of runs come from; if none is known the id of the weights, or of several
    the start of the `config_digest` of their training.
    """
    record = records[0]
    if trainings:
        return " after ".join(f"{run.task.removeprefix('pretrain-')} {run.dataset.get('name')}" for run in trainings)
    if any(other.weights_id != record.weights_id for other in records):
        return f"training {record.origin['training'][:8]}"
    if record.weights_id == "random":
        return "" if record.task.startswith("pretrain-") else NO_PRETRAINING
    return record.weights_id[:15] if record.weights_id.startswith("sha256:") else record.weights_id


def _tell_backbones_apart(groups: Sequence[Group], without: Collection[str]) -> None:
    """Add to a backbone's name the fields that differ between rows of that name in a task, or that a command set."""
    for namesakes in grouped_by(groups, lambda group: group.backbone).values():
        chosen = {name for group in namesakes for name in _SET if group.first.options.get(name) is not None}
        for group, values in zip(namesakes, differing_parts(namesakes, without, chosen), strict=True):
            group.backbone = ", ".join(filter(None, (group.backbone, fields.parts_label(values))))


def differing_parts(
    groups: Sequence[Group], without: Collection[str] = (), chosen: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the fields of each row's backbone that differ between rows of a task, or stem, attention or FFN of
    any rows, and those `chosen`, with values for readers.

    The name is excluded. Stochastic depth is an option of the task.
    """
    contents = [(group.first.task, protocol.backbone_of(group.first)) for group in groups]
    hidden_names = {"name", "drop_path", *without}
    shown_names = {*chosen} | {*fields.NAMED_BY_VALUE} & fields.differing(content for _, content in contents).keys()
    for same_task in values_by_key(contents).values():
        shown_names |= fields.differing(same_task).keys()
    names = [name for name in protocol.backbone_of(groups[0].first) if name in shown_names - hidden_names]
    rows = [dict[str, Any]() for _ in groups]
    for name in names:
        values = fields.shown_values([content.get(name, protocol.NOT_RECORDED) for _, content in contents])
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    return rows


def _tell_pretraining_apart(groups: Sequence[Group], exports: protocol.Exports, without: Collection[str]) -> None:
    """Add to a pretraining's label the fields that differ between pretrainings of that label.

    If all rows start from the same pretrained weights, they get no label.
    """
    pretrained_groups = [group for group in groups if protocol.pretraining(group.first, exports)]
    for namesakes in grouped_by(pretrained_groups, lambda group: group.pretraining).values():
        contents = [fields.fields_of_weights(group.first, without, exports) for group in namesakes]
        names = fields.differing(contents)
        for group, content in zip(namesakes, contents, strict=True) if names else ():
            parent, values = exports[group.first.weights_id], dict[str, Any]()
            for name in names:
                of_parent = name.removeprefix(protocol.PRETRAINING)
                value = content.get(name, protocol.NOT_RECORDED)
                values[of_parent] = fields.short_value(parent, of_parent, value)
            label = fields.content_label(values)
            group.pretraining += f" ({label})" if label else ""
    labels = {group.pretraining for group in groups}
    if not pretrained_groups and len(labels) == 1 and NO_PRETRAINING not in labels:
        for group in groups:
            group.pretraining = ""


def _tell_protocols_apart(groups: Sequence[Group], without: Collection[str]) -> None:
    """Write the group whose numbers may be compared into the rows of a task, unless all are of one.

    The contents of a dataset are named only if rows of the same name and version have several contents.
    """
    contents = [protocol.displayed_fields(group.first, without) for group in groups]
    data_fields = {name for content in contents for name in content if name.startswith(protocol.OF_DATA)}
    datasets = grouped_by(contents, lambda content: (content.get("dataset"), content.get("dataset_version")))
    for namesakes in datasets.values():
        equal_fields = data_fields - fields.differing(namesakes).keys()
        for content in namesakes:
            content |= dict.fromkeys(equal_fields, _SAME)
    names = sorted(fields.differing(contents).keys() - {*_SHOWN})
    for group, content in zip(groups, contents, strict=True) if names else ():
        values = [fields.short_value(group.first, name, content.get(name, protocol.NOT_RECORDED)) for name in names]
        hashable_values = (tuple(value) if isinstance(value, list) else value for value in values)
        named = (pair for pair in zip(names, hashable_values, strict=True) if pair[1] != _SAME)
        group.protocol = Comparability(tuple(named))
