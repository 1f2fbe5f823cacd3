"""COCO's numbers by `tasks.detect.coco.averages` and by pycocotools, in one process, on made-up boxes.

python -m tests.benchmarks coco_scoring [--images 5000] [--detections 100] [--repeats 3] [--resamples 20]
The sizes are those of val2017: 80 categories, about 7 objects an image. Both start from the same lists in COCO's
format; pycocotools is given a copy, since it writes into what it gets, and making that copy is not counted.
"""

import argparse
import contextlib
import io
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.detect.coco.averages import NAMES, Averager, evaluate, scores

CATEGORIES, OBJECTS = 80, 7.3
SIDE = 640


def drawn(images: int, detections: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Truth and results: a third of the detections lie near an object of the image, mostly under its category."""
    rng = np.random.default_rng(0)
    objects: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image in range(1, images + 1):
        count = int(rng.poisson(OBJECTS))
        sides = np.exp(rng.uniform(np.log(8), np.log(400), (count, 2)))
        boxes = np.concatenate([rng.uniform(0, SIDE - sides), sides], axis=1)
        kinds = rng.choice(rng.integers(1, CATEGORIES + 1, 3), count)
        crowds = rng.random(count) < 0.01
        for box, kind, crowd in zip(boxes.tolist(), kinds.tolist(), crowds.tolist()):
            one = {"image_id": image, "category_id": kind, "bbox": box, "area": 0.7 * box[2] * box[3]}
            objects.append({**one, "id": len(objects) + 1, "iscrowd": int(crowd)})
        near = rng.random(detections) < (0.33 if count else 0)
        whose = rng.integers(max(count, 1), size=detections)
        spread = np.exp(rng.uniform(np.log(8), np.log(400), (detections, 2)))
        found = np.concatenate([rng.uniform(0, SIDE - spread), spread], axis=1)
        types = rng.integers(1, CATEGORIES + 1, detections)
        if count:
            moved = boxes[whose] + rng.normal(0, 0.08, (detections, 4)) * boxes[whose][:, [2, 3, 2, 3]]
            found = np.where(near[:, None], np.maximum(moved, 1), found)
            types = np.where(near & (rng.random(detections) < 0.8), kinds[whose], types)
        values = np.round(rng.beta(1 + near, 4), 3)
        for box, kind, score in zip(found.tolist(), types.tolist(), values.tolist()):
            results.append({"image_id": image, "category_id": kind, "bbox": box, "score": score})
    listed = [{"id": number, "file_name": f"{number:012d}.jpg", "height": SIDE, "width": SIDE} for number in
              range(1, images + 1)]  # fmt: skip
    named = [{"id": number, "name": f"kind {number}"} for number in range(1, CATEGORIES + 1)]
    return {"images": listed, "annotations": objects, "categories": named}, results


def pycocotools(truth: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, float]:
    """The numbers under our names."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = truth
        data.createIndex()
        scorer = COCOeval(data, data.loadRes(results), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return {f"box_{name}": float(value) for name, value in zip(NAMES, scorer.stats) if value > -1}


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result."""
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--detections", type=int, default=100, help="an image")
    parser.add_argument("--repeats", type=int, default=3, help="of this suite's scoring; the median counts")
    parser.add_argument("--resamples", type=int, default=20)
    options = parser.parse_args(argv)
    truth, results = drawn(options.images, options.detections)
    print(f"{options.images:,} images, {len(truth['annotations']):,} objects, {len(results):,} detections", flush=True)
    runs = [timed(lambda: evaluate(truth, results, "bbox")) for _ in range(options.repeats)]
    pairing, matches = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    adding, ours = timed(lambda: scores(matches))
    copied = {**truth, "annotations": [dict(one) for one in truth["annotations"]]}, [dict(one) for one in results]
    seconds, theirs = timed(lambda: pycocotools(*copied))
    largest = max(abs(ours[name] - theirs[name]) for name in ours) if ours.keys() == theirs.keys() else float("nan")
    print(
        f"evaluate {pairing:.2f} s + scores {adding:.2f} s, pycocotools {seconds:.1f} s: "
        f"{seconds / (pairing + adding):.1f} times as fast; AP {ours['box_AP']:.6f}, largest difference {largest:.1e}",
        flush=True,
    )
    rng = np.random.default_rng(0)
    shares = np.full(options.images, 1 / options.images)
    drawn_again = [rng.multinomial(options.images, shares) for _ in range(options.resamples)]
    times = [
        timed(lambda weights=weights: Averager(matches, most=weights.max()).means(weights))[0]
        for weights in drawn_again
    ]
    if times:
        print(f"scores of a resample: {np.median(times):.3f} s", flush=True)
    return 0
