"""COCO's twelve numbers by pycocotools, the data set's own code (arXiv 1405.0312)."""

import contextlib
import io
from collections.abc import Collection
from typing import Any

import numpy as np

NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


def coco_numbers(
    truth: dict[str, Any], results: list[dict[str, Any]], kind: str, images: Collection[int]
) -> dict[str, float]:
    """Return the numbers in [0, 1] of the given images by their `NAMES`; undefined ones are left out.

    Args:
        truth, results: in COCO's formats. Boxes of results are dropped for masks, whose own areas then count; an object
            of the truth without a mask is then ignored like a crowd and fills its box.
        kind: "bbox" or "segm".
        images: ids.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    dropped = "bbox" if kind == "segm" else "segmentation"
    kept = [
        {name: value for name, value in result.items() if name != dropped}
        for result in results
        if result["image_id"] in images
    ]
    if kind == "segm":
        truth = truth | {"annotations": [_with_mask(annotation) for annotation in truth["annotations"]]}
    with contextlib.redirect_stdout(io.StringIO()):
        objects = COCO()
        objects.dataset = truth
        objects.createIndex()
        if not kept:
            evaluated = COCOeval(objects, COCO(), kind)
            evaluated.cocoDt.dataset = {"images": truth["images"], "annotations": [], "categories": truth["categories"]}
            evaluated.cocoDt.createIndex()
        else:
            evaluated = COCOeval(objects, objects.loadRes(kept), kind)
        evaluated.params.imgIds = sorted(images)
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return {name: float(value) for name, value in zip(NAMES, evaluated.stats) if value > -1 and np.isfinite(value)}


def _with_mask(annotation: dict[str, Any]) -> dict[str, Any]:
    if "segmentation" in annotation:
        return annotation
    left, top, width, height = annotation["bbox"]
    corners = [left, top, left + width, top, left + width, top + height, left, top + height]
    return annotation | {"iscrowd": 1, "segmentation": [corners]}
