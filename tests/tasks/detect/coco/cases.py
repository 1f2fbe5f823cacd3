"""Drawn truths and results in COCO's format, and their numbers by pycocotools."""

import contextlib
import copy
import io
import json
from pathlib import Path

import numpy as np

from tasks.detect.coco import averages
from tasks.detect.coco.matching import SCORE_PREFIX
from tests.tasks.detect.scenes import data_of
from transfer.data.coco.annotations import read_coco_split
from transfer.data.coco.scoring import COCO

HEIGHT, WIDTH = 240, 320


def rectangle(box):
    """A polygon of four corners, one cut off so that mask and box differ."""
    x, y, w, h = box
    return [[x, y + h / 3, x, y + h, x + w, y + h, x + w, y, x + w / 3, y]]


def encoded(polygons):
    from pycocotools import mask

    return mask.merge(mask.frPyObjects(polygons, HEIGHT, WIDTH))


def counts_of(polygons):
    from pycocotools import mask

    pixels = np.concatenate([[0], mask.decode(encoded(polygons)).ravel(order="F"), [2]])
    changes = np.flatnonzero(np.diff(pixels))
    return {"size": [HEIGHT, WIDTH], "counts": np.diff(np.concatenate([[0], changes])).tolist()}


def draw_box(rng, big=1.0):
    w, h = rng.choice([12, 28, 33, 60, 97, 150], 2) * rng.uniform(0.6, 1.1, 2) * big
    return [float(rng.uniform(0, WIDTH - w)), float(rng.uniform(0, max(HEIGHT - h, 1))), float(w), float(h)]


def drawn(seed, *, images=12, categories=(1, 3, 7, 18), crowded=False):
    """A dataset and results: near hits, doubles, misses, tied scores, crowds, empty images, an empty category."""
    rng = np.random.default_rng(seed)
    objects, results = [], []
    for image in range(images):
        here = 0 if image % 5 == 1 else int(rng.integers(1, 7))
        for _ in range(here):
            box, crowd = draw_box(rng), bool(rng.random() < 0.15)
            mask = counts_of(rectangle(box)) if crowd else rectangle(box)
            objects.append({
                "id": len(objects) + 1, "image_id": 10 * (images - image),
                "category_id": int(rng.choice(categories[:-1])), "bbox": box, "area": box[2] * box[3] * 0.9,
                "iscrowd": int(crowd), "segmentation": mask,
            })  # fmt: skip
        own = [one for one in objects if one["image_id"] == 10 * (images - image)]
        found = 0 if image % 4 == 2 else int(rng.integers(150, 180)) if crowded and image == 3 else len(own) * 3 + 2
        for _ in range(found):
            near = own[int(rng.integers(len(own)))] if own and rng.random() < 0.8 else None
            box = [float(v) for v in near["bbox"] + rng.normal(0, 4, 4)] if near else draw_box(rng)
            box[2], box[3] = max(box[2], 2.0), max(box[3], 2.0)
            kind = near["category_id"] if near and rng.random() < 0.8 else int(rng.choice(categories[:2]))
            results.append({
                "image_id": 10 * (images - image), "category_id": kind, "score": round(float(rng.random()), 1),
                "bbox": box, "segmentation": encoded(rectangle(box)),
            })  # fmt: skip
    listed = [
        {"id": 10 * (images - number), "file_name": f"{number:03d}.jpg", "height": HEIGHT, "width": WIDTH}
        for number in range(images)
    ]
    named = [{"id": number, "name": f"kind {number}"} for number in categories]
    return {"images": listed, "annotations": objects, "categories": named}, results


def opened(truth, scoring=COCO):
    """The dataset whose validation split this is, its boxes taken as they are; its images are not looked at."""
    content = json.dumps(truth, default=bytes.decode).encode()
    split, classes, _ = read_coco_split("val", Path("truth.json"), Path(), content, boxes="in_file")
    return data_of(split, classes, scoring=scoring)


def evaluate(truth, results, kind, scoring=COCO):
    """Our matches of what is given in COCO's format."""
    return averages.pair_detections(opened(truth, scoring), results, kind)


def official(truth, results, kind):
    """The twelve numbers by pycocotools, under our names, those it says -1 of left out."""
    return scored(copy.deepcopy(truth), copy.deepcopy(results), kind)


def scored(truth, results, kind):
    """As `official`; what is given is written into."""
    scorer = accumulated(truth, results, kind)
    with contextlib.redirect_stdout(io.StringIO()):
        scorer.summarize()
    stats = dict(zip(COCO.numbers, list(scorer.stats)[:12]))
    return {f"{SCORE_PREFIX[kind]}_{name}": value for name, value in stats.items() if value > -1}


def accumulated(truth, results, kind, **params):
    """The scorer of pycocotools with its results, under other parameters if they are given."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if kind == "segm":
        for one in results:
            del one["bbox"]
    data = COCO()
    data.dataset = truth
    with contextlib.redirect_stdout(io.StringIO()):
        data.createIndex()
        scorer = COCOeval(data, data.loadRes(results), kind)
        vars(scorer.params).update(params)
        scorer.evaluate()
        scorer.accumulate()
    return scorer


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert max(abs(ours[name] - theirs[name]) for name in ours) < 1e-9


def repeated(truth, results, weights):
    """Each image as often as `weights` says, with ids of its own; copies follow each other."""
    images, objects, found = [], [], []
    for place, image in enumerate(sorted(truth["images"], key=lambda one: one["id"])):
        for copy_ in range(weights[place]):
            number = 1000 * image["id"] + copy_
            images.append({**image, "id": number, "file_name": f"{number}.jpg"})
            for source, target in ((truth["annotations"], objects), (results, found)):
                target += [{**one, "image_id": number} for one in source if one["image_id"] == image["id"]]
    objects = [{**one, "id": number} for number, one in enumerate(objects, start=1)]
    return {**truth, "images": images, "annotations": objects}, found


def official_by_class(truth, results, kind, scoring):
    """The numbers [K] of each category by pycocotools with these parameters, nan for those it says -1 of."""
    params = {"iouThrs": np.array(scoring.ious), "maxDets": scoring.max_detections, "areaRng": scoring.ranges}
    labels = ["all", *(name for name, *_ in scoring.areas)]
    scorer = accumulated(copy.deepcopy(truth), copy.deepcopy(results), kind, **params, areaRngLbl=labels)
    numbers = {}
    for name, (recall, area, iou, limit) in scoring.numbers.items():
        values = scorer.eval["recall" if recall else "precision"][..., area, scoring.max_detections.index(limit)]
        values = values if iou is None else values[[iou]]
        means = values.mean(axis=0 if recall else (0, 1))
        numbers[name] = np.where(means == -1, np.nan, means)
    return numbers
