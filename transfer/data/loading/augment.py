"""Augmentation of one image for supervised training, and the evaluation transform.

Images leave as bytes [C, size, size]; they become floats in [0, 1] where the model is, which normalises them. Every
draw comes from `random`, numpy's global generator or torch's, so that under `transfer.core.seeding.seeded` an
augmented image is a function of the key. The fast operations (`--image-ops fast`) draw the same numbers in the same
order as the reference implementations', so that crop boxes and operations are equal, and the results nearly.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import AugmentOp, AutoAugment, RandAugment
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision import transforms
from torchvision.transforms import ColorJitter, InterpolationMode, v2

from transfer.core.errors import UsageError
from transfer.data.loading.bigvision import AreaCrop, CentreCrop, InceptionCrop, SquashCrop
from transfer.data.loading.bigvision import RandAugment as BigVisionRandAugment
from transfer.data.loading.images import RandomErasing, reid_test_transform, to_pixels
from transfer.data.loading.options import AugmentOptions, shorter_side

if TYPE_CHECKING:
    from transfer.data.loading.fast_ops import Pixels

Step = Callable[[Any], Any]
View = Literal["bicubic", "fast", "area", "squash"]


class Augmentation:
    """PIL image, or tensor [C, H, W] -> uint8 [C, H, W], or `Boxed` with erasing: `steps` from image to image.

    With fast operations the first step takes pixels [C, H, W] in place of the image.
    """

    def __init__(self, steps: Sequence[Step], erase: RandomErasing | None = None) -> None:
        self.steps = steps
        self.erase = erase
        self.takes_pixels = isinstance(steps[0], FastCrop | FastView)

    def __call__(self, image: Any) -> Any:
        """Return the augmented image. Raises UsageError for a tensor that meets a step of PIL images alone."""
        for step in self.steps:
            if isinstance(image, Tensor) and isinstance(step, _OF_PIL):
                kind = f"{type(step).__name__} takes PIL images, not arrays of {len(image)} channels"
                raise UsageError(f"{kind}; use --resize-mode fast (in training: --augment crop)")
            image = step(image)
        pixels = to_pixels(image)
        return pixels if self.erase is None else self.erase(pixels)


class PaddedCrop:
    """A random size x size crop of an image with `pad` black pixels on each side; resized to size x size before."""

    def __init__(self, size: int, pad: int, interpolation: str) -> None:
        self.size = size
        self.pad = pad
        self.resample = Image.Resampling[interpolation.upper()]

    def __call__(self, image: Image.Image) -> Image.Image:
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), self.resample)
        left, top = (random.randint(-self.pad, self.pad) for _ in range(2))
        return image.crop((left, top, left + self.size, top + self.size))  # what lies outside is black


_OF_PIL = (AreaCrop, SquashCrop, InceptionCrop, PaddedCrop, RandAugment, AutoAugment, BigVisionRandAugment)


def train_transform(size: int, options: AugmentOptions, mean: Sequence[float], std: Sequence[float]) -> Step:
    """Return the training augmentation, an `Augmentation` from PIL images, or tensors [C, H, W] for fast operations.

    Operations on colors are for RGB: with a mean of other than three channels they are left out.

    Args:
        size: pixels of the result's sides.
        options: the kind and its values.
        mean: the mean of the backbone's normalisation. It fills what timm's geometric operations uncover, and
            with `std` sets the noise of the erased box.
        std: likewise.

    Raises:
        UsageError: timm does not know the auto_augment description.
    """
    if len(mean) != 3:
        options = replace(options, auto_augment=None, color_jitter=0.0, randaug=None)
    flip: Step = transforms.RandomHorizontalFlip(options.flip)
    if fast := options.image_ops == "fast":
        from transfer.data.loading import fast_ops  # needs OpenCV, which is an extra

        flip = v2.RandomApply([fast_ops.flip], options.flip)
    if options.augment == "crop":
        mode = InterpolationMode(options.interpolation)
        resized_crop = transforms.RandomResizedCrop(size, options.crop_area, options.crop_ratio, mode)
        return Augmentation([FastCrop(resized_crop) if fast else resized_crop, flip])
    if options.augment == "bigvision":
        randaug = [BigVisionRandAugment(*options.randaug)] if options.randaug else []
        return Augmentation([InceptionCrop(size, options.crop_area, options.crop_ratio), flip, *randaug])
    crop, color = _timm_steps(size, options, mean)
    if fast:
        crop, color = [FastCrop(crop[0]), flip], [*map(_fast, color)]
    elif options.augment == "pad":
        crop = [PaddedCrop(size, options.pad, options.interpolation), flip]
    return Augmentation([*crop, *color], RandomErasing(options.erase, mean, std) if options.erase else None)


def _fast(step: Any) -> Any:
    """Return a color step of timm with operations of `fast_ops`. Raises UsageError where there is none."""
    from transfer.data.loading import fast_ops

    if isinstance(step, ColorJitter):
        return fast_ops.FastJitter(step)
    if not isinstance(step, RandAugment | AutoAugment):
        fault = f"knows timm's RandAugment and AutoAugment, not its {type(step).__name__}"
        raise UsageError(f"--image-ops fast: {fault}; use `pil`")
    for op in _operations([step]):
        op.aug_fn = fast_ops.TIMM[op.name]
    return step


def _timm_steps(size: int, options: AugmentOptions, mean: Sequence[float]) -> tuple[list[Any], list[Step]]:
    """Return timm's crop and flip, and its color (and auto_augment) operations, before the image becomes a tensor."""
    try:
        crop, color, _ = create_transform(
            size,
            is_training=True,
            scale=options.crop_area,
            ratio=options.crop_ratio,
            hflip=options.flip,
            color_jitter=options.color_jitter or None,  # type: ignore[arg-type]  # None: not even its draws
            auto_augment=options.auto_augment,
            interpolation=options.interpolation,
            mean=tuple(mean),
            separate=True,
        )
    except (AssertionError, KeyError, ValueError) as error:
        known = "see timm.data.auto_augment (rand-m9-mstd0.5-inc1 is DeiT's), or None"
        raise UsageError(f"--auto-augment {options.auto_augment}: {error or 'unknown to timm'}; {known}") from None
    for op in _operations(color.transforms):
        if op.name.startswith("Posterize"):
            op.aug_fn = posterize
    return crop.transforms, color.transforms


