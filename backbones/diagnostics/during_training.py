"""The measures of task `tokens` while a backbone trains, after some of the epochs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Subset

from backbones.backbone import Backbone, create
from backbones.diagnostics.hook_points import find_hook_points
from backbones.diagnostics.recorder import Recorder, attention_facts, evenly, layer_facts, observe
from backbones.diagnostics.stem import stem_facts
from backbones.spec import BackboneSpec
from transfer.data.classification import ClassificationData
from transfer.data.loading.augment import eval_transform
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context

IMAGES = 64
"""Number of images measured, evenly spaced in the validation split, or in the training split without one."""
PER_CHANNEL = ("scale", "shift", "penalty")


def check_backbone(spec: BackboneSpec, size: int) -> None:
    """Raise UsageError for a backbone whose hook points are not known."""
    find_hook_points(create(spec, img_size=size, weights="random", load="strict"))


class TokenWatch:
    """Measures of the tokens of the same images after some epochs; an observer for `Context.observer`.

    Neither weights nor random numbers change, so the training is the same as without it.
    """

    def __init__(self, at: Sequence[int], data: ClassificationData, options: Any, context: Context):
        """Choose the images.

        Args:
            at: epochs as in `check_epochs`.
            data: dataset of the training.
            options: options of a pretraining method.
            context: device, ranks and notes of the run.
        """
        self.epochs = {epoch if epoch > 0 else options.epochs + 1 + epoch for epoch in at}
        self.batch, self.context = options.eval_batch_size, context
        split = data.val or data.train
        assert split is not None
        if data.val is None:
            context.note(f"{data.name} has no validation split: tokens are measured on training images")
        view = SplitDataset(split, eval_transform(options.size, options.resize), preload=False)
        self.images = Subset(view, evenly(min(IMAGES, len(split)), len(split)).tolist())

    def __call__(self, backbone: Backbone, epoch: int) -> dict[str, Any]:
        """Return `layers`, `attention` and `stem` as in the details of task `tokens`, without per-channel values."""
        if epoch + 1 not in self.epochs:
            return {}
        recorder = Recorder(backbone.eval(), class_token=True)
        places, attentions = observe(recorder, self.images, self.context, batch_size=self.batch)
        with torch.inference_mode(), self.context.scoring():
            stem = stem_facts(backbone, self.images[0][0][None].to(self.context.device))
        last = stem["last_activation"]
        return {
            "layers": layer_facts(recorder, places),
            "attention": attention_facts(recorder, attentions),
            "stem": {"norms": stem["norms"], "last_activation": last and _without_channels(last)},
        }


def _without_channels(last: dict[str, Any]) -> dict[str, Any]:
    weights = [{name: value for name, value in reading.items() if name != "norm"} for reading in last["weights"]]
    return {name: value for name, value in last.items() if name not in PER_CHANNEL} | {"weights": weights}
