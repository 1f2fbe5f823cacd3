"""Recompute detection: scores of the recorded detections by pycocotools, and the detections themselves in float64."""

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
from tasks.detect import kinds, make_learner
from tasks.detection.learner import collate
from tasks.detection.pipelines import DetectionImages, test_transforms
from tasks.detection.predict import padded_to
from tasks.detection.shared_classes import with_classes
from tasks.facts.detect import RESULTS, chosen_detector
from tasks.reference.metrics.detection import box_iou, coco_numbers
from tasks.reference.recomputed import ROUNDING, Recomputed, ScoreComparison
from tasks.reference.run_inputs import InputsUnavailable, RunInputs, in_float64, load_strictly

Results = list[dict[str, Any]]
PREFIX = {"bbox": "box", "segm": "mask"}
AGAIN = ("AP", "AP50", "AP75")
TOLERANCE = {"fp32": 0.005, "fp16": 0.05, "bf16": 0.05}
"""Tolerance of these numbers for recomputed detections, to which one object's fraction of all is added: rounding may
move a box across a threshold of the score, of suppression or of the IoU."""
SHARE = {"fp32": 0.01, "fp16": 0.5, "bf16": 0.5}
"""Fraction of the detections that may have no counterpart, for the same reason."""
ALIKE, NEAR = 0.99, 0.01
"""Smallest IoU and largest difference of scores at which two detections count as the same."""


def recompute(run: RunInputs) -> Recomputed:
    """Recompute the twelve numbers of each kind from the recorded detections, and from those of a forward pass."""
    path = run.folder / RESULTS
    if not path.is_file():
        raise InputsUnavailable(f"the detections: there is no {path} here (a shared copy leaves them out)")
    split = run.dataset.val
    recorded: Results = json.loads(path.read_bytes())
    scored = kinds(chosen_detector(run.options, run.dataset), run.dataset)
    everything = [image.id for image in split.images]
    result = Recomputed(f"detections of {len(everything)} images")
    for kind in scored:
        numbers = coco_numbers(_truth(run, kind), recorded, kind, everything)
        result.rows += _rows(run.scores, numbers, kind)
    if run.details.get("classes"):
        result.not_recomputed.append("the detections themselves: the detector was trained for other classes")
        return result
    try:
        learned = run.trained_tensors()
    except InputsUnavailable as missing:
        result.not_recomputed.append(f"the detections themselves: {missing}")
        return result
    places = run.sample_indices(len(split.images))
    again = _detected(run, learned, split, places)
    chosen = {split.images[place].id for place in places.tolist()}
    for kind in scored:
        truth = _truth(run, kind)
        objects = sum(annotation["image_id"] in chosen for annotation in truth["annotations"])
        before, after = (coco_numbers(truth, results, kind, chosen) for results in (recorded, again))
        for name in AGAIN:
            tolerance = TOLERANCE[run.precision] + 1 / max(objects, 1)
            label = f"{PREFIX[kind]}_{name}, detected anew"
            result.rows.append(ScoreComparison(label, before.get(name), after.get(name), tolerance))
    result.rows.append(_alike(recorded, again, chosen, SHARE[run.precision]))
    result.source += f"; weights: {len(places)} images"
    return result


def _rows(recorded: dict[str, float], numbers: dict[str, float], kind: str) -> list[ScoreComparison]:
    """Compare the recorded numbers of a kind with `numbers`; a number that one lacks differs."""
    recomputed = {f"{PREFIX[kind]}_{name}": number for name, number in numbers.items()}
    names = [
        *recomputed,
        *(name for name in recorded if name.startswith(f"{PREFIX[kind]}_") and name not in recomputed),
    ]
    return [ScoreComparison(name, recorded.get(name), recomputed.get(name), ROUNDING) for name in names]


def _truth(run: RunInputs, kind: str) -> dict[str, Any]:
    """Return the validation split; for masks, an object without one is ignored like a crowd and fills its box."""
    data = with_classes(run.dataset, shared["shared"]) if (shared := run.details.get("classes")) else run.dataset
    assert data.val is not None
    truth: dict[str, Any] = data.as_coco(data.val)
    if kind == "segm":
        truth["annotations"] = [
            annotation
            if "segmentation" in annotation
            else annotation | {"iscrowd": 1, "segmentation": [_corners(*annotation["bbox"])]}
            for annotation in truth["annotations"]
        ]
    return truth


def _corners(x: float, y: float, width: float, height: float) -> list[float]:
    return [x, y, x + width, y, x + width, y + height, x, y + height]


def _detected(run: RunInputs, learned: dict[str, Any], split: CocoSplit, places: NDArray[Any]) -> Results:
    """Return the detections of the trained detector, computed one image at a time."""
    options, data = run.options, run.dataset
    learner = make_learner(run.spec_without_weights, data, chosen_detector(options, data), options)
    load_strictly(learner, learned)
    detector = in_float64(learner).detector
    images = DetectionImages(split, test_transforms(options.size))
    return [detection for place in places.tolist() for detection in _detected_in_image(detector, images, place, run)]


@torch.inference_mode()
def _detected_in_image(detector: Any, images: DetectionImages, place: int, run: RunInputs) -> Results:
    """Return the detections of one image; the batch size has no influence."""
    batch = collate([images[place]])
    if run.options.view == "jitter":
        batch["inputs"] = [padded_to(image, run.options.size) for image in batch["inputs"]]
    prepared = detector.data_preprocessor(batch, False)
    with _widest():
        samples = detector.predict(prepared["inputs"].double(), prepared["data_samples"])
    instances, detections = samples[0].pred_instances, []
    masks = instances.masks.numpy() if "masks" in instances else [None] * len(instances)
    for box, score, label, mask in zip(instances.bboxes.tolist(), instances.scores, instances.labels, masks):
        detection: dict[str, Any] = {"image_id": images.split.images[place].id, "score": float(score)}
        detection |= {"category_id": run.dataset.category_ids[int(label)], "bbox": _sides(*box)}
        detections.append(detection if mask is None else detection | {"segmentation": _encoded(mask)})
    return detections


@contextmanager
def _widest() -> Iterator[None]:
    """Keep float64 where detectors convert to float32, and paste masks in float64."""
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


def _alike(recorded: Results, again: Results, images: set[int], share: float) -> ScoreComparison:
    """Compare the fraction of the recorded detections that are found again (image, category, box and score) with 1."""
    left: dict[tuple[int, int], Results] = {}
    for detection in again:
        left.setdefault((detection["image_id"], detection["category_id"]), []).append(detection)
    mine = [detection for detection in recorded if detection["image_id"] in images]
    hits = 0
    for detection in mine:
        others = left.get((detection["image_id"], detection["category_id"]), [])
        fitting = [
            other
            for other in others
            if abs(other["score"] - detection["score"]) <= NEAR and box_iou(detection["bbox"], other["bbox"]) >= ALIKE
        ]
        if fitting:
            others.remove(max(fitting, key=lambda other: box_iou(detection["bbox"], other["bbox"])))
            hits += 1
    return ScoreComparison("detections found again", 1.0, hits / len(mine) if mine else 1.0, share)
