"""One split of a classification set: labels, names, contents, and how an image of it is read.

Shapes: M images, C classes, H x W pixels.
"""

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.cache import file_stamp
from transfer.core.errors import UserError
from transfer.data.loading.read_image import OF_PIL, STORED, mode_of, orientation, read_image
from transfer.data.splits.manifest import Manifest, PackedNames, in_threads, stacked

if TYPE_CHECKING:
    from torch import Tensor


JPEG = b"\xff\xd8\xff"
RIFF, WEBP = b"RIFF", b"WEBP"


def image_digest(encoded: bytes, *, name: str, mode: str = "RGB") -> str:
    """Return the sha256 (hex) of an image: of its pixels, or of the encoded bytes of a JPEG or WEBP.

    PNG, TIFF, BMP, GIF and raw pixels keep what they are given, so equal images agree whichever of them holds them.
    Decoders of JPEG and WEBP differ in the last bit from version to version, hence their bytes stand for them (and
    damage behind their first bytes goes unseen here; `integrity` looks for it).

    Args:
        encoded: the image as it is stored.
        name: what messages call it.
        mode: the channels that count; grey ones are those of RGB.

    Raises:
        UserError: the image is damaged.
    """
    if encoded.startswith(JPEG) or (encoded.startswith(RIFF) and encoded[8:12] == WEBP):
        return hashlib.sha256(encoded).hexdigest()
    return pixel_digest(read_image(io.BytesIO(encoded), name=name, mode=mode))


def pixel_digest(image: Image.Image | NDArray[Any]) -> str:
    """Return the sha256 (hex) of size and pixels of an RGB image, given as such or as uint8 [H, W, 3]."""
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    return hashlib.sha256(f"{width}x{height}\0".encode() + pixels.tobytes()).hexdigest()


PRELOAD_BYTES = 512 * 2**20
PROBES = 32


class Pixels:
    """Images of one number of channels, uint8 [H, W, C] or [H, W], one after the other: workers share one block."""

    def __init__(self, images: Sequence[NDArray[Any]]) -> None:
        self.block = np.concatenate([image.ravel() for image in images])
        self.shapes = np.array([image.shape for image in images])
        self.ends = np.concatenate([[0], np.cumsum(self.shapes.prod(axis=1))])

    def __getitem__(self, index: int) -> NDArray[Any]:
        return self.block[self.ends[index] : self.ends[index + 1]].reshape(self.shapes[index])


Look = list[Any]
"""Orientation, width and height in pixels, and mode of an image as stored, and what a kind of split adds."""


