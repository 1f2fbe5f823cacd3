"""COCO's numbers by `tasks.detect.coco.averages` and by pycocotools, in one process, on made-up boxes.

python -m tests.benchmarks coco_scoring
The sizes are those of val2017: 5,000 images with 100 detections each, 80 categories, about 7 objects an image. Both
start from the same detections in COCO's format, ours from an opened dataset, pycocotools from a list of its objects; it
is given a copy, since it writes into what it gets, and making that copy is not counted.

Needs pycocotools.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tasks.detect.coco.averages import Averager, pair_detections, scores
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import figure, timed
from tests.tasks.detect.coco.cases import opened, scored

IMAGES, DETECTIONS, CATEGORIES, OBJECTS, SIDE = 5000, 100, 80, 7.3, 640
REPEATS, RESAMPLES = 3, 20


def boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Boxes of 8 to 400 pixels, evenly in the logarithm: float64 [count, 4]."""
    sides = np.exp(rng.uniform(np.log(8), np.log(400), (count, 2)))
    return np.concatenate([rng.uniform(0, SIDE - sides), sides], axis=1)


def drawn() -> tuple[dict[str, Any], list[Any]]:
    """Truth and results: a third of the detections lie near an object of the image, mostly under its category."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(OBJECTS, IMAGES)
    image, found = np.repeat(np.arange(IMAGES), counts), np.repeat(np.arange(IMAGES), DETECTIONS)
    real = boxes(rng, len(image))
    kinds = rng.integers(1, CATEGORIES + 1, (IMAGES, 3))[image, rng.integers(3, size=len(image))]
    objects = {"id": 1 + np.arange(len(image)), "image_id": 1 + image, "category_id": kinds, "bbox": real.tolist()}
    objects |= {"area": 0.7 * real[:, 2] * real[:, 3], "iscrowd": (rng.random(len(image)) < 0.01).astype(int)}
    near = (rng.random(len(found)) < 0.33) & (counts[found] > 0)
    whose = np.where(near, (counts.cumsum() - counts)[found] + rng.integers(np.maximum(counts, 1)[found]), 0)
    moved = real[whose] + rng.normal(0, 0.08, (len(found), 4)) * real[whose][:, [2, 3, 2, 3]]
    box = np.where(near[:, None], np.maximum(moved, 1), boxes(rng, len(found)))
    types = np.where(near & (rng.random(len(found)) < 0.8), kinds[whose], rng.integers(1, CATEGORIES + 1, len(found)))
    scores = np.round(rng.beta(1 + near, 4), 3)
    results = {"image_id": 1 + found, "category_id": types, "bbox": box.tolist(), "score": scores}
    listed = [{"id": 1 + one, "file_name": f"{1 + one}.jpg", "height": SIDE, "width": SIDE} for one in range(IMAGES)]
    named = [{"id": number, "name": f"kind {number}"} for number in range(1, CATEGORIES + 1)]
    truth = {"images": listed, "annotations": pd.DataFrame(objects).to_dict("records"), "categories": named}
    return truth, pd.DataFrame(results).to_dict("records")


def main(argv: Sequence[str]) -> int:
    read(argv, __doc__)
    truth, results = drawn()
    print(f"{IMAGES:,} images, {len(truth['annotations']):,} objects, {len(results):,} detections", flush=True)
    data = opened(truth)
    runs = [timed(lambda: pair_detections(data, results, "bbox")) for _ in range(REPEATS)]
    pairing, matches = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    adding, ours = timed(lambda: scores(matches))
    copied = {**truth, "annotations": [dict(one) for one in truth["annotations"]]}, [dict(one) for one in results]
    seconds, theirs = timed(lambda: scored(*copied, "bbox"))
    largest = max(abs(ours[name] - theirs[name]) for name in ours) if ours.keys() == theirs.keys() else float("nan")
    print(f"AP {ours['box_AP']:.6f}, largest difference {largest:.1e}")
    for name, value in {"evaluate": pairing, "scores": adding, "pycocotools": seconds}.items():
        figure(name, value, "s")
    figure("ours / pycocotools", seconds / (pairing + adding), "x")
    rng = np.random.default_rng(0)
    resamples = rng.multinomial(IMAGES, np.full(IMAGES, 1 / IMAGES), size=RESAMPLES)
    times = [timed(lambda: Averager(matches, most=weights.max()).means(weights))[0] for weights in resamples]  # noqa: B023
    figure("scores of a resample", 1e3 * float(np.median(times)), "ms")
    return 0
