"""One split of a dataset in COCO's format. Shapes: I images, M objects, of which some are crowds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.loading.read_image import read_image
from backbones.data.splits.split import FileSplit
from tasks.data.segmentations import Segmentations

COLUMNS = ("ids", "image", "label", "boxes", "areas", "crowd", "ignored", "masked", "trained")
WORDS = {"train": "training", "val": "validation"}


@dataclass(frozen=True, slots=True)
class CocoImage:
    """An image as described by its entry; sizes in pixels."""

    id: int
    file_name: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoSplit:
    """Images in the order of their ids, and all objects, by image, else in the order of the file."""

    name: str
    folder: Path
    """Folder of the images."""
    file: Path
    """File of the annotations."""
    content: str
    """Checksum (sha256, hex) of `file`."""
    images: Sequence[CocoImage]
    ids: NDArray[Any]
    """Ids [M] of the objects, int64."""
    image: NDArray[Any]
    """Index [M] of each object's image in `images`, int64."""
    label: NDArray[Any]
    """Index [M] of each object's class, int64."""
    boxes: NDArray[Any]
    """Boxes [M, 4] (x, y, width, height) in pixels as in the file, float64."""
    areas: NDArray[Any]
    """Areas [M] in square pixels, float64: as in the file, else of the mask, or of the box without one."""
    crowd: NDArray[Any]
    """Whether each object [M] is a crowd: neither right nor wrong in scores, background in training."""
    ignored: NDArray[Any]
    """Whether each object [M] has `ignore: 1`: left out of training as by mmdetection, and scored as by pycocotools."""
    segmentations: Segmentations
    """Segmentations [M]: lists of polygons [x, y, x, y, ...], or {"size", "counts"}; None for objects without."""
    masked: NDArray[Any]
    """Whether each object [M] has a segmentation."""
    trained: NDArray[Any]
    """Whether each object [M] is trained on: no crowd, not ignored, sides of a pixel or more, and area in the image."""
    upright: bool = False
    """Whether images are turned by their EXIF orientation; else they are read as stored."""

    def path(self, index: int) -> str:
        """Return the file of an image."""
        return f"{self.folder}/{self.images[index].file_name}"

    def read(self, index: int) -> Image.Image:
        """Return an image. Raises UserError for one that cannot be read."""
        return read_image(self.path(index), upright=self.upright)

    def paths(self) -> list[str]:
        """Return the files [I] of all images."""
        return [self.path(index) for index in range(len(self.images))]

    def files(self) -> FileSplit:
        """Return the images without their objects."""
        return FileSplit.unlabelled(self.name, self.folder, (image.file_name for image in self.images))

    def rows(self, index: int) -> slice:
        """Return the rows of an image's objects."""
        first, last = np.searchsorted(self.image, [index, index + 1])
        return slice(int(first), int(last))

    def sizes(self) -> NDArray[Any]:
        """Return width and height [I, 2] of the images in pixels, float64."""
        return np.array([(image.width, image.height) for image in self.images], dtype=np.float64).reshape(-1, 2)

    @cached_property
    def clipped_boxes(self) -> NDArray[Any]:
        """Return `boxes` clipped to the images, float64 [M, 4]; meaningful where `trained`."""
        limits = self.sizes()[self.image]
        low = np.clip(self.boxes[:, :2], 0, limits)
        high = np.clip(self.boxes[:, :2] + self.boxes[:, 2:], 0, limits)
        return np.concatenate([low, high - low], axis=1)

    def with_objects(self) -> NDArray[Any]:
        """Return bool [I]: whether each image has an object to train on."""
        return np.bincount(self.image[self.trained], minlength=len(self.images)) > 0

    def select_objects(self, keep: NDArray[Any]) -> "CocoSplit":
        """Return the split with all images and only the objects where `keep`, bool [M], is true."""
        rows = np.flatnonzero(keep)
        columns = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, segmentations=self.segmentations.select(rows), **columns)

    def select(self, keep: NDArray[Any]) -> "CocoSplit":
        """Return the split with only the images where `keep`, bool [I], is true, and their objects."""
        rest = self.select_objects(keep[self.image])
        images = [image for image, kept in zip(self.images, keep) if kept]
        return replace(rest, images=images, image=(np.cumsum(keep) - 1)[rest.image])
