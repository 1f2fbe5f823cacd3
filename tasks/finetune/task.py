"""Supervised fine-tuning: options and version; see `tasks.finetune.training`."""

from backbones.pretrain.supervised.options import FACTS as METHOD
from backbones.pretrain.supervised.options import SupervisedOptions
from tasks.labelled_images import Classification
from transfer.task import TaskFacts


class FinetuneFacts(TaskFacts, Classification):
    """Top-1 and top-5 accuracy on the validation split after training on the training split."""

    name, version, options = "finetune", METHOD.version, SupervisedOptions
    shares_tokens = True


FACTS = FinetuneFacts()
