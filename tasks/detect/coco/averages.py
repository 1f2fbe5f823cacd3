"""COCO's numbers from matches kept per detection and object, for any number of weightings of the images.

The protocol is that of pycocotools (Lin et al., arXiv 1405.0312, and cocodataset.org, "Detection evaluation"), stated
again in vectorised numpy: `matching` pairs detections with objects, and their means are taken here. What does not
depend on the weights is computed once; a weighting then costs some gathers and running sums.
Shapes: I images, K categories, T IoU thresholds, R = 101 recalls; the group of threshold t and category k has the
number t K + k.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.detect.coco.matching import (
    SCORE_PREFIX,
    Kind,
    Pairing,
    candidates,
    choose_objects,
    detections_from,
    objects_of,
    places_within,
)
from transfer.data.coco.dataset import CocoData
from transfer.data.coco.scoring import Number
from transfer.statistics.intervals import resample_counts
from transfer.task import Array

RECALLS = np.linspace(0.0, 1.0, 101)
DENOMINATOR_EPSILON = np.spacing(1)
"""Added to the denominator of a precision, as pycocotools does; without it the numbers differ in the last bits."""


class Averager:
    """The chosen ones of COCO's numbers, as a function of the weights of the images."""

    def __init__(self, matches: Pairing, names: Sequence[str] | None = None, *, most: int = 1):
        """Compute what all weightings share.

        Args:
            matches: pairs of detections and objects.
            names: the numbers wanted, by default all of `Scoring.numbers`; fewer take less time.
            most: the largest weight of an image.

        """
        numbers = matches.scoring.numbers
        self.numbers = {name: numbers[name] for name in names} if names is not None else numbers
        self.most = most
        rows, place = _rows(matches, most)
        areas = sorted({number.area for number in self.numbers.values()})
        self.layouts = {area: AreaRange(matches, rows, place, area) for area in areas}

    def means(self, weights: Array) -> dict[str, float]:
        """Return the numbers in [0, 1], without those of sizes that no object of a weighted image has.

        They are those of a dataset that holds each image so often, its copies next to one another in the order of ids.

        Args:
            weights: integers [I] in 0 ... `most`, how often each image counts.
        """
        averages = self._averages(weights)
        return {name: float(averages[name].mean()) for name in self.numbers if averages[name].size}

    def by_class(self, weights: Array) -> Array:
        """Return the numbers [numbers, K] of each category as `means` of it alone; nan without weighted objects."""
        averages = self._averages(weights, whole=True)
        return np.stack([averages[name] for name in self.numbers])

    def _averages(self, weights: Array, *, whole: bool = False) -> dict[str, Array]:
        """Return `AreaRange.averages` of all ranges; if `whole`, their means [K] by category."""
        copies = [weights, *(weights >= copy for copy in range(1, self.most + 1))]
        table = np.concatenate(copies).astype(np.float64)
        averages: dict[str, Array] = {}
        for area, layout in self.layouts.items():
            objects = np.bincount(layout.truth_category, table[layout.truth_image], layout.categories).astype(np.int64)
            of_area = {name: number for name, number in self.numbers.items() if number.area == area}
            averages |= layout.averages(table, objects, of_area)
            for name in of_area if whole else ():
                values, averages[name] = averages[name], np.full(len(objects), np.nan)
                averages[name][objects > 0] = values.mean(axis=(0, *range(2, values.ndim)))
        return averages


def _rows(matches: Pairing, most: int) -> tuple[Array, Array]:
    """Return the detections in the order of precision, and the place of each one's weight in the table of `means`.

    Copies of an image stand next to one another, so that its detections at one score follow each other within a copy:
    first, second, first again, second again. Such detections stand here once for each copy that there can be, if one of
    them can be right; all others stand once, with their whole weight: the best precision at a recall or beyond is the
    same, since it only rises between copies that are right.
    """
    together = np.bincount(matches.runs)[matches.runs] > 1
    paired = np.bincount(matches.runs, matches.matched.any(axis=1))[matches.runs] > 0
    apart = together & paired
    copies = np.where(apart, most, 1)
    rows = np.repeat(np.arange(len(copies)), copies)
    copy = places_within(copies)
    order = np.argsort(matches.runs[rows] * (most + 1) + copy, kind="stable")
    rows, copy = rows[order], copy[order]
    return rows, np.where(apart[rows], copy + 1, 0) * len(matches.sample) + matches.image[rows]


