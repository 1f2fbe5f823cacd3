"""The corners and effects of a 2 x 2 of two fields. Imports no torch."""

from transfer.comparison.compare_arms import Effect
from transfer.comparison.selection import Selection, has_value
from transfer.core.errors import UsageError, shortened
from transfer.records.fields import check_fields, order, value_of
from transfer.records.labels import value_label
from transfer.records.run_set import RunSet

Axis = tuple[str, tuple[str, str]]
"""A field and its two values."""


def axis(text: str, runs: RunSet) -> Axis:
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


def corners(f: Axis, g: Axis, runs: RunSet) -> list[Selection]:
    """Return the runs of the four corners: the first value of f with each value of g, then the second."""
    return [_corner([(f[0], value_f), (g[0], value_g)], runs) for value_f in f[1] for value_g in g[1]]


def _corner(values: list[tuple[str, str]], runs: RunSet) -> Selection:
    chosen = [run for run in runs if all(has_value(run.record, name, text, runs.exports) for name, text in values)]
    return Selection(", ".join(f"{name} {text}" for name, text in values), chosen, tuple(name for name, _ in values))


def effects(f: Axis, g: Axis) -> list[Effect]:
    """Return the simple effects of two fields, each at each value of the other, and their interaction."""
    (name_f, values_f), (name_g, values_g) = f, g
    return [
        Effect(name_f, values_f, name_g, values_g[0], (1, 0, -1, 0)),
        Effect(name_f, values_f, name_g, values_g[1], (0, 1, 0, -1)),
        Effect(name_g, values_g, name_f, values_f[0], (1, -1, 0, 0)),
        Effect(name_g, values_g, name_f, values_f[1], (0, 0, 1, -1)),
        Effect(name_f, values_f, name_g, None, (1, -1, -1, 1)),
    ]
