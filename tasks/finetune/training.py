"""Supervised fine-tuning: the supervised method, started from pretrained weights.

The two-stage rows of "Scaled ReLU Matters for Training Vision Transformers" (arXiv 2109.03810, Tables 6 and 7). The
trained weights are exported to the run's folder `export`, which `--weights` of other tasks takes. Values are in
`configs/tasks/finetune.yaml`.
"""

import torch

from backbones.backbone import create
from backbones.pretrain.supervised.learner import SupervisedLearner
from backbones.pretrain.supervised.method import METHOD
from backbones.pretrain.supervised.options import SupervisedOptions
from backbones.spec import BackboneSpec
from transfer.data.classification import ClassificationData
from transfer.engine.context import Context
from transfer.task import Outcomes, Scores


def untrained_learner(spec: BackboneSpec, options: SupervisedOptions) -> SupervisedLearner:
    """Return the backbone with a classifier."""
    backbone = create(spec, img_size=options.size, classes=2, weights="random", load="strict")
    return SupervisedLearner(backbone, torch.full((2,), 0.5), options, seed=0)


def check(spec: BackboneSpec, dataset: ClassificationData, options: SupervisedOptions, context: Context) -> None:
    """Check the inputs of the supervised method."""
    METHOD.check(spec, dataset, options, context)


def run(
    spec: BackboneSpec, dataset: ClassificationData, options: SupervisedOptions, context: Context
) -> tuple[Scores, Outcomes]:
    """Train a new classifier and the backbone, score the validation split, and export both."""
    return METHOD.run(spec, dataset, options, context)
