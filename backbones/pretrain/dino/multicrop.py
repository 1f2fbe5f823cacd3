"""DINO's multi-crop augmentation (arXiv 2104.14294, section 3 and appendix; multi-crop: SwAV, arXiv 2006.09882)."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image, ImageFilter, ImageOps
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import v2

from backbones.pretrain.dino.method import DinoOptions
from transfer.data.loading.augment import FastCrop
from transfer.data.loading.images import to_pixels

GLOBAL_BLUR = (1.0, 0.1)  # probabilities in the two global crops
LOCAL_BLUR = 0.5
SOLARIZE = 0.2


class MultiCrop:
    """PIL image -> [g1, g2, l1, ..., ln]: two global crops [C, G, G] and n local ones [C, L, L], all uint8.

    Every crop: random resized crop (bicubic), flip, color jitter with probability 0.8, grey with 0.2; then Gaussian
    blur with probability 1, 0.1 (global) and 0.5 (local); the second global crop is solarised with probability 0.2.
    Draws from `random` and torch, in the order of the reference, so equal seeds give equal crops.

    Args:
        options: sizes, areas and number of the crops, and the radii of the blur (standard deviations in pixels): those
            of the reference, 0.1 to 2, are meant for crops of 224 and 96 px and leave little of a 32 px one. With
            `image_ops` "fast" it takes pixels [C, H, W] in place of a PIL image; see `FastCrop`.
        colors: whether images are RGB; if not, jitter, grey and solarisation are off.
    """

    def __init__(self, options: DinoOptions, *, colors: bool = True) -> None:
        fast = self.takes_pixels = options.image_ops == "fast"
        self.global_crop = _crop(options.size, options.global_area, fast)
        self.local_crop = _crop(options.local_size, options.local_area, fast)
        flip: Any = transforms.RandomHorizontalFlip(0.5)
        jitter: Any = transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)
        grey: Any = transforms.RandomGrayscale(0.2)
        self.blurred: Callable[[Any, float], Any] = _blurred
        self.solarized: Callable[[Any, int], Any] = ImageOps.solarize
        if fast:
            from transfer.data.loading import fast_ops  # needs OpenCV, which is an extra

            flip, grey = v2.RandomApply([fast_ops.flip], 0.5), v2.RandomApply([fast_ops.grey], 0.2)
            jitter = fast_ops.FastJitter(jitter)
            self.blurred, self.solarized = fast_ops.gaussian_blur, fast_ops.solarize
        color: Sequence[Any] = (flip, transforms.RandomApply([jitter], 0.8), grey)
        self.color, self.solarize = (color, SOLARIZE) if colors else (color[:1], 0.0)
        self.local_crops, self.blur = options.local_crops, options.blur

    def __call__(self, image: Any) -> list[Tensor]:
        first = self._view(image, self.global_crop, GLOBAL_BLUR[0])
        second = self._view(image, self.global_crop, GLOBAL_BLUR[1])
        if random.random() < self.solarize:
            second = self.solarized(second, 128)
        views = [first, second, *(self._view(image, self.local_crop, LOCAL_BLUR) for _ in range(self.local_crops))]
        return [to_pixels(view) for view in views]

    def _view(self, source: Any, crop: Callable[[Any], Any], blur: float) -> Any:
        image = crop(source)
        for step in self.color:
            image = step(image)
        if self.blur is not None and random.random() <= blur:
            image = self.blurred(image, random.uniform(*self.blur))
        return image


def _blurred(image: Image.Image, radius: float) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))


def _crop(size: int, area: tuple[float, float], fast: bool) -> Callable[[Any], Any]:
    crop = transforms.RandomResizedCrop(size, area, interpolation=transforms.InterpolationMode.BICUBIC)
    return FastCrop(crop) if fast else crop
