"""Which split of a dataset is trained on and which is scored: one rule for folders, Parquet files and hub sets."""

import re
from collections.abc import Callable, Collection
from typing import TypeVar

from backbones.data.layouts import SPLITS
from backbones.data.spec import DatasetSpec, text_option
from backbones.errors import MissingInput

Part = TypeVar("Part")


def choose_splits(
    spec: DatasetSpec,
    place: object,
    find: Callable[[str], Part | None],
    unlabelled: Callable[[Part, Part | None], str],
    *,
    form: str = "{}",
) -> tuple[dict[str, Part], list[str]]:
    """Return the parts to train on ("train") and to score ("val"), of which one may be missing, and notes.

    The keys `train` and `val` name a part. Else `train` is trained on, and the first of `val`, `validation`, `valid`,
    `dev` and `test` that has labels is scored.

    Args:
        spec: with the keys.
        place: where parts were looked for, for messages.
        find: name -> a part, None if there is none.
        unlabelled: why a part has no labels, empty if it has; asked of those to score, one by one, beside the part to
            train on.
        form: how a name is written in notes.

    Raises:
        MissingInput: no part was found, or the one that a key names is missing.
    """
    chosen: dict[str, Part] = {}
    notes: list[str] = []
    for key, usual in SPLITS.items():
        named = text_option(spec, key)
        found = {name: part for name in ([named] if named else usual) if (part := find(name)) is not None}
        if named and not found:
            raise MissingInput(f"{spec.name}: {place}: {form.format(named)} not found (key `{key}`)")
        while key == "val" and found and (reason := unlabelled(found[next(iter(found))], chosen.get("train"))):
            notes.append(f"{form.format(next(iter(found)))} has {reason}")
            del found[next(iter(found))]
        if found:
            name, *others = found
            chosen[key] = found[name]
            if key == "val" and not named and "generator" not in spec.options:
                left = f", not {', '.join(map(form.format, others))}" if others else ""
                notes.append(f"evaluated on {form.format(name)}{left}")
    if not chosen:
        names = [form.format(name) for usual in SPLITS.values() for name in usual]
        reason = f" ({'; '.join(notes)})" if notes else ""
        raise MissingInput(
            f"{spec.name}: {place} has none of {', '.join(names)}{reason}; set the keys `train` and `val`"
        )
    return chosen, notes


def in_order(names: Collection[str]) -> list[str]:
    """Return the names of classes in the order of their labels: sorted, as numbers where all are whole numbers."""
    if all(re.fullmatch("-?[0-9]+", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def in_short(classes: Collection[str]) -> str:
    """Return "0, 1, 2, ... 11"."""
    first, last = [*classes][:3], [*classes][3:]
    return ", ".join(first) + (f", {'... ' * (len(last) > 1)}{last[-1]}" if last else "")
