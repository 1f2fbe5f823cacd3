import hashlib
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from backbones.data.splits.digests import image_digest, pixel_digest
from backbones.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)


def stored(kind, pixels=PIXELS, **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def test_lossless_images_agree_whatever_stores_them():
    expected = hashlib.sha256(b"16x12\0" + PIXELS.tobytes()).hexdigest()
    assert pixel_digest(PIXELS) == expected
    for content in (
        stored("PNG"),
        stored("PNG", compress_level=0),
        stored("TIFF"),
        stored("TIFF", compression="tiff_lzw"),
        stored("BMP"),
        stored("PPM"),
    ):
        assert image_digest(content, name="image") == expected
    assert len({stored("PNG"), stored("PNG", compress_level=0)}) == 2


def test_palettes_count_as_the_colours_they_give():
    grey = np.arange(192, dtype=np.uint8).reshape(12, 16)
    assert image_digest(stored("GIF", grey), name="gif") == pixel_digest(np.repeat(grey[:, :, None], 3, axis=2))


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("WEBP", {}), ("WEBP", {"lossless": True})])
def test_lossy_formats_count_as_their_bytes(kind, options):
    content = stored(kind, **options)
    assert image_digest(content, name="image") == hashlib.sha256(content).hexdigest()


def test_the_shape_counts():
    assert pixel_digest(PIXELS) != pixel_digest(PIXELS.reshape(16, 12, 3))


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image",
        stored("PNG")[:100],
        stored("TIFF")[:60],
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 16, 12, 8, 2, 0, 0, 0)) + chunk(b"IEND", b""),
    ],
    ids=["nothing", "text", "cut PNG", "cut TIFF", "PNG without pixels"],
)
@pytest.mark.filterwarnings("ignore:Truncated File Read")
def test_a_damaged_image_is_named(content):
    with pytest.raises(UserError, match="rows of x, row 3: cannot be read as an image"):
        image_digest(content, name="rows of x, row 3")
