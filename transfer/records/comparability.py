"""Groups the rows of a table whose numbers may be compared. Imports neither torch nor pandas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer.records import protocol
from transfer.records.fields import content_label
from transfer.records.record import Record

# Fields of the protocol that a row shows in its columns `task` and `dataset`.
_SHOWN = ("task", "dataset", "dataset_version", "skipped", "smoke", "subset")
_SHORT = 8  # hex digits of a digest


@dataclass(frozen=True)
class Comparability:
    """The group of rows whose numbers may be compared: equal in every field of the protocol.

    Attributes:
        fields: the protocol's fields that differ between the groups of the task, with this group's values.
    """

    fields: tuple[tuple[str, Any], ...]


def comparabilities(records: Sequence[Record], without: Collection[str] = ()) -> list[Comparability | None]:
    """Return the comparability group of each row; None if all rows of its task are in one group.

    Args:
        records: any record of each row.
        without: names of options that do not separate rows, such as the axes of a map.
    """
    result: list[Comparability | None] = [None] * len(records)
    rows_of_task: dict[str, list[int]] = {}
    for row, record in enumerate(records):
        rows_of_task.setdefault(record.task, []).append(row)
    for rows in rows_of_task.values():
        contents = _comparable([records[row] for row in rows], without)
        names = sorted(protocol.distinguishing_fields(contents))
        for row, content in zip(rows, contents, strict=True) if names else ():
            values = [short_value(records[row], name, content.get(name, protocol.NOT_RECORDED)) for name in names]
            plain = (tuple(value) if isinstance(value, list) else value for value in values)
            result[row] = Comparability(tuple(zip(names, plain, strict=True)))
    return result


def shown_fields(record: Record) -> tuple[Any, ...]:
    """Return the fields of the protocol that a row shows in its columns; with these and its `Comparability` equal, the
    numbers of two rows may be compared.

    A digest of the protocol cannot say it: an option that affects a single stem, as `sync_bn` affects one with BN,
    would separate the stems that are to be compared.
    """
    content = protocol.protocol(record)
    return tuple(content.get(name) for name in _SHOWN)


def _comparable(records: Sequence[Record], without: Collection[str]) -> list[dict[str, Any]]:
    """Return the protocols without the fields that a row shows in its columns.

    The contents of a dataset differ only if rows of the same name and version have several contents.
    """
    contents = [protocol.displayed_fields(record, without) for record in records]
    names = dict.fromkeys(name for content in contents for name in content)
    for name in (name for name in names if name.startswith(protocol.OF_DATA)):
        several: dict[tuple[Any, Any], set[Any]] = {}
        for content in contents:
            several.setdefault((content.get("dataset"), content.get("dataset_version")), set()).add(content.get(name))
        for content in contents:
            if name not in _SHOWN and len(several[content.get("dataset"), content.get("dataset_version")]) == 1:
                content[name] = "the same"
    return [{name: value for name, value in content.items() if name not in _SHOWN} for content in contents]


def short_value(record: Record, name: str, value: Any) -> Any:
    """Return the value of a field; for a file its name and the start of its digest."""
    if isinstance(value, str) and len(hexadecimal := value.removeprefix("sha256:")) == 64:
        file = Path(str(record.options.get(name) or "")).name
        return f"{file} {hexadecimal[:_SHORT]}".strip()
    return value


def setting_fields(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that tell settings apart; a field that a setting does not have has no effect in it.

    Pretrainings of several methods differ in most options; of these the ones are named that differ within a method.
    What describes the contents of data is named only where settings differ in nothing else.
    """
    every = dict.fromkeys(name for content in contents for name in content)
    filled = [{name: content.get(name, protocol.NO_EFFECT) for name in every} for content in contents]
    method = f"{protocol.PRETRAINING}task"
    of_methods = [[one for one in filled if one.get(method) == name] for name in {one.get(method) for one in filled}]
    within = {name for of_method in of_methods for name in protocol.distinguishing_fields(of_method)} | {method}
    names = [
        name
        for name in protocol.distinguishing_fields(filled)
        if name in within or not name.startswith(protocol.PRETRAINING)
    ]

    def suffices(chosen: Sequence[str]) -> bool:
        return len({content_label(content, chosen) for content in filled}) == len(filled)

    for name in [name for name in names if name.removeprefix(protocol.PRETRAINING).startswith(protocol.OF_DATA)]:
        fewer = [other for other in names if other != name]
        names = fewer if suffices(fewer) else names
    return names if suffices(names) else list(protocol.differences(filled))
