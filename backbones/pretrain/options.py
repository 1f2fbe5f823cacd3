"""Options of augmentation and of mixing, and those that every method has; a recipe's values are in its YAML file."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from transfer.core.errors import reject
from transfer.core.options import Needs, Other
from transfer.engine.options import FitOptions, check_ranges, check_rising

CROP_PCT = 0.875  # of the resized image's shorter side that the centre crop keeps
FIELDS_USED = {  # the fields that only some kinds read; elsewhere they must be off
    "timm": ("auto_augment", "color_jitter", "erase"),
    "pad": ("auto_augment", "color_jitter", "erase", "pad"),
    "bigvision": ("randaug",),
    "crop": (),
}


@dataclass(kw_only=True)
class ImageOpsOptions:
    """How the images of training are decoded and cropped."""

    image_ops: Literal["pil", "fast"]
    """How training images are decoded, cropped and recoloured. `pil` has the pixels of the reference implementations.
    `fast` decodes and resizes by torchvision and recolours by OpenCV, with the same draws: pixels of
    photographs differ by at most 2 of 255 up to the crop (8 in dithered images), and a little where colors are turned,
    blurred, or moved between pixels. Scored images are always read by `pil`."""


@dataclass(kw_only=True)
class AugmentOptions(ImageOpsOptions):
    """How training images are augmented, and how evaluated images are cropped."""

    augment: Literal["timm", "bigvision", "crop", "pad"]
    """Set of augmentations. timm: random resized crop, flip, auto_augment or color jitter, erasing (DeiT, VOLO). pad:
    likewise with a padded crop for the resized one (CIFAR). bigvision: inception crop, flip, its RandAugment. crop:
    resized crop and flip."""
    crop_area: Annotated[tuple[float, float], Needs(augment=Other("pad"))]
    """Share of the image that the resized crop covers; not used by `pad`."""
    crop_ratio: Annotated[tuple[float, float], Needs(augment=Other("pad"))]
    """Width / height of that crop; not used by `pad`."""
    interpolation: Literal["bicubic", "bilinear", "random"]
    """Interpolation of the training image's resizing. `random` (timm only) draws bicubic or bilinear for each image."""
    flip: float
    """Probability of a horizontal flip."""
    auto_augment: str | None
    """Policy in timm's words, as `rand-m9-mstd0.5-inc1`."""
    color_jitter: float
    """Largest change of brightness, contrast and saturation. timm's rule: not applied where auto_augment is given."""
    erase: float
    """Probability of erasing a box with noise."""
    pad: int
    """Black pixels added on each side before the crop of `pad`."""
    randaug: tuple[int, int] | None
    """Layers and magnitude of big_vision's RandAugment. 10 is the nominal largest magnitude."""
    resize: int | None
    """Shorter side of an evaluated image before its crop. None is floor(size / 0.875)."""

    def __post_init__(self) -> None:
        getattr(super(), "__post_init__", lambda: None)()
        check_ranges(self, 0, 1, "flip", "erase", "crop_area")
        check_ranges(self, 0, None, "color_jitter", "pad", "randaug", "crop_ratio")
        check_ranges(self, 1, None, "resize")
        check_rising(self, "crop_area", "crop_ratio")
        for name in ("auto_augment", "color_jitter", "erase", "pad", "randaug"):
            if getattr(self, name) and name not in FIELDS_USED[self.augment]:
                off = "None" if name in ("auto_augment", "randaug") else "0"
                flag = name.replace("_", "-")
                reject(f"--{flag}: --augment {self.augment} does not use it; set `--{flag} {off}`")
        if self.image_ops == "fast" and self.augment not in ("timm", "crop"):
            reject(f"--image-ops fast needs a resized crop, which --augment {self.augment} lacks; use `pil`")
        if self.interpolation == "random" and self.augment != "timm":
            reject(f"--interpolation random: only --augment timm draws it, not {self.augment}")
        if self.interpolation != "bilinear" and self.augment == "bigvision":
            reject(f"--interpolation {self.interpolation}: --augment bigvision is bilinear")


@dataclass(kw_only=True)
class MixOptions:
    """How the images of a batch are mixed, and what their targets are."""

    mixing: Annotated[Literal["timm", "bigvision"], Needs(mix_prob=True)]
    """How mixup and cutmix pair images. `timm` pairs with the reversed batch, drawn per process; `bigvision`
    moves the batch on by one, with one share per step for all processes."""
    mixup: Annotated[float, Needs(mix_prob=True)]
    """Both parameters of mixup's Beta distribution; 0 is off."""
    cutmix: Annotated[float, Needs(mix_prob=True)]
    """Both parameters of cutmix's Beta distribution; 0 is off."""
    mix_prob: float
    """Probability that a batch is mixed at all."""
    switch_prob: Annotated[float, Needs(mixup=True)]
    """Probability of cutmix where both are on."""
    smoothing: float
    """Label smoothing, spread evenly over all classes."""

    def __post_init__(self) -> None:
        getattr(super(), "__post_init__", lambda: None)()
        check_ranges(self, 0, None, "mixup", "cutmix")
        check_ranges(self, 0, 1, "mix_prob", "switch_prob", "smoothing")
        if self.mixing == "bigvision" and (self.cutmix or self.mix_prob != 1):
            reject("--mixing bigvision: has mixup alone, in every step; set `--cutmix 0 --mix-prob 1`")

    @property
    def mixes(self) -> bool:
        """Whether images are mixed at all."""
        return self.mix_prob > 0 and max(self.mixup, self.cutmix) > 0


def shorter_side(size: int, resize: int | None) -> int:
    """Return the pixels to which the shorter side is resized before a centre crop of `size`; None: size / 0.875.

    Rounded down, as in timm and DeiT.
    """
    return resize or math.floor(size / CROP_PCT)


def narrow_crop(size: Any, resize: Any) -> str:
    """Return a line if the centre crop of an evaluated image keeps less than half of its area; otherwise "".

    Args:
        size, resize: see `shorter_side`; of options without such a crop other values, for which the line is empty.
    """
    if not (isinstance(size, int) and isinstance(resize, int) and 2 * size**2 < resize**2):
        return ""
    kept = f"the centre crop of {size} pixels keeps {(size / resize) ** 2:.1%} of a square image"
    return f"--size {size} --resize {resize}: {kept}; the recipe's proportion is --resize {shorter_side(size, None)}"


@dataclass(kw_only=True)
class PretrainOptions(FitOptions):
    """What every pretraining method takes besides the options of the training loop."""

    label_fraction: float
    """Share of each class's training images; 1 takes all. They are chosen by content digest and `fraction_seed`."""
    fraction_seed: Annotated[int, Needs(label_fraction=Other(1))]
    """Seed of the choice of images. It is apart from the run's own, so that runs of several seeds share their
    images."""
    validate_at: tuple[int, ...]
    """Epochs (from 1; negative ones from the end) after which the validation split is scored, besides the last one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs == 0:
            reject(
                "--epochs 0: nothing would be trained; `python -m transfer.run classify` scores a trained classifier"
            )
        check_ranges(self, 0, 1, "label_fraction")
        check_ranges(self, 0, None, "fraction_seed")
        if self.label_fraction == 0:
            reject("--label-fraction must be above 0")
        if 0 in self.validate_at:
            reject(f"--validate-at {self.validate_at}: epochs count from 1, or from -1 for the last")

    def validates(self, epoch: int) -> bool:
        """Return whether the validation split is scored after this epoch (from 0)."""
        return epoch + 1 in self.validate_at or epoch - self.epochs in self.validate_at
