"""Supervised fine-tuning: options and version; see `tasks.finetune.training`."""

from backbones.pretrain.supervised.method import METHOD
from backbones.pretrain.supervised.options import SupervisedOptions
from tasks.labelled_images import Classification


class Finetune(Classification):
    """Top-1 and top-5 accuracy on the validation split after training on the training split."""

    module = "tasks.finetune.training"
    name, version, options = "finetune", METHOD.version, SupervisedOptions
    shares_tokens = True


TASK = Finetune()
