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

from tasks.detect.coco.averages import Averager, evaluate, scores
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import figure, timed
from tests.tasks.detect.coco.cases import opened, scored

IMAGES, DETECTIONS, CATEGORIES, OBJECTS, SIDE = 5000, 100, 80, 7.3, 640
REPEATS, RESAMPLES = 3, 20


def drawn() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Truth and results: a third of the detections lie near an object of the image, mostly under its category."""
    rng = np.random.default_rng(0)
    objects: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image in range(1, IMAGES + 1):
        count = int(rng.poisson(OBJECTS))
        sides = np.exp(rng.uniform(np.log(8), np.log(400), (count, 2)))
        boxes = np.concatenate([rng.uniform(0, SIDE - sides), sides], axis=1)
        kinds = rng.choice(rng.integers(1, CATEGORIES + 1, 3), count)
        crowds = rng.random(count) < 0.01
        for box, kind, crowd in zip(boxes.tolist(), kinds.tolist(), crowds.tolist()):
            one = {"image_id": image, "category_id": kind, "bbox": box, "area": 0.7 * box[2] * box[3]}
            objects.append({**one, "id": len(objects) + 1, "iscrowd": int(crowd)})
        near = rng.random(DETECTIONS) < (0.33 if count else 0)
        whose = rng.integers(max(count, 1), size=DETECTIONS)
        spread = np.exp(rng.uniform(np.log(8), np.log(400), (DETECTIONS, 2)))
        found = np.concatenate([rng.uniform(0, SIDE - spread), spread], axis=1)
        types = rng.integers(1, CATEGORIES + 1, DETECTIONS)
        if count:
            moved = boxes[whose] + rng.normal(0, 0.08, (DETECTIONS, 4)) * boxes[whose][:, [2, 3, 2, 3]]
            found = np.where(near[:, None], np.maximum(moved, 1), found)
            types = np.where(near & (rng.random(DETECTIONS) < 0.8), kinds[whose], types)
        values = np.round(rng.beta(1 + near, 4), 3)
        for box, kind, score in zip(found.tolist(), types.tolist(), values.tolist()):
            results.append({"image_id": image, "category_id": kind, "bbox": box, "score": score})
    listed = [
        {"id": number, "file_name": f"{number}.jpg", "height": SIDE, "width": SIDE} for number in range(1, IMAGES + 1)
    ]
    named = [{"id": number, "name": f"kind {number}"} for number in range(1, CATEGORIES + 1)]
    return {"images": listed, "annotations": objects, "categories": named}, results


def main(argv: Sequence[str]) -> int:
    read(argv, __doc__)
    truth, results = drawn()
    print(f"{IMAGES:,} images, {len(truth['annotations']):,} objects, {len(results):,} detections", flush=True)
    data = opened(truth)
    runs = [timed(lambda: evaluate(data, results, "bbox")) for _ in range(REPEATS)]
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
