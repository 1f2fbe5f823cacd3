"""Reading an image file with PIL."""

import struct
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from backbones.errors import UserError

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def is_image(name: str) -> bool:
    """Return whether a file is taken for an image by its name."""
    return name.lower().endswith(IMAGES)


DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError)


def read_image(source: str | BinaryIO, *, name: str | None = None) -> Image.Image:
    """Return the decoded RGB image in a file or a stream; `name` stands for it in messages, if not the path.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        with Image.open(source) as file:
            return file.convert("RGB")
    except UnidentifiedImageError:
        reason: object = "in no known format"  # PIL's own words would name the stream's address
    except DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    raise UserError(f"{name or source}: cannot be read as an image ({reason}); `--skip-unreadable` leaves it out")
