"""Regions to be ignored: annotations that the YAML of a dataset makes crowds, whatever the file says of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from transfer.core.errors import UsageError, UserError, did_you_mean
from transfer.core.options import as_items
from transfer.data.coco.annotations import Classes, fit_boxes
from transfer.data.coco.split import Splits
from transfer.data.spec import DatasetSpec

REGIONS = ("ignore_flag", "ignore_classes")
"""Keys of the YAML."""


def names_regions(spec: DatasetSpec) -> bool:
    """Return whether the YAML of a dataset names regions to be ignored."""
    return any(spec.options.get(key) not in (None, "object", []) for key in REGIONS)


def with_regions(
    spec: DatasetSpec, splits: Splits, classes: Classes, dropped: Mapping[str, Any]
) -> tuple[Splits, Classes, dict[str, Any]]:
    """Return the splits with the regions that the YAML says to ignore as crowds, the classes, and `CocoData.dropped`.

    `ignore_flag: region` makes crowds of annotations with `ignore: 1`, as CrowdHuman's and BDD100K's conversions write
    them; `ignore_classes` names categories that are no classes but regions, as VisDrone's "ignored regions". Since
    nothing in these is of interest, each is a crowd of every class, with -1 as the label.

    Raises:
        UsageError: a value or a name is unknown. UserError: no class is left.
    """
    flag, names = spec.options.get("ignore_flag") or "object", spec.options.get("ignore_classes") or []
    if flag not in ("object", "region"):
        raise UsageError(f"{spec.name}: `ignore_flag` is {flag!r}; it must be object or region")
    for name in names and as_items(names, f"{spec.name}: `ignore_classes`"):
        if name not in classes.values():
            raise UsageError(
                f"{spec.name}: `ignore_classes` has {name!r}, which is no category"
                f"{did_you_mean(str(name), [*classes.values()])}"
            )
    kept = {number: name for number, name in classes.items() if name not in names}
    if not kept:
        raise UserError(f"{spec.name}: `ignore_classes` has all {len(classes)} categories; leave one to be detected")
    label_of = np.array([[*kept].index(number) if number in kept else -1 for number in classes], dtype=np.int64)
    counts = dict(dropped)
    for part, split in splits.items():
        label = label_of[split.label]
        region = (label < 0) | (split.ignored & (flag == "region"))
        marked = replace(split, label=label, crowd=split.crowd | region, ignored=split.ignored & ~region)
        trained, faults = fit_boxes(marked)
        counts[part] = counts[part] | faults
        splits = splits | {part: replace(marked, trained=trained)}
    return splits, kept, counts
