"""Detections of the images of a split, in COCO's format for results."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from backbones.spec import BackboneSpec
from tasks.detect.learner import DetectionLearner, collate, finite_outputs
from tasks.detect.pipelines import GREY, DetectionImages, test_transforms
from tasks.detect.task import DetectOptions
from transfer.core.errors import UserError, shortened
from transfer.core.exports import export_folder, pretraining_facts
from transfer.core.process import part_of_rank
from transfer.data.coco.dataset import CocoData
from transfer.data.coco.split import CocoSplit, mask_library
from transfer.engine import dist
from transfer.engine.context import Context
from transfer.engine.extract import NotFinite, load_batches


def with_trained_classes(spec: BackboneSpec, data: CocoData) -> CocoData:
    """Return a dataset with the classes of the detector in `spec.weights`, in its order; those that the dataset lacks
    have an id that it does not have either.

    Raises:
        UserError: the detector does not know a class of the dataset.
    """
    trained = pretraining_facts(export_folder(spec.weights) or Path(spec.weights)).get("classes", data.classes)
    if unknown := [name for name in data.classes if name not in trained]:
        raise UserError(
            f"{spec.weights}: the detector was trained for {len(trained)} classes ({shortened(trained, 3)}), without "
            f"{shortened(unknown, 3)} of {data.name}; leave these out of the dataset"
        )
    id_of, none = dict(zip(data.classes, data.category_ids)), min(data.category_ids) - 1
    return replace(data, classes=tuple(trained), category_ids=tuple(id_of.get(name, none) for name in trained))


Results = list[dict[str, Any]]


@torch.inference_mode()
def detect(learner: DetectionLearner, data: CocoData, options: DetectOptions, context: Context) -> Results:
    """Return [{image_id, category_id, bbox [x, y, width, height], score, segmentation}, ...], the same on every rank.

    Boxes are in pixels of the stored image; masks, where the detector has them, are run lengths. Results are in the
    order of the images. Only images that have the same padded size share a batch, so that neither the number of images
    in a batch nor the number of ranks changes the results.

    With `jitter` images are padded to its (H, W), as crops are: resampled positions then mean the same.

    Args:
        learner: the detector. data: dataset, of whose validation images it is. context: device, ranks and signals.

    Raises:
        UserError: an image cannot be read. Stopped: a signal came.
        NotFinite: the detector's output for an image is not finite; names the image.
    """
    detector, split, size, padded = learner.detector.eval(), data.val, options.size, options.resize_mode == "jitter"
    assert split is not None
    detector.data_preprocessor.to(context.device)  # nothing else tells it where to put images
    images = DetectionImages(split, test_transforms(size))
    step = detector.data_preprocessor.pad_size_divisor
    batches = equal_sizes(sizes_in_network(split, size, step, padded=padded), options.eval_batch_size)
    mine = part_of_rank(batches, context.ranks)
    results: dict[int, Results] = {}
    broken: list[int] = []
    for batch, places in zip(load_batches(images, mine, context, label="detection", collate=collate), mine):
        if padded:
            batch["inputs"] = [padded_to(image, size) for image in batch["inputs"]]
        samples = _predicted(detector, batch, context)
        if samples is None:
            broken.append(places[_first_broken(detector, batch, context)])
            break
        results |= {place: results_of(sample, data.category_ids) for place, sample in zip(places, samples)}
    return _in_order(dist.gather_objects((results, broken)), split)


def _in_order(gathered: list[tuple[dict[int, Results], list[int]]], split: CocoSplit) -> Results:
    """Return the results of all ranks by image. Raises NotFinite for the first image without finite results."""
    if broken := [place for _, places in gathered for place in places]:
        raise NotFinite(f"boxes, scores or masks: not finite for {split.images[min(broken)].file_name}")
    of_image = {place: results for of_rank, _ in gathered for place, results in of_rank.items()}
    return [result for place in sorted(of_image) for result in of_image[place]]


def sizes_in_network(split: CocoSplit, size: tuple[int, int], step: int, *, padded: bool) -> list[tuple[int, int]]:
    """Return the (H, W) of every image after it is resized and padded to multiples of `step`; see `detect`."""
    from mmcv.image.geometric import rescale_size

    sizes = []
    for image in split.images:
        width, height = rescale_size((image.width, image.height), (size[1], size[0]))
        height, width = (max(height, size[0]), max(width, size[1])) if padded else (height, width)
        sizes.append((-(-height // step) * step, -(-width // step) * step))
    return sizes


def equal_sizes(sizes: Sequence[tuple[int, int]], batch_size: int) -> list[list[int]]:
    """Return indices in batches of at most `batch_size` images of one size, in order as far as possible."""
    batches: list[list[int]] = []
    unfilled: dict[tuple[int, int], list[int]] = {}
    for place, size in enumerate(sizes):
        batch = unfilled.setdefault(size, [])
        batch.append(place)
        if len(batch) == batch_size:
            batches.append(unfilled.pop(size))
    return batches + list(unfilled.values())


def _predicted(detector: Any, batch: dict[str, Any], context: Context) -> list[Any] | None:
    """Return mmdetection's sample for each image; None when an output is not finite."""
    prepared = detector.data_preprocessor(batch, False)
    try:
        with context.scoring(), finite_outputs(detector) as flags, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # mmdetection warns about its own use of torch
            samples: list[Any] = detector.predict(prepared["inputs"], prepared["data_samples"])
            for found in (sample.pred_instances for sample in samples):
                flags += [found.bboxes.isfinite().all(), found.scores.isfinite().all()]
            return samples
    except NotFinite:
        return None


def _first_broken(detector: Any, batch: dict[str, Any], context: Context) -> int:
    """Return the first image of a batch whose outputs are not finite by itself; 0 when there is none."""
    singles = ({name: [values[place]] for name, values in batch.items()} for place in range(len(batch["inputs"])))
    return next((place for place, single in enumerate(singles) if _predicted(detector, single, context) is None), 0)


def padded_to(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Pad an image, uint8 [3, h, w], with grey at the bottom and right to `size` (H, W); larger sides stay."""
    height, width = (max(target - side, 0) for target, side in zip(size, image.shape[1:]))
    return F.pad(image, (0, width, 0, height), value=GREY)


def results_of(sample: Any, category_ids: Sequence[int]) -> Results:
    """Return the detections of one image in COCO's format."""
    found = sample.pred_instances
    columns = [found.bboxes.float(), found.scores.float()[:, None], found.labels[:, None]]
    rows: NDArray[Any] = torch.cat(columns, dim=1).cpu().double().numpy()  # one copy: each waits for a GPU
    rows[:, 2:4] -= rows[:, :2]
    masks = found.masks.cpu().numpy() if "masks" in found else None
    results: Results = []
    for place, row in enumerate(rows):
        *box, score, label = row.tolist()
        result = {"image_id": int(sample.img_id), "category_id": int(category_ids[int(label)]), "score": score}
        result["bbox"] = box
        if masks is not None:
            result["segmentation"] = run_lengths(masks[place])
        results.append(result)
    return results


def run_lengths(mask: NDArray[Any]) -> dict[str, Any]:
    """Encode a mask [H, W], bool, as COCO's compressed run lengths, in text that JSON can hold."""
    encoded = mask_library().encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": [int(side) for side in encoded["size"]], "counts": encoded["counts"].decode()}
