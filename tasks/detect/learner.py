"""The learner of detection: a detector of mmdetection, its losses summed as mmdetection sums them; and the detections
of the images of a split, in COCO's format for results.

Backbone, neck and the layers within heads follow autocast. Levels of the pyramid and outputs of heads are float32, and
so is all that mmdetection derives from them, since anchors, regions and scores take the type of these outputs:
decoding, proposals, targets, losses, suppression with its offset per class, probabilities of masks, boxes in the stored
image. At 1,000 pixels bf16 resolves steps of 4 pixels only.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from backbones.backbone import Backbone
from backbones.flops import flops
from backbones.spec import BackboneSpec
from backbones.token_shards import Shards
from tasks.detect.feature_maps import StageMaps, VitMaps
from tasks.detect.mmlab import operator_dtype
from tasks.detect.pipelines import GREY, DetectionImages, test_transforms
from tasks.detect.task import DetectOptions
from transfer.core.errors import UserError, shortened
from transfer.core.exports import weights_facts
from transfer.core.process import part_of_rank
from transfer.data.coco.dataset import CocoData
from transfer.data.coco.split import CocoSplit, mask_library
from transfer.engine import dist
from transfer.engine.context import Context
from transfer.engine.extract import NotFinite, load_batches
from transfer.engine.learner import Batch, Learner
from transfer.task import Array


class DetectionLearner(Learner):
    """Images and their annotations -> the detector's losses.

    A batch is {"inputs": [uint8 [3, H, W], ...], "data_samples": [DetDataSample, ...]}, images of different sizes.

    Args:
        detector: result of `build_detector`.
        norm_eval: whether batch norms of the backbone keep their statistics.
    """

    one_size = False
    layered = "detector.backbone.maps.backbone"

    def __init__(self, detector: Any, *, norm_eval: bool) -> None:
        super().__init__()
        self.detector, self.norm_eval = detector, norm_eval

    @property
    def maps(self) -> VitMaps | StageMaps:
        """Return the module of the detector that computes the backbone's maps."""
        return self.detector.backbone.maps

    @property
    def backbone(self) -> Backbone:
        """Return the backbone within the detector."""
        return self.maps.backbone

    def padded(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the padded size (H, W), in pixels, of a batch of images of this size in the detector."""
        return padded_size(size, self.detector.data_preprocessor.pad_size_divisor)

    def dense_flops(self, size: tuple[int, int]) -> float:
        """Return the operations for an image of this size, without those for each region of it."""
        head = getattr(self.detector, "rpn_head", None) or self.detector.bbox_head
        dense = nn.Sequential(self.detector.backbone, self.detector.neck, head)
        return float(flops(dense, self.padded(size))["total"])

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the losses by mmdetection's names, and as `loss` their sum."""
        losses = self.detector.loss(batch["inputs"], batch["data_samples"])
        parts = {name: _total(value) for name, value in losses.items() if "loss" in name}
        return {"loss": torch.stack(list(parts.values())).sum(), **parts}

    def prepare(self, batch: Batch, device: torch.device) -> Batch:
        """Move a batch to the device and pad its images to one size; pixels are in [0, 1]."""
        self.detector.data_preprocessor.to(device)  # `Module.to` of the detector does not reach it
        return self.detector.data_preprocessor(batch, True)

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """Split a batch into parts of equally many images, which keep the padding of the whole batch."""
        size = -(-self.batch_size(batch) // parts)
        return [_part(batch, start, start + size) for start in range(0, self.batch_size(batch), size)]

    def batch_size(self, batch: Batch) -> int:
        """Return the number of images."""
        return len(batch["data_samples"])

    def train(self, mode: bool = True) -> "DetectionLearner":
        """Set the mode, except that batch norms of the backbone keep their statistics with `norm_eval`."""
        super().train(mode)
        if self.norm_eval:
            for module in self.backbone.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def share_tokens(self, ranks: int) -> None:
        """Share the tokens of a plain ViT's global blocks among the ranks; each rank computes the rest."""
        if not isinstance(self.maps, VitMaps):
            super().share_tokens(ranks)
        else:
            self.maps.share_tokens(Shards(ranks))


def _part(batch: Batch, start: int, stop: int) -> Batch:
    return {name: values[start:stop] for name, values in batch.items()}


def collate(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Collect packed samples of mmdetection's transforms in one batch; nothing is stacked, as sizes differ."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def _total(value: Tensor | list[Tensor]) -> Tensor:
    """Return a loss as mmdetection adds it up: means, summed over levels."""
    return torch.stack([level.mean() for level in value]).sum() if isinstance(value, list | tuple) else value.mean()


def widen(detector: nn.Module) -> None:
    """Make the neck and every head return their outputs in float32 at least, mmdetection's type of regions."""
    for part in neck_and_heads(detector):
        part.register_forward_hook(lambda part, inputs, output: tree_map(_widened, output))


def neck_and_heads(detector: Any) -> list[nn.Module]:
    """Return the neck and the modules that mmdetection names `..._head`, at any depth; each stage of a cascade."""
    modules: list[nn.Module] = [detector.neck]
    for name, module in detector.named_modules():
        if name.endswith("_head"):
            modules += module if isinstance(module, nn.ModuleList) else [module]
    return modules


def _widened(value: Any) -> Any:
    return value.to(operator_dtype(value)) if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


@contextmanager
def finite_outputs(detector: Any) -> Iterator[list[Tensor]]:
    """Raise NotFinite at the end of the block when a level or an output of a head was not finite.

    mmdetection would drop a box whose score is nan, and the image would be scored by the others. The list that is
    given takes further flags of the batch: all are read at once, since a GPU is waited for each time.
    """
    flags: list[Tensor] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        flags.extend(leaf.isfinite().all() for leaf in tree_leaves(output) if _is_float(leaf))

    with ExitStack() as hooks:
        for module in neck_and_heads(detector):
            hooks.callback(module.register_forward_hook(note).remove)
        try:
            yield flags
        finally:  # numbers that are not finite may also have ended it
            if flags and not torch.stack(flags).all():
                raise NotFinite


def with_trained_classes(spec: BackboneSpec, data: CocoData) -> CocoData:
    """Return a dataset with the classes of the detector in `spec.weights`, in its order; those that the dataset lacks
    have an id that it does not have either.

    Raises:
        UserError: the detector does not know a class of the dataset.
    """
    trained = weights_facts(spec.weights).get("classes", data.classes)
    if unknown := [name for name in data.classes if name not in trained]:
        had = f"{len(trained)} classes ({shortened(trained, 3)}), without {shortened(unknown, 3)} of {data.name}"
        raise UserError(f"{spec.weights}: the detector was trained for {had}; leave these out of the dataset")
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
    pad_divisor = detector.data_preprocessor.pad_size_divisor
    batches = equal_sizes(sizes_in_network(split, size, pad_divisor, padded=padded), options.eval_batch_size)
    batches = part_of_rank(batches, context.ranks)
    results: dict[int, Results] = {}
    broken: list[int] = []
    for batch, places in zip(load_batches(images, batches, context, label="detection", collate=collate), batches):
        if padded:
            batch["inputs"] = [padded_to(image, size) for image in batch["inputs"]]
        samples = _predicted(detector, batch, context)
        if samples is None:
            broken.append(places[_first_broken(detector, batch, context)])
            break
        results |= {place: results_of(sample, data.category_ids) for place, sample in zip(places, samples)}
    for results_of_rank, broken_of_rank in dist.gather_objects((results, broken)):
        results |= results_of_rank
        broken += broken_of_rank
    if broken:
        raise NotFinite(f"boxes, scores or masks: not finite for {split.images[min(broken)].file_name}")
    return [*chain.from_iterable(results[place] for place in sorted(results))]


def padded_size(size: tuple[int, int], step: int) -> tuple[int, int]:
    """Return the next (H, W) in pixels that are multiples of `step`."""
    return -(-size[0] // step) * step, -(-size[1] // step) * step


def sizes_in_network(split: CocoSplit, size: tuple[int, int], step: int, *, padded: bool) -> list[tuple[int, int]]:
    """Return the (H, W) of every image after it is resized and padded to multiples of `step`; see `detect`."""
    from mmcv.image.geometric import rescale_size

    sizes = []
    for image in split.images:
        width, height = rescale_size((image.width, image.height), (size[1], size[0]))
        height, width = (max(height, size[0]), max(width, size[1])) if padded else (height, width)
        sizes.append(padded_size((height, width), step))
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
        silence = warnings.catch_warnings(action="ignore")  # by mmdetection about its own use of torch
        with context.scoring(), finite_outputs(detector) as flags, silence:
            samples: list[Any] = detector.predict(prepared["inputs"], prepared["data_samples"])
            for instances in (sample.pred_instances for sample in samples):
                flags += [instances.bboxes.isfinite().all(), instances.scores.isfinite().all()]
            return samples
    except NotFinite:
        return None


def _first_broken(detector: Any, batch: dict[str, Any], context: Context) -> int:
    """Return the first image of a batch whose outputs are not finite by itself; 0 when there is none."""
    for place in range(len(batch["inputs"])):
        if _predicted(detector, _part(batch, place, place + 1), context) is None:
            return place
    return 0


def padded_to(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Pad an image, uint8 [3, h, w], with grey at the bottom and right to `size` (H, W); larger sides stay."""
    height, width = (max(target - side, 0) for target, side in zip(size, image.shape[1:]))
    return F.pad(image, (0, width, 0, height), value=GREY)


def results_of(sample: Any, category_ids: Sequence[int]) -> Results:
    """Return the detections of one image in COCO's format."""
    instances = sample.pred_instances
    columns = [instances.bboxes.float(), instances.scores.float()[:, None], instances.labels[:, None]]
    rows: Array = torch.cat(columns, dim=1).cpu().double().numpy()  # one copy: each waits for a GPU
    rows[:, 2:4] -= rows[:, :2]
    masks = instances.masks.cpu().numpy() if "masks" in instances else None
    results: Results = []
    for place, row in enumerate(rows):
        *box, score, label = row.tolist()
        result = {"image_id": int(sample.img_id), "category_id": int(category_ids[int(label)]), "score": score}
        result["bbox"] = box
        if masks is not None:  # as COCO's compressed run lengths, in text that JSON can hold
            encoded = mask_library().encode(np.asfortranarray(masks[place], dtype=np.uint8))
            size = [int(side) for side in encoded["size"]]
            result["segmentation"] = {"size": size, "counts": encoded["counts"].decode()}
        results.append(result)
    return results