@dataclass(eq=False)
class Split(ABC):
    """Base of splits. Reading is a function of the index, so any worker or thread may do it."""

    name: str
    """"train", "val" or "held_out"."""
    labels: NDArray[Any]
    """int64 [M], 0..C-1."""
    names: Sequence[str]
    """M names that hold on every machine: paths relative to the split's folder, or "train/000123" for rows."""
    sizes: NDArray[Any]
    """int64 [M]: bytes of each image as it is stored; of files not before `contents` was asked for."""
    channels: int = field(default=3, kw_only=True)
    """Channels of the images that `read` and `read_pixels` return."""
    upright: bool = field(default=False, kw_only=True)
    """Whether `read` turns images by their EXIF orientation; else they come as stored."""
    OF_IMAGES: ClassVar[Sequence[str]] = ()
    """Further fields, arrays [M] or splits, that have an entry for each image."""
    COUNTED: ClassVar[str] = "images"
    """What `of_labels` counts."""
    true_labels: NDArray[Any] | None = field(default=None, kw_only=True)
    """int64 [M, L], where images have several: all that are right, `labels` the first of each, -1 for none."""
    pixels: Pixels | NDArray[Any] | None = field(default=None, init=False, repr=False)
    """The decoded images, where they are kept in memory."""
    manifest: Manifest | None = field(default=None, init=False, repr=False)
    """The files of images as they were when `contents` was asked for; None for images in files of other kinds."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """Return the image as it is stored. Raises UserError that names it when it cannot be read."""

    @abstractmethod
    def place(self, index: int) -> str:
        """Return where the image lies, for messages: a file, or a file and a row."""

    @abstractmethod
    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return what changes when an image may have changed: path, size and time of its file. Raises UserError."""

    def read_channels(self, channels: int) -> None:
        """Have images read with so many channels. Raises UsageError where the files do not give them."""
        mode_of(channels)
        self.channels, self.pixels = channels, None

    @property
    def mode(self) -> str:
        """Return PIL's name of the channels."""
        return mode_of(self.channels)

    @property
    def gives_arrays(self) -> bool:
        """Whether images are never PIL's; see `OF_PIL`."""
        return self.channels not in OF_PIL

    def reader(self, pixels: bool) -> Callable[[int], Any]:
        """Return `read`, or `read_pixels` where pixels are wanted or there is nothing else."""
        return self.read_pixels if pixels or self.gives_arrays else self.read

    def read(self, index: int) -> Image.Image:
        """Return the image. Raises UserError that names it when it is missing or corrupt."""
        return self.decoded(index) if self.pixels is None else Image.fromarray(self.pixels[index])

    def decoded(self, index: int) -> Image.Image:
        """Return the same image as `read`, always from where it is stored."""
        data, name = io.BytesIO(self.encoded(index)), self.place(index)
        return read_image(data, name=name, mode=self.mode, upright=self.upright)

    def read_pixels(self, index: int) -> "Tensor":
        """Return the image as uint8 [C, H, W], decoded by the fast image operations. Raises UserError as `read`."""
        from transfer.data.loading.images import read_pixels, to_pixels

        if self.pixels is not None:
            return to_pixels(self.read(index))
        return read_pixels(self.encoded(index), name=self.place(index), mode=self.mode)

    def look(self, index: int) -> Look:
        """Return what is said of an image. Raises UserError if it, or what belongs to it, cannot be used."""
        image: Any = self.decoded(index)
        if isinstance(image, Image.Image):
            return [orientation(image), *image.size, image.info.get(STORED, image.mode)]
        height, width, *channels = np.shape(image)
        return [1, width, height, f"{(channels or [1])[0]} channels"]

    def of_labels(self) -> NDArray[Any]:
        """Return the number of images of each label that occurs and of those below."""
        return np.bincount(self.labels)

    @property
    def targets(self) -> NDArray[Any]:
        """The labels that are right: [M], or [M, L] where images have several."""
        return self.labels if self.true_labels is None else self.true_labels

    def present(self) -> NDArray[Any]:
        """Return the labels that occur, sorted; maybe -1 where images have several."""
        return np.unique(self.targets)

    def parts(self) -> dict[str, "FileSplit"]:
        """Return other files that belong to the images, by kind."""
        return {}

    def published_names(self) -> Sequence[str | None]:
        """Return the paths [M] of the images as they were published, as far as they are known."""
        return self.names

    def content_digest(self, index: int) -> str:
        """Return the sha256 (hex) of the image, equal for equal images however they are stored; see `image_digest`.

        Raises:
            UserError: it cannot be read, or is corrupt.
        """
        mode = "RGBA" if self.channels == 4 else "RGB"
        return image_digest(self.encoded(index), name=self.place(index), mode=mode)

    def contents(self, what: str) -> NDArray[Any]:
        """Return the sha256 of each image's bytes as they are stored, uint8 [M, 32]; `what` is for messages.

        Raises:
            UserError: an image cannot be read.
        """
        return stacked(hashlib.sha256(self.encoded(index)).digest() for index in range(len(self)))

    def check_unchanged(self, indices: Iterable[int] | None = None) -> None:
        """Raise Replaced for an image, of these or of all, whose file has changed since `contents`."""
        if self.manifest is not None:
            self.manifest.check(indices)

    def select(self, keep: NDArray[Any]) -> Self:
        """Return the split with the images of these indices, in this order."""
        changes: dict[str, Any] = {"names": PackedNames.of(self.names[int(index)] for index in keep)}
        for name in ("labels", "sizes", "true_labels", *self.OF_IMAGES):
            value = getattr(self, name)
            if value is not None:
                changes[name] = value.select(keep) if isinstance(value, Split) else value[keep]
        return replace(self, **changes)

    def preload(self, limit: int) -> None:
        """Keep all images in memory, unless a few spread over the split say that they take more than `limit` bytes.

        Raises:
            UserError: an image cannot be read.
        """
        if self.pixels is not None or not len(self):
            return
        probes = np.unique(np.linspace(0, len(self) - 1, PROBES).astype(int)).tolist()
        if np.mean([self._array(index).size for index in probes]) * len(self) <= limit:
            self.pixels = Pixels([*in_threads(self._array, range(len(self)), f"decoding {self.name}")])

    def _array(self, index: int) -> NDArray[Any]:
        return np.array(self.decoded(index))


@dataclass(eq=False)
class FileSplit(Split):
    """A split of image files; a name is the path below `folder`."""

    folder: Path

    @classmethod
    def of(cls, name: str, folder: Path, names: Iterable[str], labels: Any = None, **more: Any) -> Self:
        """Return images with labels, whole numbers [M], which are 0 where they do not matter; `more` are fields."""
        packed = PackedNames.of(names)
        zeros = np.zeros(len(packed), dtype=np.int64)
        values = zeros if labels is None else np.asarray(labels, dtype=np.int64)
        return cls(name=name, labels=values, names=packed, sizes=zeros, folder=folder, **more)

    def path(self, index: int) -> str:
        """Return the image's file."""
        return f"{self.folder}/{self.names[index]}"

    place = path

    def decoded(self, index: int) -> Image.Image:
        """Read the file without a copy of its bytes."""
        return read_image(self.path(index), mode=self.mode, upright=self.upright)

    def encoded(self, index: int) -> bytes:
        """Return the file's content."""
        try:
            return Path(self.path(index)).read_bytes()
        except OSError as error:
            raise UserError(f"{self.path(index)}: cannot be read: {error.strerror}") from None

    def contents(self, what: str) -> NDArray[Any]:
        """Return the files' digests, and take their sizes."""
        self.manifest = Manifest.of(self.folder, self.names, what=what)
        self.sizes = self.manifest.sizes
        return self.manifest.contents

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return path, size and time of each file."""
        return [f"{path}\0{file_stamp(path)}" for path in map(self.path, indices)]
