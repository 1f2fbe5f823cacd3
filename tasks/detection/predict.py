"""What a detector finds in the images of a split, as COCO's result format has it."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from backbones.engine import dist
from backbones.engine.context import Context
from backbones.engine.extract import loaded
from tasks.data.coco import CocoData
from tasks.data.coco_split import CocoSplit
from tasks.detection.learner import collate
from tasks.detection.pipelines import DetectionImages, test_transforms

Results = list[dict[str, Any]]


@torch.inference_mode()
def detect(
    detector: Any, data: CocoData, split: CocoSplit, size: tuple[int, int], context: Context, *, batch_size: int
) -> Results:
    """[{image_id, category_id, bbox [x, y, width, height], score, segmentation}, ...]; the same on every rank.

    Boxes in pixels of the image as it is stored; masks, where the detector has them, as run lengths.
    """
    detector.eval()
    images = DetectionImages(split, test_transforms(size))
    mine = dist.share(list(range(len(images))), context.ranks)
    batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    found: Results = []
    stream = loaded(images, batches, context, collate=collate)
    for batch in context.bar(stream, "detection", total=len(batches)):
        context.check_stop()
        prepared = detector.data_preprocessor(batch, False)
        with context.autocast(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of mmdetection about its own use of torch
            samples = detector.predict(prepared["inputs"], prepared["data_samples"])
        for sample in samples:
            found += results_of(sample, data.category_ids)
    return [result for part in dist.gather_objects(found) for result in part]


def results_of(sample: Any, category_ids: Sequence[int]) -> Results:
    """The detections of one image."""
    instances = sample.pred_instances
    boxes = instances.bboxes.float().cpu().numpy().astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    masks = instances.masks.cpu().numpy() if "masks" in instances else None
    found = []
    scores, labels = instances.scores.float().cpu().tolist(), instances.labels.cpu().tolist()
    for place, (score, label) in enumerate(zip(scores, labels, strict=True)):
        result = {"image_id": int(sample.img_id), "category_id": int(category_ids[label]), "score": score}
        result["bbox"] = boxes[place].tolist()
        if masks is not None:
            result["segmentation"] = run_lengths(masks[place])
        found.append(result)
    return found


def run_lengths(mask: np.ndarray) -> dict[str, Any]:
    """A mask [H, W], bool, as COCO's compressed run lengths, in text that JSON can hold."""
    from pycocotools.mask import encode

    encoded = encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode()}
