"""The method `supervised`: options, metrics, version; see `backbones.pretrain.supervised.training`."""

from backbones.pretrain.method import PretrainingMethod
from backbones.pretrain.supervised.options import SupervisedOptions
from transfer.task import Metric


class Supervised(PretrainingMethod):
    """A classifier, scored by its accuracy on the validation split."""

    module = "backbones.pretrain.supervised.training"
    name, version, options, primary = "pretrain-supervised", 1, SupervisedOptions, "top1"
    metrics = {name: Metric() for name in ("top1", "top5")}  # noqa: RUF012


METHOD = Supervised()
