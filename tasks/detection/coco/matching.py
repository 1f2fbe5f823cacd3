"""Detections are paired with objects, the highest score first: COCO's rule, for all images and categories at once.

In each image and category, at each IoU threshold and for each range of object sizes, detections choose in the order of
their scores. Each takes the object that it overlaps most and that is still free; objects that count come before those
that do not (crowds, and sizes outside the range), and of equal overlaps the later object is taken. Crowds stay free.
The steps of different images and categories do not depend on each other, so the k-th choices of all are made together.
Letters: N detections, G objects, P pairs, T IoU thresholds, A area ranges.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.detection.coco.flat_arrays import Detections, FlatArrays, Objects, mask_library

THRESHOLDS = np.linspace(0.5, 0.95, 10)
AREAS = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])
"""Square pixels: all, small, medium, large."""
MAX_DETECTIONS = (1, 10, 100)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Detections and objects of one image and category that overlap enough for the lowest threshold.

    Sorted by detection, then object.
    """

    detection: NDArray[Any]
    """int64 [P]"""
    object: NDArray[Any]
    """int64 [P]"""
    iou: NDArray[Any]
    """float64 [P]; of a crowd: the share of the detection that lies in it"""


def candidates(found: Detections, objects: Objects) -> Pairs:
    """All pairs that can be made."""
    codes = [table.image * len(objects.categories) + table.category for table in (found, objects)]
    first, last = (np.searchsorted(codes[1], codes[0], side) for side in ("left", "right"))
    counts = last - first
    detection = np.repeat(np.arange(len(found)), counts)
    place = np.arange(len(detection)) - np.repeat(np.cumsum(counts) - counts, counts)
    target = first[detection] + place
    iou = box_iou(found, objects, detection, target) if found.masks is None else mask_iou(found, objects, counts, first)
    enough = iou >= THRESHOLDS[0]
    return Pairs(detection[enough], target[enough], iou[enough])


def box_iou(found: FlatArrays, objects: Objects, detection: NDArray[Any], target: NDArray[Any]) -> NDArray[Any]:
    """[P] intersection over union of boxes; over the detection's area for crowds."""
    one, other = found.boxes[detection].T, objects.boxes[target].T
    sides = [
        np.minimum(one[axis] + one[axis + 2], other[axis] + other[axis + 2]) - np.maximum(one[axis], other[axis])
        for axis in (0, 1)
    ]
    apart = (sides[0] <= 0) | (sides[1] <= 0)
    common = np.where(apart, 0.0, sides[0] * sides[1])
    area = one[2] * one[3]
    union = np.where(objects.crowd[target], area, area + other[2] * other[3] - common)
    iou: NDArray[Any] = np.divide(common, union, out=np.zeros_like(common), where=~apart)
    return iou


def mask_iou(found: Detections, objects: Objects, counts: NDArray[Any], first: NDArray[Any]) -> NDArray[Any]:
    """[P] the same of masks, by faster-coco-eval, for one image and category after the other.

    Args:
        counts: int64 [N], how many objects each detection stands beside.
        first: int64 [N], the first of these.
    """
    assert found.masks is not None
    assert objects.masks is not None
    iou, parts = mask_library().iou, []
    beside = np.flatnonzero(counts)
    starts = np.flatnonzero(np.diff(first[beside], prepend=-1))
    for rows in np.split(beside, starts[1:]) if len(beside) else ():
        targets = slice(first[rows[0]], first[rows[0]] + counts[rows[0]])
        crowds = objects.crowd[targets].astype(int).tolist()
        parts.append(np.asarray(iou(found.masks[rows].tolist(), objects.masks[targets].tolist(), crowds)).reshape(-1))
    return np.concatenate([np.zeros(0), *parts])


def match(pairs: Pairs, found: Detections, objects: Objects) -> tuple[NDArray[Any], NDArray[Any]]:
    """uint16 [N, A] twice, a bit for each threshold: whether a detection is paired, and whether it is ignored.

    A detection is ignored when its object need not be found, or when it has none and is of another size itself.
    """
    ignored = objects.ignored(AREAS)
    shape = (len(AREAS), len(THRESHOLDS))
    taken = np.zeros((*shape, len(objects)), dtype=bool)
    matched = np.zeros((*shape, len(found)), dtype=bool)
    excused = np.repeat(found.out_of(AREAS)[:, None], len(THRESHOLDS), axis=1)
    area, threshold = np.ogrid[: shape[0], : shape[1]]
    for turn in _turns(pairs, found):
        detection, target, iou = pairs.detection[turn], pairs.object[turn], pairs.iou[turn]
        free = (iou >= THRESHOLDS[:, None]) & ~(taken[:, :, target] & ~objects.crowd[target])
        starts = np.flatnonzero(np.diff(detection, prepend=-1))
        order = np.stack([np.lexsort((target, iou, ~aside, detection)) for aside in ignored[:, target]])
        preference = np.argsort(order, axis=1)[:, None]
        best = np.maximum.reduceat(np.where(free, preference, -1), starts, axis=2)
        paired, who = best >= 0, np.broadcast_to(detection[starts], best.shape)
        chosen = target[np.take_along_axis(order[:, None], np.maximum(best, 0), axis=2)]
        areas, thresholds = (np.broadcast_to(axis[:, :, None], best.shape)[paired] for axis in (area, threshold))
        taken[areas, thresholds, chosen[paired]] = True
        matched[areas, thresholds, who[paired]] = True
        excused[areas, thresholds, who[paired]] = ignored[areas, chosen[paired]]
    return _packed(matched), _packed(excused)


def _turns(pairs: Pairs, found: Detections) -> list[NDArray[Any]]:
    """Places of the pairs whose detection is the first of its image and category, the second, and so on.

    Only detections that can be paired are counted.
    """
    _, rows = np.unique(pairs.detection, return_inverse=True)
    able = pairs.detection[np.flatnonzero(np.diff(pairs.detection, prepend=-1))]
    changes = np.diff(found.image[able], prepend=-1) | np.diff(found.category[able], prepend=-1)
    starts = np.flatnonzero(changes)
    turn = (np.arange(len(able)) - np.repeat(starts, np.diff(starts, append=len(able))))[rows]
    order = np.argsort(turn, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(turn[order])) + 1) if len(order) else []


def _packed(flags: NDArray[Any]) -> NDArray[Any]:
    """bool [A, T, N] -> uint16 [N, A], bit t."""
    weights = (1 << np.arange(len(THRESHOLDS), dtype=np.uint16)).astype(np.uint16)
    packed = np.zeros((flags.shape[2], flags.shape[0]), dtype=np.uint16)
    for threshold, weight in enumerate(weights):
        packed |= flags[:, threshold].T * weight
    return packed
