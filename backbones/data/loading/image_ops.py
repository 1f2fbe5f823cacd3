"""The choice between the reference implementations' image operations and faster ones of nearly equal results.

Both draw the same random numbers in the same order, so that crop boxes and operations are equal.
"""

import random
from collections.abc import Sequence
from typing import Protocol

from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode


class ResizedCrop(Protocol):
    """A random resized crop of torchvision or timm."""

    size: Sequence[int]
    scale: Sequence[float]
    ratio: Sequence[float]
    interpolation: InterpolationMode | Sequence[InterpolationMode]

    def get_params(self, img: Tensor, scale: Sequence[float], ratio: Sequence[float]) -> tuple[int, int, int, int]:
        """Draw a box: top, left, height, width."""


class FastCrop:
    """uint8 pixels [3, H, W] -> PIL image: a random resized crop with the draws of the given one.

    Only the pixels of the box are resized, with antialiasing, as bytes and with interleaved channels; torch has a fast
    path for that. The pixels of photographs differ from PIL's by at most 2 of 255, of dithered images by at most 8.
    """

    def __init__(self, crop: ResizedCrop) -> None:
        self.crop = crop

    def __call__(self, pixels: Tensor) -> Image.Image:
        crop = self.crop
        top, left, height, width = crop.get_params(pixels, crop.scale, crop.ratio)
        mode = crop.interpolation
        if not isinstance(mode, InterpolationMode):
            mode = random.choice(mode)  # timm's draw, after that of the box
        box = pixels[:, top : top + height, left : left + width].permute(1, 2, 0).contiguous().permute(2, 0, 1)
        resized = interpolate(box[None], size=list(crop.size), mode=mode.value, antialias=True)[0]
        return Image.fromarray(resized.permute(1, 2, 0).contiguous().numpy())