def _operations(steps: Iterable[Any]) -> Iterator[AugmentOp]:
    """Yield timm's operations in its RandAugment and AugMix (`ops`) and its AutoAugment (`policy`)."""
    for step in steps:
        yield from getattr(step, "ops", [])
        yield from chain.from_iterable(getattr(step, "policy", []))


def posterize(image: Image.Image, bits: int, **_: Any) -> Image.Image:
    """Keep the highest `bits` bits; 0 bits give a black image, as timm's increasing magnitudes intend.

    timm passes 0 bits on to Pillow (in DeiT's recipe where the magnitude reaches 10), and Pillow 13 raises.
    """
    return image.point([value & ~(2 ** (8 - bits) - 1) for value in range(256)] * 3)


def eval_transform(size: int, resize: int | None = None, *, view: View = "bicubic") -> Step:
    """Return the transform of evaluation, PIL image -> uint8 [C, size, size]; the view `fast` takes pixels, too.

    Nothing is resampled where the image has the wanted size already.

    Args:
        size: pixels of the centre crop's sides.
        resize: shorter side before it; None: floor(size / 0.875).
        view: how the image is resized: `bicubic` with antialias (DeiT, DINO, timm), `fast` likewise but on bytes, which
            takes a third of the time and differs by at most 2 of 255 in photographs, `area` by area averages
            (big_vision), `squash` to a square, bilinear without antialias (big_vision's few-shot probes).
    """
    resize = shorter_side(size, resize)
    if view != "bicubic":
        kinds: dict[str, Callable[[int, int], Step]] = {"fast": FastView, "area": AreaCrop, "squash": SquashCrop}
        return Augmentation([kinds[view](size, resize)])
    return Augmentation([transforms.Resize(resize, InterpolationMode.BICUBIC), transforms.CenterCrop(size)])


def view_of(options: Any) -> Step:
    """Return the transform of evaluation that a task's options `size`, `resize` and `resize_mode` describe; see
    `options.preprocessing`.
    """
    if isinstance(options.size, tuple):
        return reid_test_transform(options.size)
    view: Any = getattr(options, "resize_mode", "bicubic")
    return eval_transform(options.size, getattr(options, "resize", None), view=view)


class FastCrop:
    """uint8 pixels [3, H, W] -> [height, width, 3]: a random resized crop with the draws of torchvision's or timm's.

    Only the pixels of the box are resized, with antialiasing, as bytes and with interleaved channels; torch has a fast
    path for that. The pixels of photographs differ from PIL's by at most 2 of 255, of dithered images by at most 8.
    """

    def __init__(self, crop: Any) -> None:
        self.crop = crop

    def __call__(self, pixels: Tensor) -> "Pixels":
        crop = self.crop
        top, left, height, width = crop.get_params(pixels, crop.scale, crop.ratio)
        mode = crop.interpolation
        if not isinstance(mode, InterpolationMode):
            mode = random.choice(mode)  # timm's draw, after that of the box
        box = pixels[:, top : top + height, left : left + width]
        return _resized(box, list(crop.size), mode).contiguous().numpy()


class FastView(CentreCrop):
    """uint8 pixels [3, H, W], or a PIL image -> [size, size, 3]: a bicubic resize of the shorter side, the centre crop.

    The sizes are torchvision's, the pixels differ from PIL's as those of `FastCrop` do.
    """

    def __call__(self, image: Tensor | Image.Image) -> "Pixels":
        pixels = image if isinstance(image, Tensor) else to_pixels(image)
        shorter = min(pixels.shape[1:])
        wanted = [self.resize if side == shorter else int(self.resize * side / shorter) for side in pixels.shape[1:]]
        view = _resized(pixels, wanted, InterpolationMode.BICUBIC)
        top, left = (round((side - self.size) / 2) for side in wanted)
        return view[top : top + self.size, left : left + self.size].contiguous().numpy()


def _resized(pixels: Tensor, size: list[int], mode: InterpolationMode) -> Tensor:
    """Return uint8 [3, H, W] as [height, width, 3], with antialiasing; nothing is resampled to the same size."""
    interleaved = pixels.permute(1, 2, 0).contiguous()
    if list(pixels.shape[1:]) == size:
        return interleaved
    # of a batch before it is permuted: else torch does not see that channels are last, and takes three times as long
    batch = interleaved[None].permute(0, 3, 1, 2)
    return interpolate(batch, size=size, mode=mode.value, antialias=True)[0].permute(1, 2, 0)
