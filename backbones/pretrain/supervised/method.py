"""The method `supervised`: options, metrics, version; see `backbones.pretrain.supervised.training`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from backbones.pretrain.method import PretrainingMethod, PretrainOptions
from transfer.core.errors import reject
from transfer.core.options import Added, Checked, Common, Execution, Needs, Range, check_pad
from transfer.data.loading.options import AugmentOptions
from transfer.task import Metric


@dataclass(kw_only=True)
class MixOptions(Checked):
    """How the images of a batch are mixed, and what their targets are."""

    mixing: Annotated[Literal["timm", "bigvision"], Needs(mix_prob=True)]
    """How mixup and cutmix pair images. `timm` pairs with the reversed batch, drawn per process; `bigvision`
    moves the batch on by one, with one share per step for all processes."""
    mixup: Annotated[float, Needs(mix_prob=True), Range(0)]
    """Both parameters of mixup's Beta distribution; 0 is off."""
    cutmix: Annotated[float, Needs(mix_prob=True), Range(0)]
    """Both parameters of cutmix's Beta distribution; 0 is off."""
    mix_prob: Annotated[float, Range(0, 1)]
    """Probability that a batch is mixed at all."""
    switch_prob: Annotated[float, Needs(mixup=True), Range(0, 1)]
    """Probability of cutmix where both are on."""
    smoothing: Annotated[float, Range(0, 1)]
    """Label smoothing, spread evenly over all classes; label maps have none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing == "bigvision" and (self.cutmix or self.mix_prob != 1):
            reject("--mixing bigvision: has mixup alone, in every step; set `--cutmix 0 --mix-prob 1`")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed at all."""
        return self.mix_prob > 0 and max(self.mixup, self.cutmix) > 0


@dataclass(kw_only=True)
class SupervisedOptions(AugmentOptions, MixOptions, PretrainOptions):
    """Options of the `supervised` method besides those of the training loop."""

    size: Annotated[int, Range(1), Common()]
    """Height and width of the images in pixels; unless set, finetune takes that of the weights, if known."""
    batch_size: Annotated[int, Range(1), Common()]
    """Images per step, over all ranks and micro-batches."""
    repeats: Annotated[int, Range(1)]
    """Augmented versions of an image in an epoch; 1 is off. The epoch stays as long, so with 3 it shows a third of the
    images."""
    drop_path: Annotated[float, Range(0, 1), Common()]
    """Stochastic depth of the last block; earlier blocks grow to it linearly."""
    loss: Annotated[Literal["softmax", "sigmoid"], Common()]
    """Cross-entropy, or binary cross-entropy of each class."""
    class_weights: Annotated[Literal["none", "balanced"], Needs(loss="softmax"), Added("none")] = "none"
    """Weights of the classes in the training loss. `balanced` is n / (C n_c), so that all classes count the same; a
    mixed image has the weights of its parts."""
    head_bias: float
    """Initial bias of the classifier."""
    dense_weight: Annotated[float, Range(0)]
    """Weight of the tokens' own loss; 0 is off. It is token labeling, for backbones with a classifier for tokens
    (VOLO)."""
    token_labels: Path | None
    """Folder of label maps for the tokens. They are [2, K, h, w], named as the training images, .pt; with None
    the tokens have their image's label."""
    ema: Annotated[float | None, Needs(export="ema"), Range(0, 1)]
    """Decay per step of a moving average of the weights; None: no average."""
    export: Literal["raw", "ema"]
    """Which weights are scored and exported."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Images per batch of the evaluation, per rank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pad(self.pad, self.size)
        if self.drop_path == 1 or self.ema == 1:
            reject("--drop-path and --ema must be below 1")
        if self.export == "ema" and self.ema is None:
            reject("--export ema needs an average of the weights; set its decay, e.g. --ema 0.9999")
        if self.resize is not None and self.resize < self.size:
            reject(f"--resize {self.resize}: below the --size {self.size} of the centre crop")
        if self.token_labels is not None and not self.dense_weight:
            reject("--token-labels need a token loss; set --dense-weight, e.g. 0.5 as in VOLO")
        if self.token_labels is not None and self.augment not in ("timm", "crop"):
            reject(f"--token-labels: maps follow a resized crop; --augment {self.augment} has none")
        if self.token_labels is not None and self.image_ops == "fast":
            reject("--image-ops fast: --token-labels reads crops by PIL; use `--image-ops pil`")
        if self.dense_weight and self.mixes:
            reject("--dense-weight mixes tokens of two images; set --mixup 0 --cutmix 0")
        if self.class_weights != "none" and self.loss == "sigmoid":
            reject(f"--class-weights {self.class_weights}: weighs a cross-entropy; use --loss softmax")
        if self.dense_weight and self.loss == "sigmoid":
            reject("--dense-weight: the tokens' loss is a cross-entropy; use --loss softmax")

    @property
    def resize_mode(self) -> str:
        """How images are resized in evaluation; see `eval_transform`."""
        return "area" if self.augment == "bigvision" else "bicubic"


class Supervised(PretrainingMethod):
    """A classifier, scored by its accuracy on the validation split."""

    module = "backbones.pretrain.supervised.training"
    name, version, options, primary = "pretrain-supervised", 1, SupervisedOptions, "top1"
    metrics = {name: Metric() for name in ("top1", "top5", "macro_top1")}  # noqa: RUF012


METHOD = Supervised()
