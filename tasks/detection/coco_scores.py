"""The twelve numbers of COCO, from matches that are kept per detection and per object, so that images can be resampled.

The protocol is that of pycocotools (Lin et al., arXiv 1405.0312, and cocodataset.org, "Detection evaluation"), stated
again in vectorised numpy: `coco_matching` pairs detections with objects, this module adds up.
Letters: N detections, G objects, I images, K categories, T = 10 IoU thresholds, A = 4 area ranges, R = 101 recalls.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from tasks.detection.coco_matching import AREAS, MAX_DETECTIONS, THRESHOLDS, candidates, match
from tasks.detection.coco_tables import detections_from, truth_from

Kind = Literal["bbox", "segm"]
PREFIX: dict[Kind, str] = {"bbox": "box", "segm": "mask"}
RECALLS = np.linspace(0.0, 1.0, 101)
EPSILON = np.spacing(1)
"""Added to the denominator of a precision, as pycocotools does; without it the numbers differ in the last bits."""
SIZES = ("s", "m", "l")
NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


@dataclass(frozen=True, eq=False)
class Matches:
    """What was paired with what. Everything `scores` needs, and nothing that is not a flat array.

    Detections stand by category, falling score, image and rank: the order in which precision is added up. Those beyond
    the first 100 of an image and category have no influence and are left out.
    """

    kind: Kind
    sample: np.ndarray
    """[I] file names, in the order of the images' ids"""
    categories: np.ndarray
    """int64 [K] ids, rising"""
    image: np.ndarray
    """int32 [N] index into `sample`"""
    category: np.ndarray
    """int32 [N] index into `categories`"""
    score: np.ndarray
    """float64 [N]"""
    rank: np.ndarray
    """uint8 [N] from 0, within image and category"""
    matched: np.ndarray
    """uint16 [N, A] bit t: paired with an object at threshold t"""
    ignored: np.ndarray
    """uint16 [N, A] bit t: neither right nor wrong at threshold t"""
    truth_image: np.ndarray
    """int32 [G] index into `sample`"""
    truth_category: np.ndarray
    """int32 [G] index into `categories`"""
    truth_counted: np.ndarray
    """uint8 [G] bit a: to be found in area range a; crowds in none"""

    def outcomes(self) -> dict[str, np.ndarray]:
        """The arrays under names that say the kind ("box_score"), `sample` under its own."""
        arrays = {f"{PREFIX[self.kind]}_{name}": getattr(self, name) for name in ARRAYS}
        return {"sample": self.sample, **arrays}

    @classmethod
    def from_outcomes(cls, outcomes: dict[str, np.ndarray], kind: Kind) -> "Matches":
        """The matches that `outcomes` was taken from; every score is the same to the bit.

        Raises:
            ValueError: if an array is missing.
        """
        names = {name: f"{PREFIX[kind]}_{name}" for name in ARRAYS} | {"sample": "sample"}
        if missing := [name for name in names.values() if name not in outcomes]:
            raise ValueError(f"outcomes of a detection lack {', '.join(missing)}")
        return cls(kind=kind, **{name: np.asarray(outcomes[saved]) for name, saved in names.items()})

    @cached_property
    def runs(self) -> np.ndarray:
        """int64 [N] numbers the runs of detections that share image, category and score."""
        ends = (np.diff(self.category) != 0) | (np.diff(self.score) != 0) | (np.diff(self.image) != 0)
        return np.concatenate([[0], np.cumsum(ends)])[: len(self.score)]


ARRAYS = tuple(entry.name for entry in fields(Matches) if entry.name not in ("kind", "sample"))


def evaluate(truth: dict[str, Any], results: list[dict[str, Any]], kind: Kind) -> Matches:
    """Pairs detections with the objects of a data set.

    With kind "segm" the size of a detection is its mask's, whether or not the results also name boxes (pycocotools
    would take the box's, mmdetection drops the boxes beforehand). Nothing that is passed in is changed.

    Args:
        truth: in COCO's format, see `CocoData.as_coco`.
        results: in COCO's format for results: `image_id`, `category_id`, `score`, and `bbox` or `segmentation` (RLE).
        kind: by boxes or by masks.

    Raises:
        UserError: masks are asked for and faster-coco-eval is not installed.
        ValueError: an unknown image or category, a score that is no number, an object or a result without a mask.
    """
    objects = truth_from(truth, kind)
    found = detections_from(results, objects, kind, most=MAX_DETECTIONS[-1])
    pairs = candidates(found, objects)
    matched, ignored = match(pairs, found, objects)
    # pycocotools sorts the detections of a category stably, and meets them by image
    order = np.lexsort((found.rank, found.image, -found.score, found.category))
    return Matches(
        kind=kind,
        sample=objects.names,
        categories=objects.categories,
        image=found.image[order].astype(np.int32),
        category=found.category[order].astype(np.int32),
        score=found.score[order],
        rank=found.rank[order].astype(np.uint8),
        matched=matched[order],
        ignored=ignored[order],
        truth_image=objects.image.astype(np.int32),
        truth_category=objects.category.astype(np.int32),
        truth_counted=np.packbits(~objects.ignored(AREAS), axis=0, bitorder="little")[0],
    )


