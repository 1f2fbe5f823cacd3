# my_method.py: predicts how far an image was turned (RotNet, arXiv 1803.07728)
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from transfer import api


@dataclass(kw_only=True)
class Options(api.PretrainOptions):
    size: int
    batch_size: int
    eval_batch_size: int
    turns: int = 4
    """Number of quarter turns to distinguish."""


class Turned(api.Learner):
    def __init__(self, backbone, turns):
        super().__init__()
        self.backbone, self.head, self.turns = backbone, nn.Linear(backbone.dim, turns), turns

    def logits(self, images):  # [B, 3, H, W] -> features and logits of all turns [turns * B, ...], and their targets
        turned = torch.cat([images.rot90(turn, (2, 3)) for turn in range(self.turns)])
        features = self.backbone.pooled(turned)
        return (
            features,
            self.head(features).float(),
            torch.arange(self.turns, device=images.device).repeat_interleave(len(images)),
        )

    def forward(self, batch, step):  # a pure function of the batch, the step and torch's random numbers
        features, logits, targets = self.logits(batch[0])
        loss = nn.functional.cross_entropy(logits, targets)
        return {"loss": loss, "spread": api.feature_spread(features)}

    def signs(self):  # the loss of a constant prediction: a training that ends there has failed
        return api.Signs(chance=math.log(self.turns))

    def correct(self, images, *_):  # [B]: share of an image's turns predicted correctly
        _, logits, targets = self.logits(images)
        return (logits.argmax(1) == targets).view(self.turns, -1).double().mean(0)

    def parameter_groups(self, options):  # layer decay over the backbone
        return api.parameter_groups(self, options, self.backbone)


class Rotation(api.PretrainingMethod):
    name, version, options, primary = "pretrain-rotation", 1, Options, "rotation_accuracy"
    metrics = {"rotation_accuracy": api.Metric()}

    def run(self, spec, data, options, context):
        backbone = api.initial_backbone(spec, options, context, images=options.turns * options.batch_size)
        learner, transform = Turned(backbone, options.turns), api.eval_transform(options.size, options.size)
        images = api.SplitDataset(data.train, transform, seed=context.seed)
        batches = partial(api.shuffled_batches, len(data.train), options.batch_size, seed=context.seed)
        loader = context.loader(images, batches, parts=options.grad_accum_steps)
        if api.fit(learner, loader, options, context).training_failed:
            return {}, {}
        learner.eval()
        images = api.SplitDataset(data.val, transform)
        rows = api.compute_rows(learner.correct, images, context, batch_size=options.eval_batch_size, label="turns")
        outcomes = api.image_outcomes(data.val) | {"rotation_accuracy": rows.numpy()}
        scores = self.rescore(outcomes)
        api.export_backbone(backbone, context, network="raw", scores=scores)
        return scores, outcomes

    def rescore(self, outcomes):
        return {"rotation_accuracy": float(outcomes["rotation_accuracy"].mean())}


METHOD = Rotation()
