"""Linear classification on frozen features: options, metrics, version; see `tasks.linear.training`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification, ViewOptions
from transfer.core.errors import reject
from transfer.core.options import Added, Common, Needs, Range
from transfer.data.classification import ClassificationData
from transfer.data.loading.options import AugmentOptions
from transfer.engine.options import TRAINING, FitOptions
from transfer.task import Defaults, Metric


@dataclass(kw_only=True)
class LinearOptions(ViewOptions, FitOptions):
    """Options of `transfer.run linear` besides those of the training loop."""

    batch_size: Annotated[int, TRAINING, Range(1), Common()]
    """Images per step, over all ranks and micro-batches."""
    n_last_blocks: Annotated[int, Range(1), Common()]
    """Last blocks whose features are concatenated."""
    avgpool: bool
    """Concatenate the mean over the last block's patch tokens."""
    crop_area: Annotated[tuple[float, float], TRAINING]
    """Share of the image that the random resized crop covers."""
    flip: Annotated[float, TRAINING]
    """Probability of a horizontal flip."""
    validate_every: Annotated[int, TRAINING, Range(1)]
    """Epochs between two validations; the last epoch always has one."""
    lr: Annotated[float, Needs(lrs=False), Range(0), Common()]
    """Peak learning rate. The value given is the value used: no scaling by batch or world size."""
    lrs: Annotated[tuple[float, ...], TRAINING, Range(0), Added(()), Common()] = ()
    """Peak learning rates of classifiers that train side by side in one pass. The one with the best top-1 on held-out
    training images gives the scores."""
    selection_share: Annotated[float, Needs(lrs=True), Range(0.001, 0.9), Added(0.1)] = 0.1
    """Share of each class's training images that are held out to choose among `lrs`, drawn by the seed."""
    class_weights: Annotated[Literal["none", "balanced"], TRAINING, Added("none")] = "none"
    """Weights of the training images' losses. `balanced` is n / (C n_c) for each class, so that all classes count
    the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augmentation()
        if self.lrs and (self.sam != "none" or self.clip_grad or self.warmup_lr_factor or self.min_lr_factor):
            common = "--sam, --clip-grad, --warmup-lr-factor and --min-lr-factor"
            reject(f"--lrs: {common} act on all learning rates together; remove them, or use --lr")

    def augmentation(self) -> AugmentOptions:
        """Describe the augmentation: random resized crop and flip in training, resize and centre crop in evaluation."""
        values: dict[str, Any] = {"augment": "crop", "crop_area": self.crop_area, "crop_ratio": (3 / 4, 4 / 3)}
        values |= {"interpolation": "bilinear", "flip": self.flip, "resize": self.resize, "image_ops": "pil"}
        values |= {"auto_augment": None, "color_jitter": 0.0, "erase": 0.0, "pad": 0, "randaug": None}
        return AugmentOptions(**values)


class Linear(Classification):
    """Top-1 and top-5 accuracy of the last epoch's classifier, and the best top-1 of all epochs."""

    module = "tasks.linear.training"
    name, version, options = "linear", 1, LinearOptions
    metrics = Classification.metrics | {"best_top1": Metric()}

    def defaults_for_backbone(self, spec: BackboneSpec, options: LinearOptions, given: Collection[str]) -> Defaults:
        """Return the size as well as the number of blocks if the backbone has fewer than the recipe's."""
        blocks = min(options.n_last_blocks, spec.depth or options.n_last_blocks)
        reason = f"backbone {spec.name} has {blocks} blocks"
        return {**super().defaults_for_backbone(spec, options, given), "n_last_blocks": (blocks, reason)}

    def epoch_steps(self, dataset: ClassificationData, options: LinearOptions) -> int:
        """Return the steps of an epoch; 0 where images are held out, which are not known before."""
        return 0 if options.lrs else super().epoch_steps(dataset, options)


TASK = Linear()
