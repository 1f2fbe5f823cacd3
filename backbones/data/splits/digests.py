"""What an image contains, as a digest that does not know how the image is stored. Shapes: H x W pixels."""

import hashlib
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from backbones.data.loading.read_image import read_image

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
