"""Accuracy of a trained classifier: options and version; see `tasks.classify`."""

from dataclasses import dataclass
from typing import Literal

from tasks.labelled_images import Classification, FrozenOptions
from tasks.task import TaskFacts


@dataclass(kw_only=True)
class ClassifyOptions(FrozenOptions):
    """Options of `transfer.run classify`."""

    resize_mode: Literal["bicubic", "fast", "area"]
    """How the image is resized before the centre crop. Bicubic as in DeiT and timm, likewise on bytes
    (`fast`), or by area averages (big_vision)."""


class ClassifyFacts(TaskFacts, Classification):
    """Top-1 and top-5 accuracy of the weights' own classifier."""

    name, version, options, trains = "classify", 1, ClassifyOptions, False


FACTS = ClassifyFacts()
