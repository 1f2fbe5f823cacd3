"""Selects runs by a text of the command line: a run, a backbone, fields with their values, or the corners of a 2 x 2 of
two fields. Imports no torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, did_you_mean, shortened
from transfer.core.user_code import USER_PARTS, digest, is_user_part
from transfer.records.fields import BASELINE, as_value, check_fields, order, shown_values, value_label, value_of
from transfer.records.protocol import Exports
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun


@dataclass(frozen=True)
class Selection:
    """The runs of one variant of a comparison, before they are matched with the runs of other variants.

    Attributes:
        text: selector as the user wrote it.
        runs: selected runs.
        fields: names of the fields in the selector; the variants may differ in these.
    """

    text: str
    runs: list[StoredRun]
    fields: tuple[str, ...] = ()


def select(text: str, runs: StoredRuns) -> Selection:
    """Return the runs that a selector names.

    Args:
        text: a run's folder or id, or the end of it as tables print it; a backbone or weights/NAME; or
            field=value[,field=value] with fields of `transfer.records.fields.value_of`.
        runs: runs to choose from.

    Raises:
        UsageError: the selector names no run.
    """
    if chosen := [run for run in runs if is_named(run, text)]:
        return Selection(text, chosen)
    if "=" in text:
        return _by_fields(text, runs)
    if chosen := [run for run in runs if run.record.backbone.get("name") == text]:
        return Selection(text, chosen)
    if "/" in text and (chosen := [run for run in runs if _starts_from(run.record, Path(text))]):
        return Selection(text, chosen)
    names = sorted({str(record.backbone.get("name")) for record in runs.records})
    ids = [record.run_id for record in runs.records]
    raise UsageError(
        f"'{text}' is neither a run nor a backbone of these runs{did_you_mean(text, [*names, *ids])} "
        f"(backbones: {shortened(names, 10)}; or choose with field=value, as stem=conv)"
    )


def is_named(run: StoredRun, text: str) -> bool:
    """Return whether a text is a run's folder or id, or the end of its id as tables print it."""
    return has_value(run.record, "run", text, {}) or run.folder.resolve() == Path(text).resolve()


def which_two(texts: Sequence[str], runs: StoredRuns) -> str:
    """Return what to say of a number of selectors other than two: the variants that there are."""
    known = [(field, value_of(record, field, runs.exports)) for field in BASELINE for record in runs.records]
    names = [f"{field}={value_label(value)}" for field, value in dict.fromkeys(known) if value is not None]
    names += dict.fromkeys(str(record.backbone.get("name")) for record in runs.records)
    return f"needs two variants, got {' '.join(texts) or 'none'}; choose two of {shortened(names, 20)}"


def select_arms(texts: Sequence[str], runs: StoredRuns) -> list[Selection]:
    """Return the runs of each selector. Raises UsageError if one names no run, or two name the same run."""
    variants = [select(text, runs) for text in texts]
    for first, second in combinations(variants, 2):
        if both := {run.record.run_id for run in first.runs} & {run.record.run_id for run in second.runs}:
            raise UsageError(f"'{first.text}' and '{second.text}' both mean {shortened(sorted(both), 3)}")
    return variants


def fields_of(text: str) -> dict[str, str]:
    """Return the values of the fields that a selector names."""
    if "=" not in text:
        return {"backbone": text}
    parts = (part.partition("=") for part in re.split(r",(?=[A-Za-z_][\w.]*=)", text))
    return {name.strip(): value.strip() for name, _, value in parts}


def _by_fields(text: str, runs: StoredRuns) -> Selection:
    values = fields_of(text)
    check_fields(values, runs.records, runs.exports)
    remaining = list(runs)
    for name, value in values.items():
        chosen = [run for run in remaining if has_value(run.record, name, value, runs.exports)]
        if not chosen:
            elsewhere = any(has_value(run.record, name, value, runs.exports) for run in runs)
            beside = " with the other values" if elsewhere else ""
            present = sorted({value_label(value_of(run.record, name, runs.exports)) for run in remaining})
            raise UsageError(
                f"'{text}': no run has {name}={value}{beside}"
                f"{did_you_mean(value, present)} (there is {shortened(present, 10)})"
            )
        versions = list(dict.fromkeys(value_of(run.record, name, runs.exports) for run in chosen))
        if name in USER_PARTS and len(versions) > 1:
            parts = " or ".join(map(str, shown_values(versions)))
            raise UsageError(f"'{text}': {value} has versions of different content; choose {parts}")
        remaining = chosen
    return Selection(text, remaining, tuple(values))


def has_value(record: Record, name: str, text: str, exports: Exports) -> bool:
    """Return whether a field of a record has the value that a user wrote as text."""
    if name == "weights" and _names_weights(record, text, exports):
        return True
    return _is_value(value_of(record, name, exports), as_value(record, name, text, exports))


def _starts_from(record: Record, export: Path) -> bool:
    """Return whether a run started from an exported folder, as weights/NAME, or a seed in it, wherever it lay then."""
    texts = (*map(record.options.get, ("backbone", "weights")), record.backbone.get("weights"))
    return any(f"/{export}/".replace("//", "/") in f"/{text}/" for text in texts)


def _names_weights(record: Record, text: str, exports: Exports) -> bool:
    """Return whether a text names a run's weights: the start of their sha256, their file or folder, or their run."""
    parent = exports.get(record.weights_id)
    file = Path(str(record.options.get("weights") or "")).name
    begins = record.weights_id.startswith(f"sha256:{text.removeprefix('sha256:')}")
    return begins or text.rstrip("/").rpartition("/")[2] in (file, parent.run_id if parent else file)


def _is_value(value: Any, text: str) -> bool:
    if text in (str(value), value_label(value)):
        return True
    if isinstance(value, str) and text == f"{value_label(value)} {value.removeprefix('sha256:')[:8]}":
        return True  # one of several versions, see `shown_values`
    if is_user_part(text) and Path(text.rpartition(":")[0]).is_file():
        return bool(f"sha256:{digest(text)}:{text.rpartition(':')[2]}" == value)  # recorded by its content
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return float(text) == value
    except ValueError:
        return False


Axis = tuple[str, tuple[str, str]]
"""A field and its two values."""


def axis(text: str, runs: StoredRuns) -> Axis:
    """Return the field and the two values that a text names: "stem", or "stem=conv/patchify".

    Raises:
        UsageError: no run has the field, or the number of values is not two.
    """
    name, _, values_text = text.partition("=")
    check_fields([name], runs.records, runs.exports)
    values = {value_of(record, name, runs.exports) for record in runs.records}
    labels = [value_label(value) for value in sorted(values, key=order)]
    chosen = values_text.split("/") if values_text else labels
    if len(chosen) != 2 or len({*chosen}) != 2:
        raise UsageError(f"{name} has the values {shortened(labels, 10)}; an interaction takes two: {name}=ONE/OTHER")
    return name, (chosen[0], chosen[1])


def corners(f: Axis, g: Axis) -> list[str]:
    """Return the selectors of the four corners: the first value of f with each value of g, then the second."""
    (name_f, values_f), (name_g, values_g) = f, g
    return [f"{name_f}={value_f},{name_g}={value_g}" for value_f, value_g in product(values_f, values_g)]
