"""The method `dino`: options, metrics, version; see `backbones.pretrain.dino.training`."""

from backbones.pretrain.dino.options import DinoOptions
from backbones.pretrain.method import PretrainingMethod
from transfer.task import Metric


class Dino(PretrainingMethod):
    """A backbone whose features agree across crops of an image with those of its own moving average."""

    module = "backbones.pretrain.dino.training"
    name, version, options, primary = "pretrain-dino", 1, DinoOptions, "knn_top1"
    metrics = {name: Metric() for name in ("knn_top1", "knn_top5")}  # noqa: RUF012


METHOD = Dino()
