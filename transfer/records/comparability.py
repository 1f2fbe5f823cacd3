"""Groups the rows of a table whose numbers may be compared. Imports neither torch nor pandas."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transfer.records import protocol
from transfer.records.fields import differing, short_value
from transfer.records.record import Record

# Fields of the protocol that a row shows in its columns `task` and `dataset`.
_SHOWN = ("task", "dataset", "dataset_version", "skipped", "smoke", "subset")


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
        names = sorted(differing(contents))
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
    of_data = {name for content in contents for name in content if name.startswith(protocol.OF_DATA)}
    of_dataset: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for content in contents:
        of_dataset.setdefault((content.get("dataset"), content.get("dataset_version")), []).append(content)
    for namesakes in of_dataset.values():
        same = of_data - differing(namesakes).keys()
        for content in namesakes:
            content |= dict.fromkeys(same, "the same")
    return [{name: value for name, value in content.items() if name not in _SHOWN} for content in contents]
