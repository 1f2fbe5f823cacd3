"""The learner of detection: a detector of mmdetection, its losses summed as mmdetection sums them."""

from typing import Any

import torch
from torch import Tensor

from backbones.backbone import Backbone
from backbones.token_shards import Shards
from tasks.detect.feature_maps import StageMaps, VitMaps
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
