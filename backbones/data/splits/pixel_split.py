"""A split whose images are pixels in memory. Shapes: M images, H x W pixels."""

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.splits.arrow_split import SourceSplit
from backbones.data.splits.digests import pixel_digest
from backbones.data.splits.manifest import CONTENT_BYTES

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False)
class PixelSplit(SourceSplit):
    """Images of one size, as published without any encoding; forked workers share them."""

    images: NDArray[Any]
    """uint8 [M, H, W, 3]."""

    def encoded(self, index: int) -> bytes:
        """Return a PNG of the image."""
        stream = io.BytesIO()
        self.decoded(index).save(stream, "PNG")
        return stream.getvalue()

    def decoded(self, index: int) -> Image.Image:
        """Return the image, without a PNG on the way."""
        return Image.fromarray(self.images[index]).convert(self.mode)

    def read_pixels(self, index: int) -> "Tensor":
        """Return the image as uint8 [C, H, W]."""
        from backbones.data.loading.images import to_pixels

        return to_pixels(self.decoded(index))

    def content_digest(self, index: int) -> str:
        """Return the digest of the pixels, which is also that of a PNG of the image."""
        return pixel_digest(self.images[index])

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the pixels, which are in memory."""
        digests = [hashlib.sha256(image.tobytes()).digest() for image in self.images]
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, CONTENT_BYTES)

    def preload(self, limit: int | None) -> None:
        """Do nothing: the images are decoded already."""

    def _select_fields(self, keep: NDArray[Any]) -> dict[str, Any]:
        return {"images": self.images[keep], **super()._select_fields(keep)}
