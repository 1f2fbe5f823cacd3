"""COCO's rule of pairing detections with objects, the highest score first, for all images and categories at once.

In each image and category, at each IoU threshold and for each range of object sizes, detections choose in the order of
their scores. Each takes the object that it overlaps most and that is still free; objects that count come before those
that do not (crowds, and sizes outside the range), and of equal overlaps the later object is taken. Crowds stay free.
The steps of different images and categories do not depend on each other, so the k-th choices of all are made together.
The pairs become flat arrays that a run keeps. Masks become run-length encodings by faster-coco-eval, which is imported
only then.
Shapes: N detections, G objects, I images, K categories, P pairs, T IoU thresholds, A area ranges; COCO has 10 and 4.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from transfer.data.coco.scoring import COCO, Scoring
from transfer.data.coco.split import CocoImage, CocoSplit, encoded_mask, mask_library
from transfer.task import Array, Outcomes


@dataclass(frozen=True, eq=False)
class FlatArrays:
    """Objects or detections, one in each of M rows."""

    image: Array
    """Place [M] of the image among the sorted ids, int64."""
    category: Array
    """Place [M] of the category among the sorted ids, int64."""
    area: Array
    """Area [M] in square pixels, float64."""
    boxes: Array
    """Boxes [M, 4] (x, y, width, height) in pixels, float64."""
    masks: Array | None
    """Run-length encodings [M] of the masks, object; None where boxes are compared."""

    def __len__(self) -> int:
        return len(self.image)

    def out_of(self, areas: Array) -> Array:
        """Return [A, M]: whether each row is outside each of the ranges `areas` [A, 2], whose ends count as inside."""
        return (self.area < areas[:, :1]) | (self.area > areas[:, 1:])


@dataclass(frozen=True, eq=False)
class Objects(FlatArrays):
    """Objects of a dataset, by image and category; within these in the order of the split."""

    crowd: Array
    """Whether each object is a crowd, bool [M]."""

    def ignored(self, areas: Array) -> Array:
        """Return [A, G]: whether each object does not count in a range, being a crowd or of another size."""
        return self.crowd | self.out_of(areas)


@dataclass(frozen=True, eq=False)
class Detections(FlatArrays):
    """Detections by image and category; within these by falling score."""

    score: Array
    """Score [M], float64."""
    rank: Array
    """Rank [M] within image and category, from 0, int64; equal scores in the order of the results."""


def objects_of(split: CocoSplit, categories: int, kind: str) -> Objects:
    """Return the objects of a split, a region to be ignored as a crowd of each category.

    For masks, an object without one is a crowd that fills its box.

    Args:
        split: whose labels are indices into the rising ids of the categories.
        categories: K.
        kind: whether boxes are compared, "bbox", or masks, "segm".

    Raises:
        UserError: faster-coco-eval is needed and missing.
    """
    # a region stands once for each category
    times = np.where(split.label < 0, categories, 1)
    rows = np.repeat(np.arange(len(times)), times)
    category = np.maximum(split.label, 0)[rows] + places_within(times)
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
    )


def detections_from(
    results: Sequence[dict[str, Any]], images: Array, categories: Array, kind: str, *, most: int
) -> Detections:
    """Return the detections with the `most` highest scores of each image and category, of rising ids [I] and [K].

    Raises:
        UserError: faster-coco-eval is needed and missing.
    """
    image = np.searchsorted(images, np.array([result["image_id"] for result in results], np.int64))
    category = np.searchsorted(categories, np.array([result["category_id"] for result in results], np.int64))
    score = np.array([result["score"] for result in results], dtype=np.float64)
    order = np.lexsort((-score, category, image))
    starts = run_starts(image[order], category[order])
    rank = places_within(np.diff(starts, append=len(order)))
    order, rank = order[rank < most], rank[rank < most]
    best = [results[place] for place in order]
    masks, boxes = None, np.zeros((len(best), 4))
    if kind == "segm":
        masks = np.array([result["segmentation"] for result in best], dtype=object)
        area: Array = np.asarray(mask_library().area(masks.tolist()), dtype=np.float64).reshape(-1)
    else:
        boxes = np.array([result["bbox"] for result in best], dtype=np.float64).reshape(-1, 4)
        area = boxes[:, 2] * boxes[:, 3]
    return Detections(image[order], category[order], area, boxes, masks, score[order], rank)


def _encoded(split: CocoSplit) -> Array:
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
    left, right = np.clip([left, left + across], -1, image.width + 1).tolist()
    top, bottom = np.clip([top, top + down], -1, image.height + 1).tolist()
    return [[left, top, left, bottom, right, bottom, right, top]]


Kind = Literal["bbox", "segm"]
SCORE_PREFIX: dict[Kind, str] = {"bbox": "box", "segm": "mask"}


@dataclass(frozen=True, eq=False)
class Pairing:
    """Result of pairing detections with objects: everything that `scores` needs, as flat arrays.

    Detections stand by category, falling score, image and rank: the order in which precision is added up. Those beyond
    the last of `max_detections` (100) of an image and category have no influence and are left out.
    """

    kind: Kind
    sample: Array
    """File names [I] of the images, in the order of their ids."""
    categories: Array
    """Ids [K] of the categories, int64, rising."""
    image: Array
    """Index [N] of each detection's image in `sample`, int32."""
    category: Array
    """Index [N] of each detection's category in `categories`, int32."""
    score: Array
    """Score [N] of each detection, float64."""
    rank: Array
    """Rank [N] of each detection within its image and category, from 0, uint8, or wider for limits above 256."""
    matched: Array
    """Flags [N, A], uint16, or as wide as T needs; bit t: the detection is paired with an object at threshold t."""
    ignored: Array
    """Flags [N, A] as `matched`; bit t: the detection is neither right nor wrong at threshold t."""
    truth_image: Array
    """Index [G] of each object's image in `sample`, int32."""
    truth_category: Array
    """Index [G] of each object's category in `categories`, int32."""
    truth_counted: Array
    """Flags [G], uint8; bit a: the object counts in area range a. Crowds count in none."""
    scoring: Scoring = COCO
    """IoU thresholds, area ranges and limits of detections."""

    def outcomes(self) -> dict[str, Array]:
        """Return the arrays by name, prefixed with the kind ("box_score"); `sample` has no prefix.

        Parameters of `scoring` that are not COCO's are JSON in "box_scoring".
        """
        arrays = {f"{SCORE_PREFIX[self.kind]}_{name}": getattr(self, name) for name in ARRAYS}
        if changed := self.scoring.changed:
            arrays[f"{SCORE_PREFIX[self.kind]}_scoring"] = np.array([json.dumps(changed)])
        return {"sample": self.sample, **arrays}

    @classmethod
    def from_outcomes(cls, outcomes: dict[str, Array], kind: Kind) -> "Pairing":
        """Restore the matches from their `outcomes`; scores are bit-exact."""
        names = {name: f"{SCORE_PREFIX[kind]}_{name}" for name in ARRAYS} | {"sample": "sample"}
        changed = json.loads(str(outcomes.get(f"{SCORE_PREFIX[kind]}_scoring", ["{}"])[0]))
        arrays = {name: np.asarray(outcomes[saved]) for name, saved in names.items()}
        return cls(kind=kind, scoring=Scoring(**changed), **arrays)

    @cached_property
    def runs(self) -> Array:
        """Number [N], int64, of the run of detections with equal image, category and score that each is in."""
        ends = (np.diff(self.category) != 0) | (np.diff(self.score) != 0) | (np.diff(self.image) != 0)
        return np.concatenate([[0], np.cumsum(ends)])[: len(self.score)]


