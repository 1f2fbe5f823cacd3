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
