"""Objects and detections in COCO's format -> flat arrays.

Letters: N detections, G objects, I images, K categories, A area ranges.
Masks become run-length encodings by faster-coco-eval, which is imported only then.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError, shortened


@dataclass(frozen=True, eq=False)
class FlatArrays:
    """Objects or detections, one a row [M]."""

    image: NDArray[Any]
    """int64: place of the image among the sorted ids"""
    category: NDArray[Any]
    """int64: place of the category among the sorted ids"""
    area: NDArray[Any]
    """float64: square pixels"""
    boxes: NDArray[Any]
    """float64 [M, 4]: x, y, width, height in pixels"""
    masks: NDArray[Any] | None
    """object [M]: run-length encodings; None where boxes decide"""

    def __len__(self) -> int:
        return len(self.image)

    def _rows(self, keep: NDArray[Any]) -> dict[str, Any]:
        columns = {name: getattr(self, name) for name in ("image", "category", "area", "boxes", "masks")}
        return {name: None if column is None else column[keep] for name, column in columns.items()}

    def out_of(self, areas: NDArray[Any]) -> NDArray[Any]:
        """bool [A, M]: smaller or larger than each of the ranges `areas` [A, 2], whose ends count as within."""
        return (self.area < areas[:, :1]) | (self.area > areas[:, 1:])


@dataclass(frozen=True, eq=False)
class Objects(FlatArrays):
    """What is to be found, by image and category; within these in the order of the file."""

    crowd: NDArray[Any]
    """bool"""
    ids: NDArray[Any]
    """int64 [I] of the images, rising"""
    names: NDArray[Any]
    """[I] their file names"""
    categories: NDArray[Any]
    """int64 [K] ids, rising"""
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Image id -> height, width in pixels"""

    def ignored(self, areas: NDArray[Any]) -> NDArray[Any]:
        """bool [A, G]: need not be found, since it is a crowd or of another size."""
        ignored: NDArray[Any] = self.crowd | self.out_of(areas)
        return ignored


@dataclass(frozen=True, eq=False)
class Detections(FlatArrays):
    """What was found, by image and category; within these by falling score."""

    score: NDArray[Any]
    """float64"""
    rank: NDArray[Any]
    """int64: from 0, within image and category; equal scores in the order they came in"""


def truth_from(truth: dict[str, Any], kind: str) -> Objects:
    """The objects of a data set in COCO's format. A crowd without a mask is taken to fill its box.

    Raises:
        UserError: faster-coco-eval is needed and missing.
        ValueError: an object, not a crowd, has no mask.
    """
    images = sorted(truth["images"], key=lambda image: image["id"])
    ids = np.array([image["id"] for image in images], dtype=np.int64)
    categories = np.array(sorted(category["id"] for category in truth["categories"]), dtype=np.int64)
    given = truth["annotations"]
    sizes = {image["id"]: (image["height"], image["width"]) for image in images} if kind == "segm" else {}
    objects = Objects(
        image=_places([one["image_id"] for one in given], ids, "image"),
        category=_places([one["category_id"] for one in given], categories, "category"),
        area=np.array([one["area"] for one in given], dtype=np.float64),
        boxes=_boxes(given),
        masks=_encoded([_truth_mask(one) for one in given], given, sizes) if kind == "segm" else None,
        crowd=np.array([bool(one.get("iscrowd", 0)) for one in given], dtype=bool),
        ids=ids,
        names=np.array([image["file_name"] for image in images], dtype=np.str_),
        categories=categories,
        sizes=sizes,
    )
    order = np.lexsort((objects.category, objects.image))
    return replace(objects, **objects._rows(order), crowd=objects.crowd[order])


def detections_from(results: Sequence[dict[str, Any]], objects: Objects, kind: str, *, most: int) -> Detections:
    """The `most` highest scores of each image and category.

    Raises:
        UserError: faster-coco-eval is needed and missing.
        ValueError: an unknown image or category, a score or a box that is not finite, or a result without box or mask.
    """
    wanted = "bbox" if kind == "bbox" else "segmentation"
    if lacking := [place for place, one in enumerate(results) if not one.get(wanted)]:
        raise ValueError(f"{len(lacking)} results have no `{wanted}`: numbers {shortened(lacking)}")
    image = _places([one["image_id"] for one in results], objects.ids, "image")
    category = _places([one["category_id"] for one in results], objects.categories, "category")
    score = np.array([one["score"] for one in results], dtype=np.float64)
    corners = _boxes(results) if kind == "bbox" else np.zeros((len(results), 4))
    odd = ~(np.isfinite(score) & np.isfinite(corners).all(axis=1))
    if odd.any():
        where = shortened(np.unique(objects.names[image[odd]]).tolist())
        raise ValueError(f"{int(odd.sum())} of {len(score)} results have a score or a box that is not finite: {where}")
    order = np.lexsort((-score, category, image))
    starts = np.flatnonzero(np.diff(image[order], prepend=-1) | np.diff(category[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    order, rank = order[rank < most], rank[rank < most]
    kept = [results[place] for place in order]
    boxes = corners[order]
    masks = _encoded([one["segmentation"] for one in kept], kept, objects.sizes) if kind == "segm" else None
    area = boxes[:, 2] * boxes[:, 3] if masks is None else _areas(masks)
    return Detections(image[order], category[order], area, boxes, masks, score[order], rank)


def _places(given: list[int], known: NDArray[Any], what: str) -> NDArray[Any]:
    """int64 [M]: where each id stands among the sorted `known`. Raises ValueError."""
    values = np.array(given, dtype=np.int64)
    places = np.searchsorted(known, values)
    missing = np.setdiff1d(values, known)
    if missing.size:
        raise ValueError(f"the data set has no {what} {shortened(missing.tolist())}")
    return places


def _boxes(given: Sequence[dict[str, Any]]) -> NDArray[Any]:
    return np.array([one["bbox"] for one in given], dtype=np.float64).reshape(-1, 4)


def _truth_mask(one: dict[str, Any]) -> Any:
    mask = one.get("segmentation")
    if mask:
        return mask
    if not one.get("iscrowd", 0):
        raise ValueError(f"object {one['id']} has no `segmentation`, so masks cannot be scored")
    x, y, width, height = one["bbox"]
    return [[x, y, x, y + height, x + width, y + height, x + width, y]]


def _encoded(masks: list[Any], given: Sequence[dict[str, Any]], sizes: dict[int, tuple[int, int]]) -> NDArray[Any]:
    """object [M]: compressed run-length encodings of polygons, count lists and encodings."""
    library, encoded = mask_library(), np.empty(len(masks), dtype=object)
    for place, (mask, one) in enumerate(zip(masks, given)):
        if isinstance(mask, list):
            encoded[place] = library.merge(library.frPyObjects(mask, *sizes[one["image_id"]]))
        elif isinstance(mask["counts"], list):
            encoded[place] = library.frPyObjects(mask, *mask["size"])
        else:
            encoded[place] = mask
    return encoded


def _areas(masks: NDArray[Any]) -> NDArray[Any]:
    """float64 [M] square pixels."""
    return np.asarray(mask_library().area(masks.tolist()), dtype=np.float64).reshape(-1)


def mask_library() -> Any:
    """faster-coco-eval's functions on run-length encodings. Raises UserError when it is not installed."""
    try:
        return importlib.import_module("faster_coco_eval.core.mask")
    except ImportError as error:
        hint = "`pip install -e '.[detection]'`"
        raise UserError(f"masks are scored with faster-coco-eval, which cannot be imported ({error}); {hint}") from None
