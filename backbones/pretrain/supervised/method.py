"""The method `supervised`: options, metrics, version; see `backbones.pretrain.supervised.training`."""

from backbones.pretrain.method import PretrainingMethod
from backbones.pretrain.supervised.options import SupervisedOptions
from transfer.data.classification import ClassificationData
from transfer.task import Metric


class Supervised(PretrainingMethod):
    """A classifier, scored by its accuracy on the validation split."""

    module = "backbones.pretrain.supervised.training"
    name, version, options, primary = "pretrain-supervised", 1, SupervisedOptions, "top1"
    metrics = {name: Metric() for name in ("top1", "top5")}  # noqa: RUF012

    def epoch_steps(self, dataset: ClassificationData, options: SupervisedOptions) -> int:
        """Return the number of whole batches; with repeated augmentation DeiT's sampler keeps a multiple of 256."""
        images = len(dataset.train or ())
        return (images // 256 * 256 or images if options.repeats > 1 else images) // options.batch_size


METHOD = Supervised()
