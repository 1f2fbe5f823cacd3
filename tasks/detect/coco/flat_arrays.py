"""Objects and detections in COCO's format -> flat arrays.

Shapes: N detections, G objects, I images, K categories, A area ranges.
Masks become run-length encodings by faster-coco-eval, which is imported only then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.data.coco.split import encoded_mask, mask_library


@dataclass(frozen=True, eq=False)
class FlatArrays:
    """Objects or detections, one in each of M rows."""

    image: NDArray[Any]
    """Place [M] of the image among the sorted ids, int64."""
    category: NDArray[Any]
    """Place [M] of the category among the sorted ids, int64."""
    area: NDArray[Any]
    """Area [M] in square pixels, float64."""
    boxes: NDArray[Any]
    """Boxes [M, 4] (x, y, width, height) in pixels, float64."""
    masks: NDArray[Any] | None
    """Run-length encodings [M] of the masks, object; None where boxes are compared."""

    def __len__(self) -> int:
        return len(self.image)

    def out_of(self, areas: NDArray[Any]) -> NDArray[Any]:
        """Return [A, M]: whether each row is outside each of the ranges `areas` [A, 2], whose ends count as inside."""
        return (self.area < areas[:, :1]) | (self.area > areas[:, 1:])


@dataclass(frozen=True, eq=False)
class Objects(FlatArrays):
    """Objects of a dataset, by image and category; within these in the order of the file."""

    crowd: NDArray[Any]
    """Whether each object is a crowd, bool [M]."""
    ids: NDArray[Any]
    """Ids [I] of the images, int64, rising."""
    names: NDArray[Any]
    """File names [I] of the images."""
    categories: NDArray[Any]
    """Ids [K] of the categories, int64, rising."""
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Height and width in pixels of each image, by its id."""

    def ignored(self, areas: NDArray[Any]) -> NDArray[Any]:
        """Return [A, G]: whether each object does not count in a range, being a crowd or of another size."""
        return self.crowd | self.out_of(areas)


@dataclass(frozen=True, eq=False)
class Detections(FlatArrays):
    """Detections by image and category; within these by falling score."""

    score: NDArray[Any]
    """Score [M], float64."""
    rank: NDArray[Any]
    """Rank [M] within image and category, from 0, int64; equal scores in the order of the results."""


def truth_from(truth: dict[str, Any], kind: str) -> Objects:
    """Return the objects of a dataset in COCO's format. A crowd without a mask is taken to fill its box.

    Raises:
        UserError: faster-coco-eval is needed and missing.
        ValueError: an object, not a crowd, has no mask.
    """
    images = sorted(truth["images"], key=lambda image: image["id"])
    ids = np.array([image["id"] for image in images], dtype=np.int64)
    categories = np.array(sorted(category["id"] for category in truth["categories"]), dtype=np.int64)
    image, category = _places(truth["annotations"], ids, categories)
    order = np.lexsort((category, image))
    sorted_ones = [truth["annotations"][place] for place in order]
    sizes = {image["id"]: (image["height"], image["width"]) for image in images} if kind == "segm" else {}
    masks = [_truth_mask(one, *sizes[one["image_id"]]) for one in sorted_ones] if kind == "segm" else []
    return Objects(
        image=image[order],
        category=category[order],
        area=np.array([one["area"] for one in sorted_ones], dtype=np.float64),
        boxes=_boxes(sorted_ones),
        masks=_encoded(masks, sorted_ones, sizes) if kind == "segm" else None,
        crowd=np.array([bool(one.get("iscrowd", 0)) for one in sorted_ones], dtype=bool),
        ids=ids,
        names=np.array([image["file_name"] for image in images], dtype=np.str_),
        categories=categories,
        sizes=sizes,
    )


def detections_from(results: Sequence[dict[str, Any]], objects: Objects, kind: str, *, most: int) -> Detections:
    """Return the detections with the `most` highest scores of each image and category.

    Raises:
        UserError: faster-coco-eval is needed and missing.
    """
    image, category = _places(results, objects.ids, objects.categories)
    score = np.array([result["score"] for result in results], dtype=np.float64)
    order = np.lexsort((-score, category, image))
    starts = np.flatnonzero(np.diff(image[order], prepend=-1) | np.diff(category[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    order, rank = order[rank < most], rank[rank < most]
    kept = [results[place] for place in order]
    boxes = _boxes(kept) if kind == "bbox" else np.zeros((len(kept), 4))
    masks = _encoded([result["segmentation"] for result in kept], kept, objects.sizes) if kind == "segm" else None
    area = boxes[:, 2] * boxes[:, 3]
    if masks is not None:
        area = np.asarray(mask_library().area(masks.tolist()), dtype=np.float64).reshape(-1)
    return Detections(image[order], category[order], area, boxes, masks, score[order], rank)


def _places(
    entries: Sequence[dict[str, Any]], images: NDArray[Any], categories: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the places [M] of each entry's image and category among the sorted ids, int64."""
    columns = (np.array([one[key] for one in entries], dtype=np.int64) for key in ("image_id", "category_id"))
    image, category = (np.searchsorted(known, column) for known, column in zip((images, categories), columns))
    return image, category


def _boxes(entries: Sequence[dict[str, Any]]) -> NDArray[Any]:
    return np.array([entry["bbox"] for entry in entries], dtype=np.float64).reshape(-1, 4)


def _truth_mask(annotation: dict[str, Any], height: int, width: int) -> Any:
    """Return the segmentation of an object; that of a crowd without one is its box, as far as the image shows it."""
    mask = annotation.get("segmentation")
    if mask:
        return mask
    if not annotation.get("iscrowd", 0):
        raise ValueError(f"object {annotation['id']} has no `segmentation`, so masks cannot be scored")
    left, top, across, down = annotation["bbox"]
    # a pixel beyond the border changes nothing inside, and boxes of any size need no memory
    x, right = (min(max(one, -1), width + 1) for one in (left, left + across))
    y, bottom = (min(max(one, -1), height + 1) for one in (top, top + down))
    return [[x, y, x, bottom, right, bottom, right, y]]


def _encoded(masks: list[Any], entries: Sequence[dict[str, Any]], sizes: dict[int, tuple[int, int]]) -> NDArray[Any]:
    """Return the compressed run-length encodings [M] of polygons, count lists and encodings, object."""
    encoded = np.empty(len(masks), dtype=object)
    for place, (mask, entry) in enumerate(zip(masks, entries)):
        encoded[place] = encoded_mask(mask, *sizes[entry["image_id"]])
    return encoded
