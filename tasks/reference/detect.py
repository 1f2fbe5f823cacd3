"""Detection anew: the run's detections by pycocotools; and, from its weights, the detections themselves in float64."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tasks.data.coco_split import CocoSplit
from tasks.detect import RESULTS, chosen_detector, make_learner
from tasks.detection.learner import collate
from tasks.detection.pipelines import DetectionImages, test_transforms
from tasks.detection.predict import padded_to
from tasks.reference.metrics.detection import coco_numbers, overlap
from tasks.reference.recomputed import ROUNDING, Recomputed, Row
from tasks.reference.run_inputs import InputsUnavailable, RunInputs, exact, load_all

Results = list[dict[str, Any]]
PREFIX = {"bbox": "box", "segm": "mask"}
AGAIN = ("AP", "AP50", "AP75")
TOLERANCE = {"fp32": 0.005, "fp16": 0.05, "bf16": 0.05}
"""Of these numbers from detections that are made anew, beside one object's share: a box at a threshold, of the score,
of suppression or of an overlap, may fall on its other side."""
SHARE = {"fp32": 0.01, "fp16": 0.5, "bf16": 0.5}
"""Of the detections that may have no counterpart, for the same reason."""
ALIKE, NEAR = 0.99, 0.01
"""Overlap, and difference of scores, up to which two detections are one."""


def recompute(run: RunInputs) -> Recomputed:
    """The twelve numbers of each kind by pycocotools, and again by detections of a forward pass."""
    path = run.folder / RESULTS
    if not path.is_file():
        raise InputsUnavailable(f"the detections: there is no {path} here (a shared copy leaves them out)")
    split = run.dataset.val
    recorded: Results = json.loads(path.read_bytes())
    kinds = ["bbox", "segm"] if chosen_detector(run.options, run.dataset).masks else ["bbox"]
    everything = [image.id for image in split.images]
    found = Recomputed(f"detections of {len(everything)} images")
    for kind in kinds:
        numbers = coco_numbers(_truth(run, kind), recorded, kind, everything)
        found.rows += _rows(run.scores, numbers, kind)
    try:
        learned = run.learned()
    except InputsUnavailable as missing:
        found.left.append(f"the detections themselves: {missing}")
        return found
    places = run.places(len(split.images))
    again = _detected(run, learned, split, places)
    chosen = {split.images[place].id for place in places.tolist()}
    for kind in kinds:
        truth = _truth(run, kind)
        objects = sum(one["image_id"] in chosen for one in truth["annotations"])
        before, after = (coco_numbers(truth, results, kind, chosen) for results in (recorded, again))
        for name in AGAIN:
            tolerance = TOLERANCE[run.precision] + 1 / max(objects, 1)
            label = f"{PREFIX[kind]}_{name}, detected anew"
            found.rows.append(Row(label, before.get(name), after.get(name), tolerance))
    found.rows.append(_alike(recorded, again, chosen, SHARE[run.precision]))
    found.source += f"; weights: {len(places)} images"
    return found


def _rows(recorded: dict[str, float], numbers: dict[str, float], kind: str) -> list[Row]:
    """The record's numbers of a kind beside these; each must have what the other has."""
    found = {f"{PREFIX[kind]}_{name}": number for name, number in numbers.items()}
    names = [*found, *(name for name in recorded if name.startswith(f"{PREFIX[kind]}_") and name not in found)]
    return [Row(name, recorded.get(name), found.get(name), ROUNDING) for name in names]


def _truth(run: RunInputs, kind: str) -> dict[str, Any]:
    """The validation split; of masks, an object without one counts neither way, and fills its box."""
    truth: dict[str, Any] = run.dataset.as_coco(run.dataset.val)
    if kind == "segm":
        truth["annotations"] = [
            one if "segmentation" in one else one | {"iscrowd": 1, "segmentation": [_corners(*one["bbox"])]}
            for one in truth["annotations"]
        ]
    return truth


def _corners(x: float, y: float, width: float, height: float) -> list[float]:
    return [x, y, x + width, y, x + width, y + height, x, y + height]


def _detected(run: RunInputs, learned: dict[str, Any], split: CocoSplit, places: NDArray[Any]) -> Results:
    """What the run's detector finds in images, one at a time."""
    options, data = run.options, run.dataset
    learner = make_learner(run.built, data, chosen_detector(options, data), options)
    load_all(learner, learned)
    detector = exact(learner).detector
    images = DetectionImages(split, test_transforms(options.size))
    return [one for place in places.tolist() for one in _of_image(detector, images, place, run)]


@torch.inference_mode()
def _of_image(detector: Any, images: DetectionImages, place: int, run: RunInputs) -> Results:
    """What is found in one image; the size of its batch has no influence."""
    batch = collate([images[place]])
    if run.options.view == "jitter":
        batch["inputs"] = [padded_to(image, run.options.size) for image in batch["inputs"]]
    prepared = detector.data_preprocessor(batch, False)
    with _widest():
        samples = detector.predict(prepared["inputs"].double(), prepared["data_samples"])
    instances, found = samples[0].pred_instances, []
    masks = instances.masks.numpy() if "masks" in instances else [None] * len(instances)
    for box, score, label, mask in zip(instances.bboxes.tolist(), instances.scores, instances.labels, masks):
        one: dict[str, Any] = {"image_id": images.split.images[place].id, "score": float(score)}
        one |= {"category_id": run.dataset.category_ids[int(label)], "bbox": _sides(*box)}
        found.append(one if mask is None else one | {"segmentation": _encoded(mask)})
    return found


@contextmanager
def _widest() -> Iterator[None]:
    """Within it what detectors bring to float32 (half precision, elsewhere) is float64, and masks are pasted so."""
    brought, sampled = Tensor.float, functional.grid_sample

    def sample(masks: Tensor, grid: Tensor, **options: Any) -> Tensor:
        return sampled(masks.double(), grid.double(), **options)

    Tensor.float, functional.grid_sample = Tensor.double, sample  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Tensor.float, functional.grid_sample = brought, sampled  # type: ignore[method-assign]


def _sides(left: float, top: float, right: float, bottom: float) -> list[float]:
    return [left, top, right - left, bottom - top]


def _encoded(mask: NDArray[Any]) -> dict[str, Any]:
    from pycocotools.mask import encode

    encoded = encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode()}


def _alike(recorded: Results, again: Results, images: set[int], share: float) -> Row:
    """The share of the run's detections that are found again: of an image, a category, a box and a score."""
    left: dict[tuple[int, int], Results] = {}
    for one in again:
        left.setdefault((one["image_id"], one["category_id"]), []).append(one)
    mine = [one for one in recorded if one["image_id"] in images]
    hits = 0
    for one in mine:
        others = left.get((one["image_id"], one["category_id"]), [])
        fitting = [
            other
            for other in others
            if abs(other["score"] - one["score"]) <= NEAR and overlap(one["bbox"], other["bbox"]) >= ALIKE
        ]
        if fitting:
            others.remove(max(fitting, key=lambda other: overlap(one["bbox"], other["bbox"])))
            hits += 1
    return Row("detections found again", 1.0, hits / len(mine) if mine else 1.0, share)
