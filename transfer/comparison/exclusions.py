"""Reasons why runs that were chosen for a comparison are not compared."""

from collections.abc import Mapping
from dataclasses import dataclass

from transfer.records.labels import value_label


@dataclass(frozen=True)
class Exclusion:
    """Runs that are in no row.

    Attributes:
        label: task and dataset of the runs, such as "reid on market1501"; with a setting where one is meant.
        text: the reason, one sentence without a full stop.
        fields: fields in which the nearest runs of two variants differ, with both values, if that is the reason.
    """

    label: str
    text: str
    fields: Mapping[str, tuple[object, ...]] | None = None


def unused_runs(label: str, variant: str, number: int, failed: int, selector: str) -> Exclusion:
    """Return the exclusion of runs of a variant, some of which failed; `selector` chooses the others."""
    rest = f", {failed} of which failed" if failed else ""
    if selector:
        rest += f": add {selector} to '{variant}' to select the compared runs alone"
    return Exclusion(label, f"{number} run{'s' * (number != 1)} of '{variant}' not in the table{rest}")


def protocols_differ(label: str, runs: tuple[str, str], fields: Mapping[str, tuple[object, ...]]) -> Exclusion:
    """Return the exclusion of variants that have runs of one task and dataset, but never under one protocol."""
    differing = _with_values(fields, " vs. ", ", ") or "no field"
    how = "rerun one with the other's value, or add it to both variants (FIELD=VALUE,FIELD=VALUE)"
    text = f"not compared: the nearest runs, {' and '.join(runs)}, differ in {differing}; {how}"
    return Exclusion(label, text, fields)


def mixed_variant(label: str, variant: str, fields: Mapping[str, tuple[object, ...]]) -> Exclusion:
    """Return the exclusion of a variant of several backbones or pretrainings, whose mean would be meaningless."""
    name, values = next(iter(fields.items()))
    how = f"choose one value, as --compare '{variant},{name}={value_label(values[0])}' OTHER, or compare these values"
    return Exclusion(label, f"not compared: runs of '{variant}' differ in {_with_values(fields, ', ', '; ')}; {how}")


def _with_values(fields: Mapping[str, tuple[object, ...]], between: str, after: str) -> str:
    return after.join(f"{name} ({between.join(map(value_label, values))})" for name, values in fields.items())
