"""What a dataset's YAML says of its scores: areas, IoUs and limits of detections, and regions to be ignored.

The parameters are those of pycocotools (`cocoeval.Params`: `areaRng`, `iouThrs`, `maxDets`), COCO's by default. Regions
are annotations that the YAML makes crowds, whatever the file says of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from transfer.core.errors import UsageError, did_you_mean
from transfer.core.options import as_items
from transfer.data.coco.annotations import Classes, fit_boxes, is_finite_number, is_whole
from transfer.data.coco.split import Splits
from transfer.data.spec import DatasetSpec, choice_option

LARGEST_AREA = 1e10
"""Upper end of COCO's ranges without one, in square pixels."""


class Number(NamedTuple):
    """One of COCO's numbers: average precision, or average recall if `recall`; the mean over all IoUs without `iou`."""

    recall: bool
    area: int
    iou: int | None
    limit: int


class Scoring(NamedTuple):
    """Parameters of COCO's scores."""

    areas: list[Any] = [["s", 0, 32**2], ["m", 32**2, 96**2], ["l", 96**2, LARGEST_AREA]]  # noqa: RUF012
    """Ends of scores' names, and the smallest and largest object in square pixels; besides those of all sizes."""
    ious: list[float] = np.linspace(0.5, 0.95, 10).tolist()
    """IoUs from which on a detection finds an object, rising."""
    max_detections: list[int] = [1, 10, 100]  # noqa: RUF012
    """Numbers of detections of an image and class that count, rising; precision takes the last."""

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """Return the smallest and largest area of every range, that of all sizes first."""
        return [(0, LARGEST_AREA), *((low, high) for _, low, high in self.areas)]

    @property
    def numbers(self) -> dict[str, Number]:
        """Return the numbers by name in the order of pycocotools' summary.

        Precision at single IoUs is that at 0.5 and 0.75 by default, and at each that the YAML names. `AP_NAME` and
        `AR_NAME` are those of an area NAME of the YAML.
        """
        most, single_ious = self.max_detections[-1], [0.5, 0.75] if self.ious == COCO.ious else self.ious
        areas = {name: area for area, (name, *_) in enumerate(self.areas, start=1)}
        numbers = {"AP": Number(False, 0, None, most)}
        numbers |= {f"AP{100 * iou:g}": Number(False, 0, self.ious.index(iou), most) for iou in single_ious}
        numbers |= {f"AP{name}": Number(False, area, None, most) for name, area in areas.items()}
        numbers |= {f"AR{limit}": Number(True, 0, None, limit) for limit in self.max_detections}
        return numbers | {f"AR{name}": Number(True, area, None, most) for name, area in areas.items()}

    @property
    def changed(self) -> dict[str, Any]:
        """Return the parameters that are not COCO's."""
        return {name: value for name, value in self._asdict().items() if value != getattr(COCO, name)}


COCO = Scoring()


def scoring_of(spec: DatasetSpec) -> Scoring:
    """Return the parameters that the YAML of a dataset states. Raises UsageError for impossible ones."""
    keys = {name: value for name in SCORING if (value := spec.options.get(name)) is not None}
    for name, value in keys.items():
        fits, words = SCORING[name]
        if not fits(value):
            raise UsageError(f"{spec.name}: `{name}` is {value!r}; write {words}")
    if "areas" in keys:
        keys["areas"] = [[f"_{name}", low, high or LARGEST_AREA] for name, (low, high) in keys["areas"].items()]
    return Scoring(**keys)


def _areas(value: Any) -> bool:
    has_names = isinstance(value, dict) and 0 < len(value) < 8 and all(str(name).isidentifier() for name in value)
    return has_names and all(
        isinstance(ends, list) and len(ends) == 2 and _rising([ends[0], LARGEST_AREA if ends[1] is None else ends[1]])
        for ends in value.values()
    )


def _rising(value: Any) -> bool:
    numbers = isinstance(value, list) and 0 < len(value) <= 32 and all(map(is_finite_number, value))
    return numbers and value == sorted({*value}) and value[0] >= 0


SCORING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "areas": (_areas, "1 to 7 names, each with [SMALLEST, LARGEST] in square pixels, null for no end"),
    "ious": (
        lambda value: _rising(value) and value[0] > 0 and value[-1] < 1,
        "a list of up to 32 numbers between 0 and 1, the smallest first",
    ),
    "max_detections": (
        lambda value: _rising(value) and value[0] > 0 and all(map(is_whole, value)),
        "a list of whole numbers from 1 on, the smallest first",
    ),
}
"""Keys of the YAML: what fits, and how to write it."""


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
    flag, names = choice_option(spec, "ignore_flag", "region"), spec.options.get("ignore_classes")
    names = as_items(names, f"{spec.name}: `ignore_classes`") if names else []
    for name in names:
        if name not in classes.values():
            guess = did_you_mean(str(name), [*classes.values()])
            raise UsageError(f"{spec.name}: `ignore_classes` has {name!r}, which is no category{guess}")
    remaining = {number: name for number, name in classes.items() if name not in names}
    labels = np.array([[*remaining].index(number) if number in remaining else -1 for number in classes], dtype=np.int64)
    marked_splits, counts = dict(splits), dict(dropped)
    for part, split in splits.items():
        label = labels[split.label]
        region = (label < 0) | (split.ignored & (flag == "region"))
        marked = replace(split, label=label, crowd=split.crowd | region, ignored=split.ignored & ~region)
        trained, faults = fit_boxes(marked)
        marked_splits[part], counts[part] = replace(marked, trained=trained), dropped[part] | faults
    return marked_splits, remaining, counts
