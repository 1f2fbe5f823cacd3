"""The means behind COCO's numbers, for one set of matches and any number of weights of its images.

All that does not depend on the weights is laid out once; a weight then costs some gathers and running sums.
Letters: I images, K categories, T = 10 IoU thresholds, R = 101 recalls; the group of threshold t and category k has the
number t K + k.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.detection.coco.match_arrays import Matches
from tasks.detection.coco.matching import MAX_DETECTIONS, THRESHOLDS

RECALLS = np.linspace(0.0, 1.0, 101)
EPSILON = np.spacing(1)
"""Added to the denominator of a precision, as pycocotools does; without it the numbers differ in the last bits."""
SIZES = ("", "s", "m", "l")
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


class Averager:
    """Gives the chosen ones of the twelve numbers for weights of the images."""

    def __init__(self, matches: Matches, names: Sequence[str] = NAMES, *, most: int = 1):
        """Lays out what every weight needs.

        Args:
            names: of `NAMES`; fewer take less time.
            most: the largest weight of an image.

        Raises:
            ValueError: there is no such name.
        """
        if unknown := [name for name in names if name not in NAMES]:
            raise ValueError(f"no number of COCO is called {', '.join(unknown)}; they are {', '.join(NAMES)}")
        self.names, self.most, self.images = tuple(names), most, len(matches.sample)
        rows, place = _rows(matches, most)
        self.sizes = {
            size: _lay_out(matches, rows, place, area)
            for area, size in enumerate(SIZES)
            if any(_size_of(name) == size for name in names)
        }

    def means(self, weights: NDArray[Any]) -> dict[str, float]:
        """The numbers in [0, 1]; one is left out where no image with a weight has an object of its size.

        Args:
            weights: integers [I] in 0 ... `most`.

        Raises:
            ValueError: a weight is larger.
        """
        if weights.max(initial=0) > self.most:
            raise ValueError(f"weights up to {weights.max()}, but they were said to be {self.most} at most")
        copies = [weights, *(weights >= copy for copy in range(1, self.most + 1))]
        table = np.concatenate(copies).astype(np.float64)
        averages: dict[str, NDArray[Any]] = {}
        for size, layout in self.sizes.items():
            objects = np.bincount(layout.truth_category, table[layout.truth_image], layout.categories)
            wanted = [name for name in self.names if _size_of(name) == size]
            averages |= layout.averages(table, objects.astype(np.int64), wanted, size)
        return {name: float(averages[name].mean()) for name in self.names if averages[name].size}


def _size_of(name: str) -> str:
    return name[-1] if name[-1] in SIZES else ""


def _rows(matches: Matches, most: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Detections in the order of precision, and where each finds its weight in the table of `Averager.means`.

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
    copy = np.arange(len(rows)) - np.repeat(np.cumsum(copies) - copies, copies)
    order = np.argsort(matches.runs[rows] * (most + 1) + copy, kind="stable")
    rows, copy = rows[order], copy[order]
    return rows, np.where(apart[rows], copy + 1, 0) * len(matches.sample) + matches.image[rows]


@dataclass(frozen=True, eq=False)
class Layout:
    """One area range. Right detections stand by group, and within it in the order of precision."""

    categories: int
    truth_image: NDArray[Any]
    """[G'] objects of this range"""
    truth_category: NDArray[Any]
    """[G']"""
    wrong: NDArray[Any]
    """places in the table of the weights of detections that are wrong at every threshold"""
    wrong_start: NDArray[Any]
    """[K] the first of these in each category"""
    missed: NDArray[Any]
    """places of those that are wrong at a threshold and paired at another, by group"""
    missed_start: NDArray[Any]
    """[T K] the first of these in each group"""
    right: NDArray[Any]
    """[S] places of those that are right"""
    right_start: NDArray[Any]
    """[T K + 1] the first of these in each group, and their number"""
    group: NDArray[Any]
    """[S]"""
    rank: NDArray[Any]
    """[S]"""
    wrong_before: NDArray[Any]
    """[S] how many of `wrong` stand before"""
    missed_before: NDArray[Any]
    """[S] how many of `missed` stand before"""

    def averages(
        self, table: NDArray[Any], objects: NDArray[Any], names: Sequence[str], size: str
    ) -> dict[str, NDArray[Any]]:
        """What the numbers are means of: precisions [T, K', R] and recalls [T, K'] of the K' categories with objects.

        Args:
            table: see `Averager.means`. objects: int64 [K].
        """
        present, found = objects > 0, {}
        counts = table[self.right]
        if any(name.startswith("AP") for name in names):
            precision = np.compress(present, self._precision(table, counts, objects), axis=1)
            found = {f"AP{size}": precision} | ({} if size else {"AP50": precision[0], "AP75": precision[5]})
        for most in (MAX_DETECTIONS[-1],) if size else MAX_DETECTIONS:
            if (name := f"AR{size or most}") in names:
                found[name] = self._recall(counts * (self.rank < most), objects)[:, present]
        return found

    def _precision(self, table: NDArray[Any], counts: NDArray[Any], objects: NDArray[Any]) -> NDArray[Any]:
        """[T, K, R]: the best precision at each recall or beyond, 0 where that is not reached."""
        running, missed, wrong = (_running(values) for values in (counts, table[self.missed], table[self.wrong]))
        start = running[self.right_start]
        # the wrong ones of the category before each right one are those before it less those before the group
        lacking = np.tile(wrong[self.wrong_start], len(THRESHOLDS)) + missed[self.missed_start]
        false = wrong[self.wrong_before] + missed[self.missed_before] - lacking[self.group]
        number = running[1:] - start[self.group]
        precision = np.append(number / (false + number + EPSILON), 0.0)
        needed = np.tile(_needed(objects), (len(THRESHOLDS), 1))
        reached = needed <= (start[1:] - start[:-1])[:, None]
        first = np.searchsorted(running[1:], start[:-1, None] + needed)
        first = np.where(reached, first, self.right_start[1:, None])
        best = np.where(reached, np.maximum.reduceat(precision, first.ravel()).reshape(first.shape), 0.0)
        best = np.maximum.accumulate(best[:, ::-1], axis=1)[:, ::-1]
        return best.reshape(len(THRESHOLDS), self.categories, len(RECALLS))

    def _recall(self, counts: NDArray[Any], objects: NDArray[Any]) -> NDArray[Any]:
        """[T, K]: the share of objects that is found; 0 without objects."""
        found = np.bincount(self.group, counts, len(THRESHOLDS) * self.categories)
        recall: NDArray[Any] = found.reshape(len(THRESHOLDS), self.categories) / np.maximum(objects, 1)
        return recall


def _lay_out(matches: Matches, rows: NDArray[Any], place: NDArray[Any], area: int) -> Layout:
    categories = len(matches.categories)
    matched, ignored, category = matches.matched[rows, area], matches.ignored[rows, area], matches.category[rows]
    # an unpaired detection is ignored at every threshold or at none
    wrong = np.flatnonzero((matched == 0) & (ignored == 0))
    paired = np.flatnonzero(matched)
    bits = 1 << np.arange(len(THRESHOLDS), dtype=np.uint16)[:, None]
    hit, void = (matched[paired] & bits) > 0, (ignored[paired] & bits) > 0
    right, missed = np.nonzero(hit & ~void), np.nonzero(~hit & ~void)
    groups = [threshold * categories + category[paired[which]] for threshold, which in (right, missed)]
    order = [threshold * len(paired) + which for threshold, which in (right, missed)]
    counted = np.flatnonzero(matches.truth_counted >> area & 1)
    every = np.arange(len(THRESHOLDS) * categories + 1)
    return Layout(
        categories=categories,
        truth_image=matches.truth_image[counted],
        truth_category=matches.truth_category[counted],
        wrong=place[wrong],
        wrong_start=np.searchsorted(category[wrong], np.arange(categories)),
        missed=place[paired[missed[1]]],
        missed_start=np.searchsorted(groups[1], every[:-1]),
        right=place[paired[right[1]]],
        right_start=np.searchsorted(groups[0], every),
        group=groups[0],
        rank=matches.rank[rows[paired[right[1]]]],
        wrong_before=np.searchsorted(wrong, paired[right[1]]),
        missed_before=np.searchsorted(order[1], order[0]),
    )


def _running(values: NDArray[Any]) -> NDArray[Any]:
    """[S] -> [S + 1]: the sum before each place, and at the end."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def _needed(objects: NDArray[Any]) -> NDArray[Any]:
    """int64 [K, R]: the fewest right detections whose share of `objects` [K] is no less than each recall; one for 0."""
    total = np.maximum(objects, 1)[:, None]
    fewest = np.ceil(RECALLS * total)
    fewest -= (fewest - 1) / total >= RECALLS  # where the product was rounded up, or down:
    fewest += fewest / total < RECALLS
    fewest_needed: NDArray[Any] = np.maximum(fewest, 1).astype(np.int64)
    return fewest_needed
