"""Options of decoding and augmentation; values are in the YAML file of a recipe."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from transfer.core.errors import reject
from transfer.core.options import Checked, Needs, Other, Range

CROP_PCT = 0.875  # of the resized image's shorter side that the centre crop keeps


FIELDS_USED = {  # the fields that only some kinds read; elsewhere they must be off
    "timm": ("auto_augment", "color_jitter", "erase"),
    "pad": ("auto_augment", "color_jitter", "erase", "pad"),
    "bigvision": ("randaug",),
    "crop": (),
}


@dataclass(kw_only=True)
class ImageOpsOptions(Checked):
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
    crop_area: Annotated[tuple[float, float], Needs(augment=Other("pad")), Range(0, 1, rising=True)]
    """Share of the image that the resized crop covers; not used by `pad`."""
    crop_ratio: Annotated[tuple[float, float], Needs(augment=Other("pad")), Range(0, rising=True)]
    """Width / height of that crop; not used by `pad`."""
    interpolation: Literal["bicubic", "bilinear", "random"]
    """Interpolation of the training image's resizing. `random` (timm only) draws bicubic or bilinear for each image."""
    flip: Annotated[float, Range(0, 1)]
    """Probability of a horizontal flip."""
    auto_augment: str | None
    """Policy in timm's words, as `rand-m9-mstd0.5-inc1`."""
    color_jitter: Annotated[float, Range(0)]
    """Largest change of brightness, contrast and saturation. timm's rule: not applied where auto_augment is given."""
    erase: Annotated[float, Range(0, 1)]
    """Probability of erasing a box with noise."""
    pad: Annotated[int, Range(0)]
    """Black pixels added on each side before the crop of `pad`."""
    randaug: Annotated[tuple[int, int] | None, Range(0)]
    """Layers and magnitude of big_vision's RandAugment. 10 is the nominal largest magnitude."""
    resize: Annotated[int | None, Range(1)]
    """Shorter side of an evaluated image before its crop. None is floor(size / 0.875)."""

    def __post_init__(self) -> None:
        super().__post_init__()
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


def shorter_side(size: int, resize: int | None) -> int:
    """Return the pixels to which the shorter side is resized before a centre crop of `size`; None: size / 0.875.

    Rounded down, as in timm and DeiT.
    """
    return resize or math.floor(size / CROP_PCT)


def preprocessing(options: Any) -> dict[str, Any]:
    """Return how images are prepared for evaluation, by options `size`, `resize` and `resize_mode` of a task.

    Returns:
        `size` [H, W] in pixels; `resize` before the crop, of the shorter side or [H, W]; `crop`; `interpolation` and
        whether it has an `antialias`; `image_ops`, see `ImageOpsOptions`.
    """
    if isinstance(options.size, tuple):  # re-identification
        size = [*options.size]
        return {"size": size, "resize": size, "crop": "none", "interpolation": "bilinear", "antialias": True}
    mode = getattr(options, "resize_mode", "bicubic")
    shorter = shorter_side(options.size, getattr(options, "resize", None))
    return {
        "size": [options.size] * 2,
        "resize": [shorter] * 2 if mode == "squash" else shorter,
        "crop": "center",
        "interpolation": {"squash": "bilinear", "area": "area"}.get(mode, "bicubic"),
        "antialias": mode != "squash",
        "image_ops": "fast" if mode == "fast" else "pil",
    }