def pairings(outcomes: Outcomes) -> list[Pairing]:
    """Return the matches of boxes and of masks, as far as the outcomes of a run have them."""
    kinds = [kind for kind, prefix in SCORE_PREFIX.items() if f"{prefix}_score" in outcomes]
    return [Pairing.from_outcomes(outcomes, kind) for kind in kinds]


ARRAYS = tuple(entry.name for entry in fields(Pairing) if entry.name not in ("kind", "sample", "scoring"))


Pairs = tuple[Array, Array, Array]
"""Row [P], int64, of the detection and of the object of each pair of one image and category, sorted by detection, then
object; and their intersection over union [P], float64; with a crowd, the share of the detection that lies in it."""


def candidates(detections: Detections, objects: Objects, lowest: float) -> Pairs:
    """Return all pairs that overlap enough for the `lowest` threshold."""
    codes = [(table.image << 32) + table.category for table in (detections, objects)]
    first, last = (np.searchsorted(codes[1], codes[0], side) for side in ("left", "right"))
    counts = last - first
    detection = np.repeat(np.arange(len(detections)), counts)
    target = first[detection] + places_within(counts)
    if detections.masks is None:
        iou = box_iou(detections, objects, detection, target)
    else:
        iou = mask_iou(detections, objects, counts, first)
    enough = iou >= lowest
    return detection[enough], target[enough], iou[enough]


