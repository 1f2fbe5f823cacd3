"""Options of mixing, and those that every method has; a recipe's values are in its YAML file."""

from dataclasses import dataclass
from typing import Annotated, Literal

from transfer.core.errors import reject
from transfer.core.options import Checked, Execution, Needs, Other, Range
from transfer.engine.options import FitOptions


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
    """Label smoothing, spread evenly over all classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing == "bigvision" and (self.cutmix or self.mix_prob != 1):
            reject("--mixing bigvision: has mixup alone, in every step; set `--cutmix 0 --mix-prob 1`")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed at all."""
        return self.mix_prob > 0 and max(self.mixup, self.cutmix) > 0


@dataclass(kw_only=True)
class PretrainOptions(FitOptions):
    """What every pretraining method takes besides the options of the training loop."""

    label_fraction: Annotated[float, Range(0, 1)]
    """Share of each class's training images; 1 takes all. They are chosen by content digest and `fraction_seed`."""
    fraction_seed: Annotated[int, Needs(label_fraction=Other(1)), Range(0)]
    """Seed of the choice of images. It is apart from the run's own, so that runs of several seeds share their
    images."""
    validate_at: Annotated[tuple[int, ...], Execution()]
    """Epochs (from 1; negative ones from the end) after which the validation split is scored, besides the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs == 0:
            reject(
                "--epochs 0: nothing would be trained; `python -m transfer.run classify` scores a trained classifier"
            )
        if self.label_fraction == 0:
            reject("--label-fraction must be above 0")
        if 0 in self.validate_at:
            reject(f"--validate-at {self.validate_at}: epochs count from 1, or from -1 for the last")

    def validates(self, epoch: int) -> bool:
        """Return whether the validation split is scored after this epoch (from 0)."""
        return epoch + 1 in self.validate_at or epoch - self.epochs in self.validate_at
