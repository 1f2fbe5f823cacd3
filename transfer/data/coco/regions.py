"""Regions to be ignored: annotations that the YAML of a dataset makes crowds, whatever the file says of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from transfer.core.errors import UsageError, did_you_mean
from transfer.core.options import as_items
from transfer.data.coco.annotations import Classes, fit_boxes
from transfer.data.coco.split import Splits
from transfer.data.spec import DatasetSpec

REGIONS = ("ignore_flag", "ignore_classes")
"""Keys of the YAML."""


def with_regions(
    spec: DatasetSpec, splits: Splits, classes: Classes, dropped: Mapping[str, Any]
) -> tuple[Splits, Classes, dict[str, Any]]:
    """Return the splits with the regions that the YAML says to ignore as crowds, the classes, and `CocoData.dropped`.

    `ignore_flag: region` makes crowds of annotations with `ignore: 1`, as CrowdHuman's and BDD100K's conversions write
    them; `ignore_classes` names categories that are no classes but regions, as VisDrone's "ignored regions". Since
    nothing in these is of interest, each is a crowd of every class, with -1 as the label.

    Raises:
        UsageError: a value or a name is unknown.
    """
    flag, names = (spec.options.get(key) for key in REGIONS)
    if flag not in (None, "region"):
        raise UsageError(f"{spec.name}: `ignore_flag` is {flag!r}; it must be region, or left out")
    names = as_items(names, f"{spec.name}: `ignore_classes`") if names else []
    for name in names:
        if name not in classes.values():
            guess = did_you_mean(str(name), [*classes.values()])
            raise UsageError(f"{spec.name}: `ignore_classes` has {name!r}, which is no category{guess}")
    kept = {number: name for number, name in classes.items() if name not in names}
    labels = np.array([[*kept].index(number) if number in kept else -1 for number in classes], dtype=np.int64)
    found, counts = dict(splits), dict(dropped)
    for part, split in splits.items():
        label = labels[split.label]
        region = (label < 0) | (split.ignored & (flag == "region"))
        marked = replace(split, label=label, crowd=split.crowd | region, ignored=split.ignored & ~region)
        trained, faults = fit_boxes(marked)
        found[part], counts[part] = replace(marked, trained=trained), dropped[part] | faults
    return found, kept, counts