def places_within(counts: Array) -> Array:
    """Return 0 ... count - 1 for each of `counts` [G], one after the other, int64."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def run_starts(*columns: Array) -> Array:
    """Return the first row of each run of equal rows of `columns`, whole numbers [M] from 0 on each."""
    changed = [np.diff(column, prepend=-1) != 0 for column in columns]
    return np.flatnonzero(np.logical_or.reduce(changed))


def box_iou(detections: FlatArrays, objects: Objects, detection: Array, target: Array) -> Array:
    """Return the intersection over union [P] of pairs of boxes; for crowds, over the detection's area."""
    box, object_box = detections.boxes[detection].T, objects.boxes[target].T
    ends = np.minimum(box[:2] + box[2:], object_box[:2] + object_box[2:])
    sides = ends - np.maximum(box[:2], object_box[:2])
    apart = (sides[0] <= 0) | (sides[1] <= 0)
    common = np.where(apart, 0.0, sides[0] * sides[1])
    area = box[2] * box[3]
    union = np.where(objects.crowd[target], area, area + object_box[2] * object_box[3] - common)
    return np.divide(common, union, out=np.zeros_like(common), where=~apart)


def mask_iou(detections: Detections, objects: Objects, counts: Array, first: Array) -> Array:
    """Return the same [P] for masks, by faster-coco-eval, for one image and category after the other.

    Args:
        detections: detections with masks.
        objects: objects with masks.
        counts: int64 [N], the number of objects in the image and category of each detection.
        first: int64 [N], the first of these objects.
    """
    assert detections.masks is not None
    assert objects.masks is not None
    iou, chunks = mask_library().iou, []
    beside = np.flatnonzero(counts)
    starts = run_starts(first[beside])
    for rows in np.split(beside, starts[1:]) if len(beside) else ():
        targets = slice(first[rows[0]], first[rows[0]] + counts[rows[0]])
        crowds = objects.crowd[targets].astype(int).tolist()
        shares = iou(detections.masks[rows].tolist(), objects.masks[targets].tolist(), crowds)
        chunks.append(np.asarray(shares).reshape(-1))
    return np.concatenate([np.zeros(0), *chunks])


def choose_objects(
    pairs: Pairs, detections: Detections, objects: Objects, areas: Array, thresholds: Array
) -> tuple[Array, Array]:
    """Return which detections are paired and which are ignored, uint16 [N, A] each, or uint32 for more than 16
    thresholds: bit t is that of threshold t.

    A detection is ignored when its object does not count, or when it has none and is itself of another size.
    """
    dtype: Any = np.uint16 if len(thresholds) <= 16 else np.uint32
    matched, ignored = np.zeros((2, len(detections), len(areas)), dtype)
    detection, target, iou = pairs
    for area, (uncounted, outside) in enumerate(zip(objects.ignored(areas), detections.out_of(areas))):
        order = np.lexsort((target, iou, ~uncounted[target], detection, detections.rank[detection]))
        for bit, threshold in enumerate(thresholds):
            chosen = _chosen(pairs, order[iou[order] >= threshold], detections, objects)
            excused = outside.copy()
            excused[detection[chosen]] = uncounted[target[chosen]]
            matched[detection[chosen], area] |= dtype(1 << bit)
            ignored[:, area] |= excused.astype(dtype) << bit
    return matched, ignored


def _chosen(pairs: Pairs, able: Array, detections: Detections, objects: Objects) -> Array:
    """Return the indices of the pairs whose detection takes the object at one threshold, int64.

    Args:
        pairs: of all thresholds.
        able: indices of the pairs that overlap enough, int64: first those of the best detection of each image and
            category, then those of the second, and so on; of each detection the object that it prefers last.
        detections: with their ranks.
        objects: of which crowds stay free.
    """
    detection, target, _ = pairs
    free, chosen = np.ones(len(objects), dtype=bool), []
    for turn in np.split(able, run_starts(detections.rank[detection[able]])[1:]):
        left = turn[free[target[turn]]]
        best = left[np.diff(detection[left], append=-1) != 0]
        free[target[best]] = objects.crowd[target[best]]
        chosen.append(best)
    return np.concatenate(chosen)
