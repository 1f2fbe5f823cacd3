"""Reading an image file with PIL: what counts as one, and its pixels in 8 bits a channel. `docs/guide/data.md` has the
rules.
"""

import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from transfer.core.errors import MissingInput, UsageError, UserError

NO_PICTURES = {"BUFR", "EPS", "FITS", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"}
"""Formats whose files PIL opens but which are drawings for other programs, films, scientific arrays or metadata."""
DAMAGED = (OSError, SyntaxError, ValueError, EOFError, struct.error)
STORED = "stored mode"
"""Entry of a decoded image's `info` with the mode of its file."""
LEAVE_OUT = "; `--drop-corrupt` excludes it"
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""PIL's name of the channels of an image, by their number."""
OF_PIL = (1, 3)
"""The numbers of channels of which images are PIL's. It would multiply RGBA by its alpha when it resizes: with four,
and with other numbers, images are tensors [C, H, W], of which each channel is resized by itself."""
BITS, PHOTOMETRIC, SAMPLES, PLANES, SAMPLE_FORMAT = 258, 262, 277, 284, 339
"""Tags of TIFF (TIFF 6.0, sections 8 and 19)."""

# an image of over 2^30 pixels is an error: aerial ones are large, headers may be damaged
Image.MAX_IMAGE_PIXELS = 2**29
# of half the limit of pixels, of palettes with transparency, of damaged metadata: none is a fault of the pixels
warnings.filterwarnings("ignore", module=r"PIL\.")


@cache
def extensions() -> frozenset[str]:
    """Return the extensions, in lower case, of what PIL opens as a picture."""
    Image.init()
    formats = {*Image.OPEN, "MPO"} - NO_PICTURES  # MPO is opened as JPEG
    return frozenset(name for name, format in Image.registered_extensions().items() if format in formats)


def is_image(name: str) -> bool:
    """Return whether a file is taken for an image by its name."""
    return name[name.rfind(".") :].lower() in extensions()


@contextmanager
def open_image(source: str | BinaryIO, *, name: str | None = None) -> Iterator[ImageFile.ImageFile]:
    """Open an image, of which only the header is read yet.

    Raises:
        MissingInput: it is missing, or its disk does not give it.
        UserError: it is corrupt or too large, also where that shows only within the context.
    """
    try:
        with Image.open(source) as file:
            file.filename = ""  # by its name PIL would map a raw TIFF into memory, in the size of the turned image
            yield file
        return
    except UnidentifiedImageError:  # PIL's own words would name the stream's address
        reason: object = "in no format, or with a kind of pixels, that PIL reads"
    except Image.DecompressionBombError as error:
        reason = f"{str(error).partition(',')[0]}"
    except DAMAGED as error:
        if isinstance(error, OSError) and error.strerror:  # of the disk; the image may be whole
            lost = f"{name or source}: cannot be read ({error.strerror})"
            raise MissingInput(f"{lost}; restore the file or mount its disk, then rerun the command") from None
        reason = error
    raise UserError(f"{name or source}: cannot be read as an image ({reason}){LEAVE_OUT}")


def mode_of(channels: int) -> str:
    """Return PIL's name of so many channels. Raises UsageError for a number that image files do not give."""
    if channels not in MODES:
        raise UsageError(
            f"--in-chans {channels}: image files give 1, 3 or 4 channels; others come from the arrays of a reader with "
            "`decode`, for labeled images (docs/adding-a-part.md, Data reader)"
        )
    return MODES[channels]


def read_image(
    source: str | BinaryIO, *, name: str | None = None, mode: str = "RGB", upright: bool = False
) -> Image.Image:
    """Return the decoded image in a file or a stream, 8 bits a channel.

    Args:
        source: path or stream.
        name: what messages call it, if not by the path.
        mode: PIL's name of the channels: RGB, L, RGBA.
        upright: turn it by its EXIF orientation; else it comes as it is stored.

    Raises:
        UserError: it is missing, corrupt, too large, or has pixels whose range is not known.
    """
    with open_image(source, name=name) as file:
        if mode == "RGBA" and getattr(file, "tag_v2", {}).get(SAMPLES, 1) > (read := len(file.getbands())):
            raise ValueError(f"of its channels PIL reads {read}; others come by a reader with `decode`")
        image = _in_8_bits(file)
        image.info[STORED] = file.mode
        return (ImageOps.exif_transpose(image) if upright else image).convert(mode)


def orientation(image: Any) -> int:
    """Return the EXIF orientation of an opened or decoded image, 1 (upright) to 8; 1 if it states none, as an array."""
    try:
        stated: Any = image.getexif().get(ExifTags.Base.Orientation) if isinstance(image, Image.Image) else 1
    except DAMAGED:
        return 1
    return int(stated) if stated in range(1, 9) else 1


def _in_8_bits(file: ImageFile.ImageFile) -> Image.Image:
    """Return an image with 8 bits a channel: 16 bits of gray are scaled by 257. Raises ValueError for other pixels."""
    tags = getattr(file, "tag_v2", {})
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM")):
        white = 2 ** tags.get(BITS, (16,))[0] - 1  # 12-bit TIFF has this mode, too
        grey = np.asarray(file).astype(np.uint32)
        if tags.get(PHOTOMETRIC) == 0:  # white is zero, which PIL passes over in 16 bits
            grey = white - grey
        image = Image.fromarray(((grey * 255 + white // 2) // white).astype(np.uint8))
        image.info = file.info
        return image
    fault = ""
    if file.mode in ("I", "F"):
        values = np.asarray(file)
        if tags and file.mode == "I" and tags.get(SAMPLE_FORMAT, (1,))[0] == 1:
            values = values.view(np.uint32)
        fault = f"mode {file.mode}, values from {values.min():g} to {values.max():g}"
    elif file.mode == "LAB":
        fault = "mode LAB"
    elif tags.get(SAMPLE_FORMAT, (1,))[0] == 2:
        fault = "signed integers"
    elif tags.get(PLANES) == 2 and tags.get(BITS, (1,))[0] > 8:
        fault = "16 bits in separate planes, which PIL misreads"
    elif file.format == "JPEG2000" and file.fp:
        file.fp.seek(0)
        size = file.fp.read().partition(b"\xff\x4f\xff\x51")[2]  # its main header, ISO 15444-1 A.5.1
        if max(size[38 : 38 + 3 * len(file.getbands()) : 3], default=0) % 128 > 7:
            fault = "JPEG 2000 in color of more than 8 bits, which PIL misreads"
    if fault:
        raise ValueError(f"{fault}; save it with 8 bits, or 16 bits of gray")
    return file
