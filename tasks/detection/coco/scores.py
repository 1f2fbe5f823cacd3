"""The twelve numbers of COCO, from matches kept per detection and object, so that images can be resampled.

The protocol is that of pycocotools (Lin et al., arXiv 1405.0312, and cocodataset.org, "Detection evaluation"), stated
again in vectorised numpy: `matching` pairs detections with objects, `averages` adds up.
Shapes: N detections, G objects, I images, K categories, T = 10 IoU thresholds, A = 4 area ranges.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.detection.coco.averages import NAMES, Averager
from tasks.detection.coco.flat_arrays import detections_from, truth_from
from tasks.detection.coco.match_arrays import PREFIX, Kind, Matches
from tasks.detection.coco.matching import AREAS, MAX_DETECTIONS, candidates, match

RESAMPLES = 500


def evaluate(truth: dict[str, Any], results: list[dict[str, Any]], kind: Kind) -> Matches:
    """Pair detections with the objects of a dataset.

    With kind "segm" the size of a detection is its mask's, whether or not the results also name boxes (pycocotools
    would take the box's, mmdetection drops the boxes beforehand). The arguments are not changed.

    Args:
        truth: in COCO's format, see `CocoData.as_coco`.
        results: in COCO's format for results: `image_id`, `category_id`, `score`, and `bbox` or `segmentation` (RLE).
        kind: by boxes or by masks.

    Raises:
        UserError: masks are asked for and faster-coco-eval is not installed.
        ValueError: an unknown image or category, a score or a box that is not finite, an object or a result without
            a mask.
    """
    objects = truth_from(truth, kind)
    detections = detections_from(results, objects, kind, most=MAX_DETECTIONS[-1])
    pairs = candidates(detections, objects)
    matched, ignored = match(pairs, detections, objects)
    # pycocotools sorts the detections of a category stably, and meets them by image
    order = np.lexsort((detections.rank, detections.image, -detections.score, detections.category))
    return Matches(
        kind=kind,
        sample=objects.names,
        categories=objects.categories,
        image=detections.image[order].astype(np.int32),
        category=detections.category[order].astype(np.int32),
        score=detections.score[order],
        rank=detections.rank[order].astype(np.uint8),
        matched=matched[order],
        ignored=ignored[order],
        truth_image=objects.image.astype(np.int32),
        truth_category=objects.category.astype(np.int32),
        truth_counted=np.packbits(~objects.ignored(AREAS), axis=0, bitorder="little")[0],
    )


def resampled(matches: Matches) -> dict[str, NDArray[Any]]:
    """Return COCO's numbers [B = 500] on bootstrap resamples of the images, as "resampled_box_AP"; intervals use them.

    Resample b has the same images for all detectors: each file name, in sorted order, as often as the generator of seed
    0 draws it. nan where a resample has no object of the number's size.
    """
    images = len(matches.sample)
    times = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), size=RESAMPLES)
    weights = np.empty_like(times)
    weights[:, np.argsort(matches.sample)] = times
    averager = Averager(matches, most=int(times.max()))
    drawn = [averager.means(row) for row in weights]
    prefix = PREFIX[matches.kind]
    return {f"resampled_{prefix}_{name}": np.array([row.get(name, np.nan) for row in drawn]) for name in NAMES}


def scores(matches: Matches) -> dict[str, float]:
    """Return COCO's numbers in [0, 1], "box_AP" to "box_ARl" or "mask_AP" to "mask_ARl", of matches by `evaluate`.

    A number is left out where the dataset has no object of its size (pycocotools says -1).
    """
    means = Averager(matches).means(np.ones(len(matches.sample), dtype=np.int64))
    return {f"{PREFIX[matches.kind]}_{name}": value for name, value in means.items()}
