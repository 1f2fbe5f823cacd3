"""Supervised fine-tuning: the supervised method, started from pretrained weights.

The two-stage rows of "Scaled ReLU Matters for Training Vision Transformers" (arXiv 2109.03810, Tables 6 and 7). The
trained weights are exported to the run's folder `export`, which `--weights` of other tasks takes. Values are in
`configs/tasks/finetune.yaml`.
"""

from backbones.pretrain.supervised.method import METHOD, SupervisedOptions
from tasks.labelled_images import Classification


class Finetune(Classification):
    """Top-1 and top-5 accuracy on the validation split after training on the training split."""

    module = METHOD.module
    name, version, options = "finetune", METHOD.version, SupervisedOptions
    shares_tokens = True


TASK = Finetune()
