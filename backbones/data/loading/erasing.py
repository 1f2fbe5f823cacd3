"""Random erasing (Zhong et al. 2017, arXiv 1708.04896, section 3) on images that are normalised later."""

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)
TRIES = 10


class RandomErasing:
    """Fills one random box of an image [C, H, W] in [0, 1] with noise, in place.

    Recipes erase after normalising, with noise N(0, 1) per pixel. Here the backbone normalises, so the box is filled
    with mean + std * N(0, 1), unclipped: the backbone then sees exactly that noise. The box covers a share of the image
    drawn uniformly from `AREA` and has a height / width drawn log-uniformly from `ASPECT`; a box that does not fit is
    drawn again, up to `TRIES` times. Box from `random`, noise from torch, in the order of timm's RandomErasing (mode
    "pixel", one box), so equal seeds give equal boxes.
    """

    def __init__(self, probability: float, mean: Sequence[float], std: Sequence[float]) -> None:
        self.probability = probability
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Tensor) -> Tensor:
        box = draw_box(self.probability, *image.shape[-2:])
        if box is not None:
            top, left, h, w = box
            noise = torch.empty(len(image), h, w).normal_()
            image[:, top : top + h, left : left + w] = noise.mul_(self.std).add_(self.mean)
        return image


class DrawErasing:
    """Draws the box that `erase_boxes` fills when the batch is where the model is, [C, H, W] -> (itself, box).

    The box is int64 [5]: top, left, height, width, all 0 for no erasing, and a seed for its noise. Box and noise are so
    a function of the generators' state, but the noise is not that of `RandomErasing`.
    """

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def __call__(self, image: Tensor) -> tuple[Tensor, Tensor]:
        box = draw_box(self.probability, *image.shape[-2:])
        if box is None:
            return image, torch.zeros(5, dtype=torch.int64)
        return image, torch.tensor([*box, int(torch.randint(2**62, ()))])


def draw_box(probability: float, H: int, W: int) -> tuple[int, int, int, int] | None:
    """Return (top, left, height, width) of a box to erase, or None; see `RandomErasing`."""
    if random.random() > probability:
        return None
    for _ in range(TRIES):
        area = random.uniform(*AREA) * H * W
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < H and w < W:
            top = random.randint(0, H - h)
            return top, random.randint(0, W - w), h, w
    return None


def erase_boxes(images: Tensor, boxes: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Fill one box of each image with noise, in place, on the device of the images.

    Args:
        images: float [B, C, H, W] in [0, 1].
        boxes: int64 [B, 5] on the CPU, as `DrawErasing` gives them.
        mean: [1, C, 1, 1], of the backbone's normalisation.
        std: likewise.
    """
    generator = torch.Generator(images.device)
    for image, (top, left, h, w, seed) in zip(images, boxes.tolist(), strict=True):
        if h:
            noise = torch.empty(len(image), h, w, device=images.device).normal_(generator=generator.manual_seed(seed))
            image[:, top : top + h, left : left + w] = noise.mul_(std[0]).add_(mean[0])
    return images
