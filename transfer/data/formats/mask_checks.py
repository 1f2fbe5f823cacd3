"""What all masks of a dataset say together: contradictions are errors that name the key, assumptions are notes.

Shapes: C classes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened
from transfer.data.formats.masks import EXIF, IGNORED, NO_CLASS, MaskSplit
from transfer.data.spec import DatasetSpec, choice_option
from transfer.data.splits.split import Split


def check_masks(spec: DatasetSpec, classes: Sequence[str], given: Mapping[str, Split], *, chosen: bool) -> list[str]:
    """Return notes on the masks of splits that were checked.

    Args:
        spec: with the keys.
        classes: C names.
        given: splits, of which those without masks are passed over.
        chosen: whether images were chosen, so that training may lack classes.

    Raises:
        UserError: masks are lossy or in colors, images may be turned or not, values have no class, or an ignored value
            may be that of a class without training pixels.
    """
    splits, notes = {name: split for name, split in given.items() if isinstance(split, MaskSplit)}, list[str]()
    pixels = {name: split.of_labels() for name, split in splits.items()}
    trained = [pixels[name] for name in (("train", "val") if spec.held_out else ("train",)) if name in pixels]
    fault = _files(spec, [*splits.values()]) or _values(classes, [*splits.values()])
    if not fault and trained and not chosen:
        fault = _classes(classes, splits["train"], np.sum(trained, 0))
    if not fault and "val" in splits and splits["val"].values[IGNORED]:
        fault = _classes(classes, splits["val"], pixels["val"])
    if fault:
        keys = {"format": "masks", "root": spec.root[0], **spec.options}
        lines = "".join(f"\n  {key}: {json.dumps(value)}" for key, value in keys.items())
        where = f"; keys are set in a YAML file with these:{lines}" if spec.recognised else ""
        raise UserError(f"{spec.name}: {fault}{where}")
    for name, split in splits.items():
        if lacking := [classes[label] for label in np.flatnonzero(pixels[name] == 0)]:
            scored = any(part.of_labels()[pixels[name] == 0].any() for part in splits.values())
            end = ", which mIoU leaves out" if name == "val" else ", though they are scored" if scored else ""
            notes.append(f"{name}: no pixel of {len(lacking)} of {len(classes)} classes{end}: {shortened(lacking, 3)}")
        below = split.values[: spec.options.get("first", 0)].sum()
        if below and spec.recognised:
            share = below / split.values.sum()
            notes.append(f"{name}: {share:.1%} of the pixels are 0, which is ignored (key `first`)")
        if split.values[IGNORED] and split.table[IGNORED] == IGNORED and "void" not in spec.options:
            share = split.values[IGNORED] / split.values.sum()
            notes.append(f"{name}: {share:.1%} of the pixels are 255, which is ignored (key `void`)")
    return notes


def _files(spec: DatasetSpec, splits: Sequence[MaskSplit]) -> str:
    """Return why masks cannot be used with the keys `exif` and `values` as they are; empty if they can."""
    found, exif, total = dict[str, list[str]](), choice_option(spec, *EXIF), sum(map(len, splits))
    settled = [f"exif: {exif}"] * (exif is not None) + ["set `values`"] * ("values" in spec.options)
    for split in splits:
        for kind, indices in split.found.items():
            if not any(key in kind for key in settled):
                found.setdefault(kind, []).extend(map(split.masks.path, indices))
    faults = [f"{len(paths)} of {total} masks are {kind}: {shortened(paths, 3)}" for kind, paths in found.items()]
    return "; ".join(sorted(faults)[:3])


def _values(classes: Sequence[str], splits: Sequence[MaskSplit]) -> str:
    """Return which values have no class; empty if all have."""
    values = [value for value in range(256) if any(split.values[value] for split in splits)]
    if not (unknown := [value for value in values if splits[0].table[value] == NO_CLASS]):
        return ""
    masks = ((split, index) for split in splits for index in range(len(split)))
    path = next(one.masks.path(index) for one, index in masks if unknown[0] in {n % 256 for n in one.look(index)[6:]})
    by_one = "set `first: 1` if classes begin at 1, " if unknown == [len(classes)] else ""
    return (
        f"{len(unknown)} of {len(values)} values in the masks have none of the {len(classes)} classes: "
        f"{shortened(unknown, 10)} (the first in {path}); {by_one}correct `classes`, map them by `values` or ignore "
        "them by `void`; if they are numbers of instances, export the class of each pixel instead"
    )


def _classes(classes: Sequence[str], split: MaskSplit, pixels: NDArray[Any]) -> str:
    """Return which classes have no pixel in a split, and the values that occur; empty if these are no others' values:
    at least two classes occur, and there are not as many values as classes.
    """
    values = np.flatnonzero(split.values).tolist()
    absent = [classes[label] for label in np.flatnonzero(pixels == 0)]
    if not absent or (np.count_nonzero(pixels) > 1 and len(values) != len(classes)):
        return ""
    ignored = shortened([value for value in values if split.table[value] == IGNORED])
    pairs = ", ".join(map("{}: {}".format, values, classes)) if len(values) == len(classes) else "value: class"
    return (
        f"{len(absent)} of {len(classes)} classes have no pixel in the {split.name} masks: {shortened(absent)}; they "
        f"hold {shortened(values, 10)} (ignored: {ignored}); if these are the classes, set `values: {{{pairs}}}`, "
        "else remove the classes from `classes`"
    )
