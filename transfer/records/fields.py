"""Fields of records by name, for the axes of maps and plots; what differs among rows, and what it is called.

Rows are flat: names of fields with values, `NO_EFFECT` for one that does not act, as in
`transfer.records.protocol.displayed_fields`.

Imports neither torch nor pandas.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from transfer.cli.options import BACKBONE_OPTIONS
from transfer.core.errors import unknown
from transfer.core.grouped import values_by_key, without_repeats
from transfer.core.user_code import VARIED_PARTS
from transfer.records import protocol
from transfer.records.protocol import NO_EFFECT, NOT_RECORDED, Exports
from transfer.records.record import Record

_BY_CONTENT = re.compile("sha256:[0-9a-f]{64}:")
"""How a record names a custom part: by the content of its file, before its class."""

NAMED_BY_VALUE = (*VARIED_PARTS, "backbone", "name")
"""Parts of a backbone that readers know by their value alone; `backbone` and `name` are its name."""


def value_label(value: Any) -> str:
    """Return an option's value for a reader: "none", "yes", "0.05", "1 2 3"; a custom part by its class."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return " ".join(map(value_label, value)) or "none"
    text = str(value)
    return text.rpartition(":")[2] if ".py:" in text or _BY_CONTENT.match(text) else text


def shown_values(values: Sequence[Any]) -> list[Any]:
    """Return values for readers: of a custom part its class, and the start of its digest if another file has it too."""
    files = values_by_key((value_label(value), value) for value in values)
    shown = []
    for value in values:
        label = value_label(value)
        if isinstance(value, str) and _BY_CONTENT.match(value):
            value = f"{label} {value[7:15]}" if len({*files[label]}) > 1 else label
        shown.append(value)
    return shown


def short_value(record: Record, name: str, value: Any) -> Any:
    """Return the value of a field, a digest by its start: of a file behind its name, of a dataset before the numbers of
    its images, as in "58b6e85f of 260 + 160 images"; for weights of all seeds of a training without a record
    (`fields_of_weights`) that of the training.
    """
    hexadecimal = value.removeprefix("sha256:") if isinstance(value, str) else ""
    if len(hexadecimal) != 64:
        return value
    start = hexadecimal[:8]
    if value == record.origin.get("training"):
        return f"training {start} without a record"
    splits = (record.dataset.get("counts") or {}).values() if name == "dataset_digest" else ()
    if images := [str(split["images"]) for split in splits if isinstance(split, dict) and "images" in split]:
        return f"{start} of {' + '.join(images)} images"
    return f"{Path(str(record.options.get(name) or '')).name} {start}".strip()


def content_label(content: Mapping[str, Any]) -> str:
    """Return fields with their values as text, those without effect left out: "lr 0.05, epochs 20"."""
    return ", ".join(f"{name} {value_label(value)}" for name, value in content.items() if value != NO_EFFECT)


def parts_label(parts: Mapping[str, Any], between: str = ", ") -> str:
    """Return the parts of a backbone as text: "LapStem, relu, qk_norm, depth 4"."""
    texts = []
    for name, value in parts.items():
        if isinstance(value, bool):
            texts.append(name if value else f"no {name}")
        elif value != NO_EFFECT:
            alone = name in NAMED_BY_VALUE and value != NOT_RECORDED
            texts.append(value_label(value) if alone else f"{name} {value_label(value)}")
    return between.join(texts)


def values_label(fields: Mapping[str, Iterable[Any]], between: str = ", ", after: str = ", ") -> str:
    """Return fields with several values each as text: "lr (0.05, 0.1), epochs (20, 30)"."""
    return after.join(f"{name} ({between.join(map(value_label, values))})" for name, values in fields.items())


