import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from backbones.data.splits.split import image_digest, pixel_digest

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


@pytest.mark.parametrize(("kind", "options"), [("JPEG", {}), ("WEBP", {}), ("WEBP", {"lossless": True})])
def test_lossy_formats_count_as_their_bytes(kind, options):
    content = stored(kind, **options)
    assert image_digest(content, name="image") == hashlib.sha256(content).hexdigest()
