"""Images as tensors, and the transforms of person re-identification, with random erasing.

Shapes: H x W pixels.
"""

import io
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import default_collate
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2.functional import to_dtype

from transfer.data.loading.read_image import read_image

AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)
ERASE_TRIES = 10


class Boxed(NamedTuple):
    """An image with a box to erase, or a batch of them by `collate_boxes`; `erased` erases where the model is, so that
    bytes travel there.
    """

    pixels: Tensor
    """uint8 [C, H, W], or [B, C, H, W]."""
    boxes: Tensor
    """int64 [4], or [B, 4]: top, left, height, width; all 0 for none."""
    noise: Tensor
    """What fills the box, [C h w]; in a batch that of all boxes, one after the other."""


class RandomErasing:
    """Draws a box of an image [C, H, W] that is to be erased, and the noise in it.

    Recipes erase after normalising, with noise N(0, 1) per pixel. Here the backbone normalises, so the box is filled
    with mean + std * N(0, 1), unclipped: the backbone then sees exactly that noise. The box covers a share of the image
    drawn uniformly from `AREA` and has a height / width drawn log-uniformly from `ASPECT`; a box that does not fit is
    drawn again, up to `ERASE_TRIES` times. Box from `random`, noise from torch, in the order of timm's RandomErasing
    (mode "pixel", one box), so equal seeds give equal boxes.
    """

    def __init__(self, probability: float, mean: Sequence[float], std: Sequence[float]) -> None:
        self.probability = probability
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Tensor) -> Boxed:
        box = draw_box(self.probability, *image.shape[-2:])
        noise = torch.empty(len(image), *box[2:]).normal_().mul_(self.std).add_(self.mean)
        return Boxed(image, torch.tensor(box), noise.flatten())


def erased(pixels: Tensor, boxes: Tensor, noise: Tensor) -> Tensor:
    """Return images [B, C, H, W] as floats, bytes in [0, 1], with a box of each filled; the same on every device.

    Args:
        pixels: uint8; floats are filled in place.
        boxes: on the CPU, see `Boxed`.
        noise: on the device of the pixels.
    """
    images, start = to_dtype(pixels, torch.float32, scale=True), 0
    for image, (top, left, h, w) in zip(images, boxes.tolist(), strict=True):
        if h:
            end = start + len(image) * h * w
            image[:, top : top + h, left : left + w] = noise[start:end].view(-1, h, w)
            start = end
    return images


def draw_box(probability: float, H: int, W: int) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a box to erase, or zeros; see `RandomErasing`."""
    if random.random() > probability:
        return 0, 0, 0, 0
    for _ in range(ERASE_TRIES):
        area = random.uniform(*AREA) * H * W
        aspect = math.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if h < H and w < W:
            top = random.randint(0, H - h)
            return top, random.randint(0, W - w), h, w
    return 0, 0, 0, 0


Transform = Callable[[Any], Tensor]
Key = int | tuple[int, int, int]


def read_pixels(content: bytes, *, name: str, mode: str = "RGB") -> Tensor:
    """Return the pixels of an encoded image, uint8 [C, H, W], for the fast image operations; see `read_image`.

    JPEG files of RGB or grey pixels are decoded by torchvision; all others, and those that it refuses, as by
    `read_image`. Both decode by libjpeg-turbo, in full size, and without the rotation that EXIF may ask for.

    Raises:
        UserError: it is corrupt.
    """
    if content.startswith(b"\xff\xd8"):
        try:
            encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            pixels: Tensor = decode_jpeg(encoded, mode=ImageReadMode.UNCHANGED)
            if len(pixels) in {"L": (1,), "RGB": (1, 3)}.get(mode, ()):
                return pixels.expand(len(mode), -1, -1)
        except RuntimeError:
            pass  # read_image raises the error that names the file, or reads what torchvision cannot
    return to_pixels(read_image(io.BytesIO(content), name=name, mode=mode))


def to_pixels(image: Image.Image | NDArray[Any] | Tensor) -> Tensor:
    """Return an image [H, W, C], or [H, W] in grey, as a tensor [C, H, W], contiguous; a tensor is one already."""
    if isinstance(image, Tensor):
        return image.contiguous()
    array = image if isinstance(image, np.ndarray) else np.array(image)
    return torch.from_numpy(array.reshape(*array.shape[:2], -1)).permute(2, 0, 1).contiguous()


def reid_train_transform(options: Any, mean: Sequence[float], std: Sequence[float]) -> Callable[[Any], Boxed]:
    """PIL image or uint8 [C, H, W] -> `Boxed`: resize, flip, pad with black, crop, draw a box to erase.

    The training augmentation of TransReID (arXiv 2102.04378; bag of tricks, arXiv 1903.07071, section 2) up to the
    normalisation, which the backbone does. Erased pixels lie outside [0, 1]: see `RandomErasing`.

    Args:
        options: `size` (H, W); `flip`, the probability of a horizontal flip; `pad`, the black pixels added on each side
            before cropping back to `size`; `erase`, the probability of random erasing.
        mean: the mean of the backbone's normalisation; with `std` it sets the noise of the erased box.
        std: likewise.
    """
    size = [*options.size]
    resize = v2.Resize(size, InterpolationMode.BICUBIC)
    geometry = [v2.RandomHorizontalFlip(options.flip), v2.Pad(options.pad), v2.RandomCrop(size)]
    return v2.Compose([resize, *geometry, v2.PILToTensor(), RandomErasing(options.erase, mean, std)])


def collate_boxes(samples: list[Any]) -> Any:
    """Return samples, of any nesting, as a batch, as torch does, with `Boxed` images in one `Boxed`."""
    if isinstance(samples[0], Boxed):
        pixels, boxes, noise = map(list, zip(*samples, strict=True))
        return Boxed(default_collate(pixels), default_collate(boxes), torch.cat(noise))
    if isinstance(samples[0], list | tuple):
        return [collate_boxes([*part]) for part in zip(*samples, strict=True)]
    return default_collate(samples)


def reid_test_transform(size: tuple[int, int] = (256, 128)) -> Transform:
    """PIL image or uint8 [C, H, W] -> [C, H, W] float in [0, 1]: a bilinear resize to `size` (H, W)."""
    resize = v2.Resize(list(size), InterpolationMode.BILINEAR)
    return v2.Compose([resize, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


def to_floats(images: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1], correctly rounded on every device; others are returned as they are."""
    if images.dtype != torch.uint8:
        return images
    # A divisor on the device: for a Python number CUDA multiplies by a rounded 1 / 255.
    return images.float().div_(torch.full((), 255.0, device=images.device))
