"""The learner of detection: a detector of mmdetection, its losses summed as mmdetection sums them.

Backbone, neck and the layers within heads follow autocast. Levels of the pyramid and outputs of heads are float32, and
so is all that mmdetection derives from them, since anchors, regions and scores take the type of these outputs:
decoding, proposals, targets, losses, suppression with its offset per class, probabilities of masks, boxes in the stored
image. At 1,000 pixels bf16 resolves steps of 4 pixels only.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from backbones.backbone import Backbone
from backbones.flops import flops
from backbones.token_shards import Shards
from tasks.detect.feature_maps import StageMaps, VitMaps
from tasks.detect.mmlab import operator_dtype
from transfer.engine.extract import NotFinite
from transfer.engine.learner import Batch, Learner
from transfer.engine.optim import parameter_groups
from transfer.engine.options import FitOptions


class DetectionLearner(Learner):
    """Images and their annotations -> the detector's losses.

    A batch is {"inputs": [uint8 [3, H, W], ...], "data_samples": [DetDataSample, ...]}, images of different sizes.

    Args:
        detector: result of `build_detector`.
        norm_eval: whether batch norms of the backbone keep their statistics.
    """

    one_size = False

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
        step = self.detector.data_preprocessor.pad_size_divisor
        return -(-size[0] // step) * step, -(-size[1] // step) * step

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
        starts = range(0, self.batch_size(batch), size)
        return [{name: values[start : start + size] for name, values in batch.items()} for start in starts]

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

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return the parameter groups with layer decay over the backbone; necks and heads are its last layer."""
        return parameter_groups(self, options, self.backbone, "detector.backbone.maps.backbone.")


def collate(samples: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Collect packed samples of mmdetection's transforms in one batch; nothing is stacked, as sizes differ."""
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def _total(value: Tensor | list[Tensor]) -> Tensor:
    """Return a loss as mmdetection adds it up: means, summed over levels."""
    return torch.stack([level.mean() for level in value]).sum() if isinstance(value, list | tuple) else value.mean()


def widen(detector: nn.Module) -> None:
    """Make the neck and every head return their outputs in float32 at least, mmdetection's type of regions."""
    for part in neck_and_heads(detector):
        part.register_forward_hook(lambda part, inputs, output: widened(output))


def neck_and_heads(detector: Any) -> list[nn.Module]:
    """Return the neck and the modules that mmdetection names `..._head`, at any depth; each stage of a cascade."""
    modules: list[nn.Module] = [detector.neck]
    for name, module in detector.named_modules():
        if name.endswith("_head"):
            modules += module if isinstance(module, nn.ModuleList) else [module]
    return modules


def widened(value: Any) -> Any:
    """Return floating-point tensors, within containers too, in float32 at least; all else unchanged."""
    return tree_map(lambda x: x.to(operator_dtype(x)) if _is_float(x) else x, value)


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
