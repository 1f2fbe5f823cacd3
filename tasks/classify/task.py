"""Accuracy of a trained classifier: options and version; see `tasks.classify.scoring`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification, FrozenOptions
from transfer.core.exports import weights_facts
from transfer.task import Defaults


@dataclass(kw_only=True)
class ClassifyOptions(FrozenOptions):
    """Options of `transfer.run classify`."""

    resize_mode: Literal["bicubic", "fast", "area"]
    """How the image is resized before the centre crop. Bicubic as in DeiT and timm, likewise on bytes
    (`fast`), or by area averages (big_vision)."""


class Classify(Classification):
    """Top-1 and top-5 accuracy of the weights' own classifier."""

    module = "tasks.classify.scoring"
    name, version, options, trains = "classify", 1, ClassifyOptions, False

    def defaults_for_backbone(self, spec: BackboneSpec, options: ClassifyOptions, given: Collection[str]) -> Defaults:
        """Return the view that the run which made the weights validated, unless the user sets another size."""
        trained = weights_facts(spec.weights).get("options", {})
        if "augment" not in trained or ("size" in given and options.size != trained["size"]):
            return super().defaults_for_backbone(spec, options, given)
        mode, reason = "area" if trained["augment"] == "bigvision" else "bicubic", "as the weights were validated"
        values = {"size": trained["size"], "resize": trained["resize"], "resize_mode": mode}
        return {name: (value, reason) for name, value in values.items()}


TASK = Classify()
