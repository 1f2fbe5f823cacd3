"""What a detector finds in the images of a split, as COCO's result format has it."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.engine import dist
from backbones.engine.context import Context
from backbones.engine.extract import loaded
from tasks.data.coco import CocoData
from tasks.data.coco_split import CocoSplit
from tasks.detection.learner import collate
from tasks.detection.pipelines import GREY, DetectionImages, test_transforms

Results = list[dict[str, Any]]


@torch.inference_mode()
def detect(
    detector: Any,
    data: CocoData,
    split: CocoSplit,
    size: tuple[int, int],
    context: Context,
    *,
    batch_size: int,
    padded: bool = False,
) -> Results:
    """[{image_id, category_id, bbox [x, y, width, height], score, segmentation}, ...]; the same on every rank.

    Boxes in pixels of the image as it is stored; masks, where the detector has them, as run lengths. In the order of
    the images. Batches are the same for any number of ranks, as images are padded to the largest of their batch.

    Args:
        size: (short, long), limits of an image's sides.
        batch_size: images of a batch of one rank.
        padded: whether every image is padded to `size`, (H, W) then, as crops for training are: positions, which are
            resampled to the grid of the padded image, then mean the same as in training.

    Raises:
        UserError: an image cannot be read.
        Stopped: a signal came.
    """
    detector.eval()
    detector.data_preprocessor.to(context.device)  # nothing else tells it where to put images
    images = DetectionImages(split, test_transforms(size))
    starts = range(0, len(images), batch_size)
    batches = [list(range(start, min(start + batch_size, len(images)))) for start in starts]
    mine = dist.share(batches, context.ranks)
    found: Results = []
    try:
        for batch in context.bar(loaded(images, mine, context, collate=collate), "detection", total=len(mine)):
            context.check_stop()
            if padded:
                batch["inputs"] = [padded_to(image, size) for image in batch["inputs"]]
            for sample in _predicted(detector, batch, context):
                found += results_of(sample, data.category_ids)
    except Exception:
        context.check_stop()  # a signal to the whole process group also ends the loader's workers
        raise
    return [result for part in dist.gather_objects(found) for result in part]


def _predicted(detector: Any, batch: dict[str, Any], context: Context) -> list[Any]:
    prepared = detector.data_preprocessor(batch, False)
    with context.scoring(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mmdetection about its own use of torch
        return detector.predict(prepared["inputs"], prepared["data_samples"])


def padded_to(image: Tensor, size: tuple[int, int]) -> Tensor:
    """An image, uint8 [3, h, w], with grey at the bottom and right up to `size` (H, W); larger sides stay."""
    height, width = (max(wanted - side, 0) for wanted, side in zip(size, image.shape[1:]))
    return F.pad(image, (0, width, 0, height), value=GREY)


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
