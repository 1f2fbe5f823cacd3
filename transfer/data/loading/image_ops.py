"""The choice between the reference implementations' image operations and faster ones of nearly equal results.

Both draw the same random numbers in the same order, so that crop boxes and operations are equal.
"""

import random
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import ColorJitter, InterpolationMode

from transfer.data.loading import fast_ops
from transfer.data.loading.fast_ops import Pixels
from transfer.data.loading.images import to_pixels


class FastCrop:
    """uint8 pixels [3, H, W] -> [height, width, 3]: a random resized crop with the draws of torchvision's or timm's.

    Only the pixels of the box are resized, with antialiasing, as bytes and with interleaved channels; torch has a fast
    path for that. The pixels of photographs differ from PIL's by at most 2 of 255, of dithered images by at most 8.
    """

    def __init__(self, crop: Any) -> None:
        self.crop = crop

    def __call__(self, pixels: Tensor) -> Pixels:
        crop = self.crop
        top, left, height, width = crop.get_params(pixels, crop.scale, crop.ratio)
        mode = crop.interpolation
        if not isinstance(mode, InterpolationMode):
            mode = random.choice(mode)  # timm's draw, after that of the box
        box = pixels[:, top : top + height, left : left + width]
        return _resized(box, list(crop.size), mode).contiguous().numpy()


class FastView:
    """uint8 pixels [3, H, W], or a PIL image -> [size, size, 3]: a bicubic resize of the shorter side, the centre crop.

    The sizes are torchvision's, the pixels differ from PIL's as those of `FastCrop` do.
    """

    def __init__(self, size: int, resize: int) -> None:
        self.size = size
        self.resize = resize

    def __call__(self, image: Tensor | Image.Image) -> Pixels:
        pixels = image if isinstance(image, Tensor) else to_pixels(image)
        shorter = min(pixels.shape[1:])
        wanted = [self.resize if side == shorter else int(self.resize * side / shorter) for side in pixels.shape[1:]]
        view = _resized(pixels, wanted, InterpolationMode.BICUBIC)
        top, left = (round((side - self.size) / 2) for side in wanted)
        return view[top : top + self.size, left : left + self.size].contiguous().numpy()


def _resized(pixels: Tensor, size: list[int], mode: InterpolationMode) -> Tensor:
    """Return uint8 [3, H, W] as [height, width, 3], with antialiasing; nothing is resampled to the same size."""
    interleaved = pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    if list(pixels.shape[1:]) != size:
        interleaved = interpolate(interleaved[None], size=size, mode=mode.value, antialias=True)[0]
    return interleaved.permute(1, 2, 0)


class FastFlip:
    """A horizontal flip with torchvision's draw."""

    operation = staticmethod(fast_ops.flip)

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def __call__(self, image: Pixels) -> Pixels:
        return self.operation(image) if torch.rand(1) < self.probability else image


class FastGrey(FastFlip):
    """A grey image, with the draw of torchvision's `RandomGrayscale`."""

    operation = staticmethod(fast_ops.grey)


class FastJitter:
    """Changes of brightness, contrast, saturation and hue in a drawn order, with the draws of torchvision's jitter.

    Args:
        jitter: torchvision's. probability: of any change; below 1 it is drawn first, as by `RandomApply`.
    """

    def __init__(self, jitter: ColorJitter, probability: float = 1.0) -> None:
        self.jitter = jitter
        self.probability = probability

    def __call__(self, image: Pixels) -> Pixels:
        if self.probability < 1 and self.probability < torch.rand(1):
            return image
        jitter = self.jitter
        order, *values = jitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
        for number in order.tolist():
            if values[number] is not None:
                image = JITTER[number](image, values[number])
        return image


JITTER = (fast_ops.brightness, fast_ops.contrast, fast_ops.saturation, fast_ops.hue)
