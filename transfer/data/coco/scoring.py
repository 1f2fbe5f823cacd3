"""What a dataset's YAML says of its scores: areas, IoUs and limits of detections.

The parameters are those of pycocotools (`cocoeval.Params`: `areaRng`, `iouThrs`, `maxDets`), COCO's by default.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from transfer.core.errors import UsageError
from transfer.core.options import as_items, mapping
from transfer.data.coco.annotations import Field, is_number, is_whole
from transfer.data.spec import DatasetSpec

SCORING = ("areas", "ious", "max_detections")
LARGEST = 1e10
"""Upper end of COCO's ranges without one, in square pixels."""
MOST = 32
"""IoUs and limits at most: a flag of 32 bits has one for each IoU."""
LISTS: dict[str, Field] = {
    "ious": (lambda value: is_number(value) and 0 < value < 1, "a number between 0 and 1, such as 0.5"),
    "max_detections": (lambda value: is_whole(value) and value > 0, "a whole number from 1 on"),
}


class Number(NamedTuple):
    """One of COCO's numbers: average precision, or average recall if `recall`; the mean over all IoUs without `iou`."""

    recall: bool
    area: int
    iou: int | None
    limit: int


@dataclass(frozen=True)
class Scoring:
    """Parameters of COCO's scores."""

    areas: tuple[tuple[str, float, float], ...] = (("s", 0, 32**2), ("m", 32**2, 96**2), ("l", 96**2, LARGEST))
    """Ends of scores' names, and the smallest and largest object in square pixels; besides those of all sizes."""
    ious: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
    """IoUs from which on a detection finds an object, rising."""
    max_detections: tuple[int, ...] = (1, 10, 100)
    """Numbers of detections of an image and class that count, rising; precision takes the last."""

    @property
    def ranges(self) -> list[tuple[float, float]]:
        """Return the smallest and largest area of every range, that of all sizes first."""
        return [(0, LARGEST), *((low, high) for _, low, high in self.areas)]

    @property
    def numbers(self) -> dict[str, Number]:
        """Return the numbers by name in the order of pycocotools' summary.

        Precision at single IoUs is that at 0.5 and 0.75 by default, and at each that the YAML names. `AP_NAME` and
        `AR_NAME` are those of an area NAME of the YAML.
        """
        most, named = self.max_detections[-1], (0.5, 0.75) if self.ious == COCO.ious else self.ious
        numbers = {"AP": Number(False, 0, None, most)}
        numbers |= {f"AP{100 * iou:g}": Number(False, 0, self.ious.index(iou), most) for iou in named}
        sized = {name: area for area, (name, *_) in enumerate(self.areas, start=1)}
        numbers |= {f"AP{name}": Number(False, area, None, most) for name, area in sized.items()}
        numbers |= {f"AR{limit}": Number(True, 0, None, limit) for limit in self.max_detections}
        return numbers | {f"AR{name}": Number(True, area, None, most) for name, area in sized.items()}

    @property
    def changed(self) -> dict[str, Any]:
        """Return the parameters that are not COCO's, as plain values."""
        return {name: json.loads(json.dumps(value)) for name, value in vars(self).items() if value != vars(COCO)[name]}

    @classmethod
    def of(cls, changed: Mapping[str, Any]) -> "Scoring":
        """Return the parameters with these `changed` ones."""
        given: dict[str, Any] = {name: tuple(value) for name, value in changed.items()}
        return cls(**given | ({"areas": tuple(map(tuple, given["areas"]))} if "areas" in given else {}))


COCO = Scoring()


def scoring_of(spec: DatasetSpec) -> Scoring:
    """Return the parameters that the YAML of a dataset states. Raises UsageError for impossible ones."""
    given: dict[str, Any] = {}
    for name in SCORING:
        if spec.options.get(name) is not None:
            where = f"{spec.name}: `{name}`"
            value = spec.options[name]
            given[name] = _areas(value, where) if name == "areas" else tuple(as_items(value, where))
    for name, (fits, words) in LISTS.items():
        if odd := [one for one in given.get(name, ()) if not fits(one)]:
            raise UsageError(f"{spec.name}: `{name}` has {odd[0]!r}; each must be {words}")
        values = [*given.get(name, ())]
        if sorted({*values}) != values or len(values) > MOST:
            raise UsageError(f"{spec.name}: `{name}` is {values}; write at most {MOST}, the smallest first")
    return Scoring.of(given)


def _areas(value: Any, where: str) -> list[tuple[str, float, float]]:
    areas = []
    for name, ends in mapping(value, where).items():
        low, high = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
        high = LARGEST if high is None else high
        if not (low is not None and is_number(low) and is_number(high) and 0 <= low < high and name.isidentifier()):
            raise UsageError(
                f"{where}: {name!r} is {ends!r}; write a word and [SMALLEST, LARGEST] in square pixels, null for no end"
            )
        areas.append((f"_{name}", low, high))
    if not 0 < len(areas) < 8:
        raise UsageError(f"{where}: {len(areas)} ranges; write 1 to 7")
    return areas