class AreaRange:
    """Detections and objects of one area range; right detections by group, within it in the order of precision."""

    def __init__(self, matches: Pairing, rows: Array, place: Array, area: int) -> None:
        """Sort the detections (`rows`, their weights at `place`) and objects of one area range."""
        self.categories = categories = len(matches.categories)
        self.thresholds = count = len(matches.scoring.ious)
        matched, ignored, category = matches.matched[rows, area], matches.ignored[rows, area], matches.category[rows]
        # an unpaired detection is ignored at every threshold or at none
        wrong = np.flatnonzero((matched == 0) & (ignored == 0))
        paired = np.flatnonzero(matched)
        bits = 1 << np.arange(count, dtype=matches.matched.dtype)[:, None]
        hit, void = (matched[paired] & bits) > 0, (ignored[paired] & bits) > 0
        right, missed = np.nonzero(hit & ~void), np.nonzero(~hit & ~void)
        groups = [threshold * categories + category[paired[which]] for threshold, which in (right, missed)]
        order = [threshold * len(paired) + which for threshold, which in (right, missed)]
        counted = np.flatnonzero(matches.truth_counted >> area & 1)
        every = np.arange(count * categories + 1)
        self.truth_image, self.truth_category = matches.truth_image[counted], matches.truth_category[counted]
        """Image and category [G'] of each object of this range."""
        self.wrong, self.wrong_start = place[wrong], np.searchsorted(category[wrong], np.arange(categories))
        """Places in the table of weights of the detections that are wrong at every threshold, and the index [K] of the
        first of each category."""
        self.missed, self.missed_start = place[paired[missed[1]]], np.searchsorted(groups[1], every[:-1])
        """Those of the detections that are wrong at one threshold and paired at another, by group; the first [T K]."""
        self.right, self.right_start = place[paired[right[1]]], np.searchsorted(groups[0], every)
        """Those [S] of the detections that are right, by group; the first of each group, and S, [T K + 1]."""
        self.group, self.rank = groups[0], matches.rank[rows[paired[right[1]]]]
        """Group [S] of each right detection, and its rank within its image and category."""
        self.wrong_before = np.searchsorted(wrong, paired[right[1]])
        """Number [S] of entries of `wrong` before each right detection."""
        self.missed_before = np.searchsorted(order[1], order[0])
        """Number [S] of entries of `missed` before each right detection."""

    def averages(self, table: Array, objects: Array, numbers: Mapping[str, Number]) -> dict[str, Array]:
        """Return what the numbers are means of: precisions [T, K', R], recalls [T, K'] of K' categories with objects.

        Those at one threshold are [1, K', R].

        Args:
            table: weights of the images, and of each of their copies; see `_rows`.
            objects: int64 [K], the weighted number of objects of each category.
            numbers: the numbers wanted, all of this area range.
        """
        present, arrays = objects > 0, {}
        counts = table[self.right]
        if not all(number.recall for number in numbers.values()):
            precision = np.compress(present, self._precision(table, counts, objects), axis=1)
        for name, (recall, _, iou, limit) in numbers.items():
            if recall:
                arrays[name] = self._recall(counts * (self.rank < limit), objects)[:, present]
            else:
                arrays[name] = precision if iou is None else precision[iou : iou + 1]
        return arrays

    def _precision(self, table: Array, counts: Array, objects: Array) -> Array:
        """Return [T, K, R]: the best precision at each recall or beyond, 0 where that recall is not reached."""
        running, missed, wrong = (_running(values) for values in (counts, table[self.missed], table[self.wrong]))
        start = running[self.right_start]
        # the wrong ones of the category before each right one are those before it less those before the group
        lacking = np.tile(wrong[self.wrong_start], self.thresholds) + missed[self.missed_start]
        false = wrong[self.wrong_before] + missed[self.missed_before] - lacking[self.group]
        number = running[1:] - start[self.group]
        precision = np.append(number / (false + number + DENOMINATOR_EPSILON), 0.0)
        needed = np.tile(_needed(objects), (self.thresholds, 1))
        reached = needed <= (start[1:] - start[:-1])[:, None]
        first = np.searchsorted(running[1:], start[:-1, None] + needed)
        first = np.where(reached, first, self.right_start[1:, None])
        best = np.where(reached, np.maximum.reduceat(precision, first.ravel()).reshape(first.shape), 0.0)
        best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
        return best.reshape(self.thresholds, self.categories, len(RECALLS))

    def _recall(self, counts: Array, objects: Array) -> Array:
        """Return [T, K]: the share of objects that is detected; 0 without objects."""
        detected = np.bincount(self.group, counts, self.thresholds * self.categories)
        return detected.reshape(self.thresholds, self.categories) / np.maximum(objects, 1)