def differing(rows: Iterable[Mapping[str, Any]], missing: Any = NOT_RECORDED) -> dict[str, list[Any]]:
    """Return the fields that differ between rows, with their values in order of appearance.

    A field that is the same wherever it has an effect is left out: it is another field that takes the effect away.

    Args:
        rows: the rows.
        missing: the value of a field that a row lacks.
    """
    rows, fields = list(rows), {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        values = without_repeats(row.get(name, missing) for row in rows)
        if len(values) > 1 + (NO_EFFECT in values):
            fields[name] = values
    return fields


def told_apart(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> int:
    """Return how many rows readers can tell apart by some fields."""

    def texts(row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(value_label(row.get(name, NO_EFFECT)) for name in names)

    return len({*map(texts, rows)})


def fewest(rows: Sequence[Mapping[str, Any]], names: list[str], dispensable: Iterable[str]) -> list[str]:
    """Return fields without those of the `dispensable` ones by which no further rows are told apart."""
    for name in dispensable:
        fewer = [other for other in names if other != name]
        names = fewer if told_apart(rows, fewer) == told_apart(rows, names) else names
    return names


FRACTION = "label_fraction"
"""The option that changes the training images of a dataset and leaves the others."""
BASELINE = {"stem": "patchify", "attention": "softmax"}
"""The parts whose change is this suite's question, with the value that variants are compared with."""


def value_of(record: Record, name: str, exports: Exports) -> Any:
    """Return the value of a field as a number, text, bool or None; None also if the record has no such field.

    Args:
        record: the record.
        name: task, dataset, backbone, run (its id), seed, weights (their id), device_type, a field of the resolved
            backbone (equal stems have one name), an option of the task, or one of these behind `pretraining.`.
        exports: see `transfer.records.protocol.by_export`.
    """
    if name.startswith(protocol.PRETRAINING):
        parent = protocol.pretraining(record, exports)
        return None if parent is None else value_of(parent, name.removeprefix(protocol.PRETRAINING), {})
    value = _plain(record, name)
    return value_label(value) if isinstance(value, list | tuple | dict) else value


def _plain(record: Record, name: str) -> Any:
    facts = {"task": record.task, "seed": record.seed, "run": record.run_id, "weights": record.weights_id}
    facts |= {"dataset": record.dataset.get("name"), "backbone": record.backbone.get("name")}
    facts |= {"device_type": record.environment.get("device_type")}
    if name in facts:
        return facts[name]
    # The backbone as resolved, not as the command line named it.
    if name in BACKBONE_OPTIONS or name not in record.options:
        return protocol.resolved_backbone(record).get(name)
    return record.options[name]


def with_contents(names: Iterable[str], records: Sequence[Record], exports: Exports) -> set[str]:
    """Return names of fields, and of the data's contents for a share of the training images with several values."""
    hidden = {*names}
    for name in [name for name in hidden if name.removeprefix(protocol.PRETRAINING) == FRACTION]:
        if len({value_of(record, name, exports) for record in records}) > 1:
            hidden.add(name.replace(FRACTION, "dataset_digest"))
    return hidden


def is_baseline(record: Record) -> bool:
    """Return whether a backbone has the usual parts, as far as it has such parts."""
    return all(value_of(record, name, {}) in (usual, None) for name, usual in BASELINE.items())


def as_value(record: Record, name: str, text: str, exports: Exports) -> str:
    """Return a user's text for a value in the form of `value_of`.

    Any name of a stem becomes its short name, and the end of a run's id, as tables print it, the whole id.
    """
    if name.startswith(protocol.PRETRAINING):
        parent = protocol.pretraining(record, exports)
        return text if parent is None else as_value(parent, name.removeprefix(protocol.PRETRAINING), text, {})
    if name == "run" and text == record.run_id.rpartition("-")[2]:
        return record.run_id
    return protocol.stem_name(text, record.backbone.get("patch")) if name == "stem" else text


def parts_of(record: Record, without: Collection[str], exports: Exports) -> dict[str, Any]:
    """Return the fields of a backbone and its pretraining, without weights and seed; `NO_EFFECT` for what does not act.

    Args:
        record: the record.
        without: names to leave out; see `transfer.records.protocol.configurations`.
        exports: see `transfer.records.protocol.by_export`.
    """
    hidden = {*without, "name", "load"}
    parts = {name: value for name, value in protocol.backbone_of(record).items() if name not in hidden}
    return parts | fields_of_weights(record, without, exports)


def fields_of_weights(record: Record, without: Collection[str], exports: Exports) -> dict[str, Any]:
    """Return where weights come from: the protocol of their training if its record is loaded, else their origin.

    Args:
        record, without, exports: see `parts_of`.
    """
    fields, prefix = dict[str, Any](), ""
    for parent in protocol.lineage(record, exports):
        without = protocol.in_pretraining(without, record.backbone)
        fields[f"{prefix}weights"] = "trained"
        prefix += protocol.PRETRAINING
        shown = protocol.displayed_fields(parent)
        fields |= {f"{prefix}{name}": value for name, value in shown.items() if name not in without}
        record = parent
    return fields | {f"{prefix}weights": record.origin.get("training") or record.weights_id}


def known_fields(records: Iterable[Record], exports: Exports) -> list[str]:
    """Return all names that `value_of` knows in any of the records."""
    names = dict.fromkeys(("task", "dataset", "backbone", "run", "seed", "device_type"))
    for record in records:
        names |= dict.fromkeys(name for name in record.options if name not in protocol.not_of_task(record.task))
        names |= dict.fromkeys(name for name in record.backbone if name not in ("name", "weights", "files"))
        parent = protocol.pretraining(record, exports)
        if parent is not None:
            names |= {f"{protocol.PRETRAINING}{name}": None for name in known_fields([parent], {})}
    return list(names | {"weights": None})


def check_fields(names: Iterable[str], records: Iterable[Record], exports: Exports) -> None:
    """Raise UsageError, with the nearest names, for a field that no record has."""
    known = known_fields(records, exports)
    for name in names:
        if name not in known:
            raise unknown("field", name, sorted(known), ", in some of these runs")


def order(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers by size, and all other values after them by their text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, str(value)
