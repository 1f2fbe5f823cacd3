"""Token labels: a map of class scores for each training image, moved along with its random crop and flip.

Token labeling (Jiang et al. 2021, arXiv 2104.10858, section 3.1) has a strong classifier score a grid of places in each
image once; only the K best classes of a place are kept.

Shapes: K classes kept, h x w places, N = rows x columns tokens, C classes, B images.
"""

import random
from pathlib import Path, PurePosixPath

import torch
from PIL import Image
from torch import Tensor
from torchvision.ops import roi_align
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from transfer.core.errors import UserError, shortened, unusable
from transfer.data.classification import Split
from transfer.data.loading.images import Transform
from transfer.data.splits.manifest import named_files

Pair = tuple[float, float]
INTERPOLATIONS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


class LabelMaps:
    """A folder of label maps that mirrors the training images by name: `n01440764/n01440764_10026.pt` for
    `n01440764/n01440764_10026.JPEG`.

    A file holds a tensor [2, K, h, w], the same shape for all: the scores of the K best classes of each place (before
    any softmax), then their numbers, in the order of the dataset's classes. Other classes count as scored 0.

    Args:
        folder: the maps.
        split: the images.
        classes: C.

    Raises:
        UserError: maps are missing; how many, and which. Later, on access: a file is corrupt or of another form.
    """

    def __init__(self, folder: Path, split: Split, classes: int):
        self.classes = classes
        if not folder.is_dir():
            raise UserError(f"--token-labels {folder}: directory not found")
        self.files = named_files(folder)
        rows = {name.rpartition(".")[0]: row for row, name in enumerate(self.files.names) if name.endswith(".pt")}
        stems = [str(PurePosixPath(name).with_suffix("")) for name in split.names]
        # an image's map has its full name, or that without the split's folder
        names = [stem if stem in rows else stem.partition("/")[2] for stem in stems]
        lacking = [stem for stem, name in zip(stems, names) if name not in rows]
        if lacking:
            raise UserError(
                f"--token-labels {folder}: no label map for {len(lacking)} of {len(stems)} training images "
                f"({shortened(lacking)}); a map lies under its image's name, with .pt; without "
                "--token-labels the image's label is taken"
            )
        self.rows = [rows[name] for name in names]
        self.shape: torch.Size | None = None
        self.shape = self(0).shape

    def __call__(self, index: int) -> Tensor:
        """Return the map [2, K, h, w] of a training image, float32."""
        file, fault = self.files.folder / self.files.names[self.rows[index]], ""
        with unusable(f"{file}: not a label map", Exception):
            scores: Tensor = torch.load(file, map_location="cpu", weights_only=True).float()
        if scores.ndim != 4 or scores.shape[0] != 2:
            fault = f"shape {tuple(scores.shape)} instead of [2, K, h, w]"
        elif not (scores.isfinite().all() and scores[1].min() >= 0 and scores[1].max() < self.classes):
            fault = f"class numbers must be 0 to {self.classes - 1}, scores finite"
        elif self.shape not in (None, scores.shape):
            fault = f"shape {tuple(scores.shape)}, the first has {tuple(self.shape or ())}"
        if fault:
            raise UserError(f"{file}: not a label map ({fault})")
        return scores


class CropWithBox:
    """PIL image -> [image [3, H, W], box [5]]: a random crop and flip, drawn here, then the rest of an augmentation.

    The box is (left, top, right, bottom) of the crop as fractions of the image's sides, and 1 where it was flipped.

    Args:
        size: pixels of the crop's sides afterwards.
        area, ratio: ranges of the crop's share of the area, and of width / height.
        flip: probability of a horizontal flip.
        interpolation: "bilinear", "bicubic" or "random", which draws one of them for each image.
        rest: what follows, on an image of `size`.
    """

    def __init__(self, size: int, area: Pair, ratio: Pair, flip: float, interpolation: str, rest: Transform):
        self.size, self.area, self.ratio, self.flip, self.rest = size, area, ratio, flip, rest
        self.modes = [*INTERPOLATIONS.values()] if interpolation == "random" else [INTERPOLATIONS[interpolation]]
        self.crop = v2.RandomResizedCrop(size, area, ratio)

    def __call__(self, image: Image.Image) -> list[Tensor]:
        place = self.crop.make_params([image])
        top, left, height, width = (place[key] for key in ("top", "left", "height", "width"))
        mode, flipped = random.choice(self.modes), random.random() < self.flip
        cropped = functional.resized_crop(image, top, left, height, width, [self.size, self.size], mode)
        if flipped:
            cropped = functional.horizontal_flip(cropped)
        rows, columns = functional.get_size(image)
        sides = torch.tensor([left / columns, top / rows])
        extent = torch.tensor([width / columns, height / rows])
        return [self.rest(cropped), torch.cat([sides, sides + extent, torch.tensor([float(flipped)])])]


def crop_targets(maps: Tensor, boxes: Tensor, classes: int, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return targets of the class token [B, C] and of the tokens [B, N, C]: softmax of the scores averaged over each
    region.

    RoIAlign (He et al. 2017, arXiv 1703.06870, section 3) over the crop, as one region and as `grid` of regions.

    Args:
        maps: [B, 2, K, h, w], see `LabelMaps`. boxes: [B, 5], see `CropWithBox`.
        grid: (rows, columns) of tokens.
    """
    count, _, _, height, width = maps.shape
    dense = maps.new_zeros(count, classes, height, width).scatter_(1, maps[:, 1].long(), maps[:, 0])
    corners = [boxes[:, side] * cells for side, cells in enumerate((width, height, width, height))]
    regions = torch.stack([torch.arange(count, device=boxes.device, dtype=boxes.dtype), *corners], 1)
    whole = roi_align(dense, regions, (1, 1), aligned=True)
    parts = roi_align(dense, regions, grid, aligned=True)
    parts = torch.where(boxes[:, 4, None, None, None] > 0, parts.flip(3), parts)
    return whole.flatten(1).softmax(1), parts.flatten(2).transpose(1, 2).softmax(2)