def _running(values: Array) -> Array:
    """Return [S + 1]: the sum of values [S] before each place, and of all."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _needed(objects: Array) -> Array:
    """Return int64 [K, R]: the fewest right detections whose share of `objects` [K] reaches each recall; at least 1."""
    total = np.maximum(objects, 1)[:, None]
    fewest = np.ceil(RECALLS * total)
    fewest -= (fewest - 1) / total >= RECALLS  # where the product was rounded up, or down:
    fewest += fewest / total < RECALLS
    return np.maximum(fewest, 1).astype(np.int64)


def pair_detections(data: CocoData, results: list[dict[str, Any]], kind: Kind) -> Pairing:
    """Pair detections with the objects of a dataset's validation split; see `objects_of`.

    With kind "segm" the size of a detection is its mask's, whether or not the results also name boxes (pycocotools
    would take the box's, mmdetection drops the boxes beforehand). The arguments are not changed.

    Args:
        data: the dataset, with its thresholds, area ranges and limits.
        results: in COCO's format for results: `image_id`, `category_id`, `score`, and `bbox` or `segmentation` (RLE).
        kind: by boxes or by masks.

    Raises:
        UserError: masks are asked for and faster-coco-eval is not installed.
    """
    assert data.val is not None
    images, scoring = data.val.images, data.scoring
    ids, categories = np.array([image.id for image in images], np.int64), np.array(data.category_ids, np.int64)
    objects = objects_of(data.val, len(categories), kind)
    most, areas, thresholds = scoring.max_detections[-1], np.array(scoring.ranges), np.array(scoring.ious)
    detections = detections_from(results, ids, categories, kind, most=most)
    pairs = candidates(detections, objects, scoring.ious[0])
    matched, ignored = choose_objects(pairs, detections, objects, areas, thresholds)
    # pycocotools sorts the detections of a category stably, and meets them by image
    order = np.lexsort((detections.rank, detections.image, -detections.score, detections.category))
    return Pairing(
        kind=kind,
        sample=np.array([image.file_name for image in images], dtype=np.str_),
        categories=categories,
        image=detections.image[order].astype(np.int32),
        category=detections.category[order].astype(np.int32),
        score=detections.score[order],
        rank=detections.rank[order].astype(np.min_scalar_type(most - 1)),
        matched=matched[order],
        ignored=ignored[order],
        truth_image=objects.image.astype(np.int32),
        truth_category=objects.category.astype(np.int32),
        truth_counted=np.packbits(~objects.ignored(areas), axis=0, bitorder="little")[0],
        scoring=scoring,
    )


def resampled(matches: Pairing) -> dict[str, Array]:
    """Return COCO's numbers [B = 500] on bootstrap resamples of the images, as "resampled_box_AP"; intervals use them.

    nan where a resample has no object of the number's size.
    """
    weights, names, prefix = resample_counts(matches.sample), matches.scoring.numbers, SCORE_PREFIX[matches.kind]
    averager = Averager(matches, most=int(weights.max()))
    means = [dict.fromkeys(names, np.nan) | averager.means(row) for row in weights]
    columns = np.array([[*row.values()] for row in means]).T
    return {f"resampled_{prefix}_{name}": column for name, column in zip(names, columns)}


def by_class(matches: Pairing, names: Sequence[str]) -> Array:
    """Return the numbers of each category [1 + B, numbers, K]: first the scores, then on the resamples of `resampled`.

    nan where a category has no object of the number's size.
    """
    weights = resample_counts(matches.sample)
    averager = Averager(matches, names, most=int(weights.max()))
    return np.stack([averager.by_class(row) for row in (np.ones_like(weights[0]), *weights)])


def scores(matches: Pairing) -> dict[str, float]:
    """Return COCO's numbers in [0, 1], "box_AP" to "box_ARl" or "mask_AP" to "mask_ARl", of matches.

    A number is left out where the dataset has no object of its size (pycocotools says -1).
    """
    means = Averager(matches).means(np.ones(len(matches.sample), dtype=np.int64))
    return {f"{SCORE_PREFIX[matches.kind]}_{name}": value for name, value in means.items()}