def scores(matches: Matches, *, weights: np.ndarray | None = None) -> dict[str, float]:
    """COCO's numbers in [0, 1], "box_AP" to "box_ARl" or "mask_AP" to "mask_ARl".

    A number is left out where the data set has no object of its size (pycocotools says -1).

    Args:
        matches: from `evaluate`.
        weights: integers [I], how often each image counts. Equal to a data set that holds each image so often, its
            copies next to one another in the order of ids.
    """
    take = _taken(matches, weights)
    per_object = np.ones(len(matches.truth_image)) if weights is None else np.asarray(weights)[matches.truth_image]
    averages: dict[str, np.ndarray] = {}
    for area, size in enumerate(("", *SIZES)):
        counted = per_object * (matches.truth_counted >> area & 1)
        objects = np.bincount(matches.truth_category, counted, len(matches.categories)).astype(np.int64)
        averages |= _averages(matches, take, area, objects, size)
    means = {name: averages[name] for name in NAMES if averages[name].size}
    return {f"{PREFIX[matches.kind]}_{name}": float(values.mean()) for name, values in means.items()}


def _taken(matches: Matches, weights: np.ndarray | None) -> np.ndarray:
    """Indices of detections, those of images that count more than once repeated, in the order of precision."""
    if weights is None:
        return np.arange(len(matches.score))
    weights = np.asarray(weights)
    if weights.shape != matches.sample.shape or weights.dtype.kind not in "iu" or (weights < 0).any():
        raise ValueError(f"weights must be integers from 0, one for each of the {len(matches.sample)} images")
    times = weights[matches.image].astype(np.int64)
    take = np.repeat(np.arange(len(times)), times)
    copy = np.arange(len(take)) - np.repeat(np.cumsum(times) - times, times)
    # detections of one image at one score follow each other within a copy: first, second, first again, second again
    return take[np.argsort(matches.runs[take] * (int(weights.max(initial=0)) + 1) + copy, kind="stable")]


def _averages(matches: Matches, take: np.ndarray, area: int, objects: np.ndarray, size: str) -> dict[str, np.ndarray]:
    """What the numbers of one area range are means of: precisions [T, K', R] and recalls [T, K'].

    K' are the categories with objects in this range; `objects` [K] says how many. Letter S: detections that are paired
    at some threshold. Only these can be right; of the others it is enough to count those that are wrong.
    """
    present = objects > 0
    category, matched, ignored = matches.category[take], matches.matched[take, area], matches.ignored[take, area]
    paired = np.flatnonzero(matched)
    hit, void = _bits(matched[paired]), _bits(ignored[paired])
    # an unpaired detection is ignored at every threshold or at none
    wrong = _running((matched == 0) & (ignored == 0))
    wrong_here = _running(~hit & ~void)
    starts = np.searchsorted(category, np.arange(len(objects)))
    before = wrong[starts] + wrong_here[:, np.searchsorted(paired, starts)]
    false = wrong[paired + 1] + wrong_here[:, 1:] - before[:, category[paired]]
    right, of = hit & ~void, category[paired]
    needed = _needed(objects)
    precision = np.stack([_precision(true, false[t], of, needed)[present] for t, true in enumerate(right)])
    if size:
        return {f"AP{size}": precision, f"AR{size}": _recall(right, of, objects)[:, present]}
    ranks = matches.rank[take[paired]]
    recall = {f"AR{most}": _recall(right & (ranks < most), of, objects)[:, present] for most in MAX_DETECTIONS}
    return {"AP": precision, "AP50": precision[0], "AP75": precision[5], **recall}


def _bits(packed: np.ndarray) -> np.ndarray:
    """uint16 [S] -> bool [T, S]."""
    return (packed >> np.arange(len(THRESHOLDS), dtype=np.uint16)[:, None] & 1).astype(bool)


def _running(flags: np.ndarray) -> np.ndarray:
    """bool [..., S] -> int64 [..., S + 1]: how many are set before each place, and at the end."""
    counts = np.zeros((*flags.shape[:-1], flags.shape[-1] + 1), dtype=np.int64)
    np.cumsum(flags, axis=-1, out=counts[..., 1:])
    return counts


def _precision(true: np.ndarray, false: np.ndarray, category: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """[K, R]: the best precision at each recall or beyond, 0 where that is not reached.

    Args:
        true: bool [S], right at this threshold.
        false: int64 [S], wrong ones of the category so far.
        category: int32 [S], rising.
        needed: int64 [K, R], how many right ones each recall takes.
    """
    place = np.flatnonzero(true)
    first = np.searchsorted(category[place], np.arange(len(needed) + 1))
    number = np.arange(len(place)) - first[category[place]] + 1
    precision = number / (false[place] + number + EPSILON)
    for start, stop in pairwise(first):
        backwards = precision[start:stop][::-1]
        np.maximum.accumulate(backwards, out=backwards)
    reached = needed <= (first[1:] - first[:-1])[:, None]
    at = np.where(reached, first[:-1, None] + needed - 1, 0)
    return np.where(reached, precision[at], 0.0) if len(place) else np.zeros(needed.shape)


def _needed(objects: np.ndarray) -> np.ndarray:
    """int64 [K, R]: the fewest right detections whose share of `objects` [K] is no less than each recall; one for 0."""
    total = np.maximum(objects, 1)[:, None]
    fewest = np.ceil(RECALLS * total)
    fewest -= (fewest - 1) / total >= RECALLS  # where the product was rounded up, or down:
    fewest += fewest / total < RECALLS
    return np.maximum(fewest, 1).astype(np.int64)


def _recall(right: np.ndarray, category: np.ndarray, objects: np.ndarray) -> np.ndarray:
    """bool [T, S] -> [T, K]: the share of objects that is found; 0 without objects."""
    found = np.stack([np.bincount(category[row], minlength=len(objects)) for row in right])
    return found / np.maximum(objects, 1)
