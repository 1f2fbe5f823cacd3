"""Objects of a split, and detections in COCO's format -> flat arrays.

Shapes: N detections, G objects, I images, K categories, A area ranges.
Masks become run-length encodings by faster-coco-eval, which is imported only then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.data.coco.split import CocoImage, CocoSplit, encoded_mask, mask_library


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
    """Objects of a dataset, by image and category; within these in the order of the split."""

    crowd: NDArray[Any]
    """Whether each object is a crowd, bool [M]."""
    ids: NDArray[Any]
    """Ids [I] of the images, int64, rising."""
    names: NDArray[Any]
    """File names [I] of the images."""
    categories: NDArray[Any]
    """Ids [K] of the categories, int64, rising."""

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


def objects_of(split: CocoSplit, category_ids: Sequence[int], kind: str) -> Objects:
    """Return the objects of a split, a region to be ignored as a crowd of each category.

    For masks, an object without one is a crowd that fills its box.

    Args:
        split: whose labels are indices into `category_ids`.
        category_ids: K ids, rising.
        kind: whether boxes are compared, "bbox", or masks, "segm".

    Raises:
        UserError: faster-coco-eval is needed and missing.
    """
    # a region stands once for each category
    times = np.where(split.label < 0, len(category_ids), 1)
    rows = np.repeat(np.arange(len(times)), times)
    category = np.maximum(split.label, 0)[rows] + np.arange(len(rows)) - (np.cumsum(times) - times)[rows]
    order = np.lexsort((category, split.image[rows]))
    rows, crowd = rows[order], split.crowd
    if kind == "segm":
        crowd = crowd | ~split.segmentations.present
    return Objects(
        image=split.image[rows],
        category=category[order],
        area=split.areas[rows],
        boxes=split.boxes[rows],
        masks=_encoded(split)[rows] if kind == "segm" else None,
        crowd=crowd[rows],
        ids=np.array([image.id for image in split.images], dtype=np.int64),
        names=np.array([image.file_name for image in split.images], dtype=np.str_),
        categories=np.array(category_ids, dtype=np.int64),
    )


def detections_from(results: Sequence[dict[str, Any]], objects: Objects, kind: str, *, most: int) -> Detections:
    """Return the detections with the `most` highest scores of each image and category.

    Raises:
        UserError: faster-coco-eval is needed and missing.
    """
    image, category = (
        np.searchsorted(known, np.array([result[key] for result in results], dtype=np.int64))
        for known, key in ((objects.ids, "image_id"), (objects.categories, "category_id"))
    )
    score = np.array([result["score"] for result in results], dtype=np.float64)
    order = np.lexsort((-score, category, image))
    starts = np.flatnonzero(np.diff(image[order], prepend=-1) | np.diff(category[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    order, rank = order[rank < most], rank[rank < most]
    kept = [results[place] for place in order]
    masks, boxes = None, np.zeros((len(kept), 4))
    if kind == "segm":
        masks = np.array([result["segmentation"] for result in kept], dtype=object)
        area: NDArray[Any] = np.asarray(mask_library().area(masks.tolist()), dtype=np.float64).reshape(-1)
    else:
        boxes = np.array([result["bbox"] for result in kept], dtype=np.float64).reshape(-1, 4)
        area = boxes[:, 2] * boxes[:, 3]
    return Detections(image[order], category[order], area, boxes, masks, score[order], rank)


def _encoded(split: CocoSplit) -> NDArray[Any]:
    """Return the compressed run-length encodings [M] of the objects' masks, or of the boxes of those without."""
    masks = np.empty(len(split.ids), dtype=object)
    for row, (mask, box) in enumerate(zip(split.segmentations, split.boxes.tolist())):
        image = split.images[split.image[row]]
        masks[row] = encoded_mask(mask or _outline(box, image), image.height, image.width)
    return masks


def _outline(box: Sequence[float], image: CocoImage) -> list[list[float]]:
    """Return the polygon of a box, as far as the image shows it."""
    left, top, across, down = box
    # a pixel beyond the border changes nothing inside, and boxes of any size need no memory
    x, right = (min(max(one, -1), image.width + 1) for one in (left, left + across))
    y, bottom = (min(max(one, -1), image.height + 1) for one in (top, top + down))
    return [[x, y, x, bottom, right, bottom, right, y]]
