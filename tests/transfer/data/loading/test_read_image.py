"""Every mode and depth that PIL and tifffile write, by all image paths: the picture in 8 bits, or a refusal."""

import contextlib
import io
import itertools
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.transfer.data.layouts import saved
from transfer.core.errors import UserError
from transfer.data.loading.images import read_pixels
from transfer.data.loading.read_image import is_image, open_image, orientation, read_image

pytestmark = pytest.mark.usefixtures("here")
Y, X = np.mgrid[:24, :32]
COLOUR = np.stack([8 * X, 10 * Y, 5 * X + 3 * Y], axis=2).astype(np.uint8)
GREY = COLOUR[..., 2]


def check(content, expected, case):
    """Whether a file is read; all paths agree on that, and read what is expected (None: nothing may be read)."""
    Path("cat.tif").write_bytes(content)
    reads = (
        lambda: np.asarray(read_image("cat.tif")),
        lambda: np.asarray(read_image(io.BytesIO(content), name="cat.tif")),
        lambda: read_pixels(content, name="cat.tif").numpy().transpose(1, 2, 0),
    )
    if expected is not None:
        with contextlib.suppress(UserError):
            for read in reads:
                assert np.abs(read() - expected.astype(int)).max() <= 2, case
            return True
    for read in reads:
        with pytest.raises(UserError, match=r"^cat\.tif: cannot be read as an image \([^<)]"):
            read()
    return False


def pil_image(mode):
    """An image of a mode, and its 8-bit version."""
    if dtype := {"I": "<i4", "I;16": "<u2", "I;16B": ">u2", "F": "<f4"}.get(mode):
        deep = (GREY * np.float32(1 / 255 if mode == "F" else 257)).astype(dtype)
        return Image.frombytes(mode, (32, 24), deep.tobytes()), np.dstack([GREY] * 3)
    color = Image.fromarray(COLOUR)
    image = color.convert("P").convert(mode) if mode == "PA" else color.convert(mode)
    if mode in ("LA", "RGBA", "PA"):
        image.putalpha(Image.fromarray(255 - GREY))
    return image, None if mode == "LAB" else np.asarray(image.convert("RGB"))


STORED = {
    "AVIF": ("L RGB RGBA", "", {"quality": 100, "subsampling": "4:4:4"}),
    "BMP": ("1 L P RGB RGBA", "", {}),
    "DDS": ("L LA RGB RGBA", "", {}),
    "GIF": ("1 L P", "", {}),
    "IM": ("1 L LA P PA RGB RGBA RGBX CMYK I;16", "I F", {}),
    "JPEG": ("1 L RGB CMYK", "", {"quality": 100, "subsampling": 0}),
    "JPEG2000": ("L LA RGB RGBA I;16", "", {}),
    "PCX": ("1 L P RGB", "", {}),
    "PNG": ("1 L LA P RGB RGBA I;16", "", {}),
    "PPM": ("1 L RGB RGBA I;16 I", "F", {}),
    "SGI": ("L RGB RGBA", "", {}),
    "SPIDER": ("", "F", {}),
    "TGA": ("1 L LA P RGB RGBA", "", {}),
    "TIFF": ("1 L LA P PA RGB RGBA RGBX CMYK I;16 I;16B", "I F LAB", {}),
    "WEBP": ("L RGB RGBA", "", {"lossless": True, "exact": True}),
}
"""Modes that PIL stores in a format and that are read, and those that are refused."""


@pytest.mark.parametrize("kind", STORED)
def test_every_mode_of_pil(kind):
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow has no {kind}")
    read, refused, options = STORED[kind]
    for mode in (read + " " + refused).split():
        image, expected = pil_image(mode)
        assert check(saved(image, kind, **options), expected, mode) == (mode in read.split()), mode


DTYPES = ("bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "f2", "f4", "f8")
CHANNELS = {
    "minisblack": [GREY],
    "miniswhite": [255 - GREY],
    "minisblack unassalpha": [GREY, 255 + 0 * GREY],
    "rgb": [*COLOUR.transpose(2, 0, 1)],
    "rgb unassalpha": [*COLOUR.transpose(2, 0, 1), GREY],
    "rgb assocalpha": [*COLOUR.transpose(2, 0, 1), 255 + 0 * GREY],
    "rgb unspecified": [*COLOUR.transpose(2, 0, 1), GREY],
    "separated": [*(255 - COLOUR).transpose(2, 0, 1), 0 * GREY],
    "cielab": [*COLOUR.transpose(2, 0, 1)],
}


def readable(dtype, channels, planes, order):
    if channels == "cielab" or dtype not in ("bool", "u1", "u2"):
        return False
    if planes == "separate":
        return dtype == "u1" and channels in ("rgb", "rgb unassalpha", "separated")
    return dtype != "u2" or (channels != "minisblack unassalpha" and (channels, order) != ("miniswhite", ">"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_pixels_of_tifffile(dtype):
    for channels, planes, order in itertools.product(CHANNELS, ("contig", "separate"), "<>"):
        values = CHANNELS[channels]
        if (len(values) == 1 and planes == "separate") or (dtype == "bool" and len(values) > 1):
            continue
        photometric, *extra = channels.split()
        white = {"b": 1, "f": 1, "u": 2**32, "i": 2**15}[np.dtype(dtype).kind]
        white = min(white, np.iinfo(dtype).max) if dtype[0] in "ui" else white
        pixels = np.stack([(one / 255 * white).round(0 if dtype[0] != "f" else 6).astype(dtype) for one in values])
        stream, stored = io.BytesIO(), pixels if planes == "separate" else pixels.transpose(1, 2, 0).squeeze()
        tifffile.imwrite(
            stream, stored, photometric=photometric, planarconfig=planes, byteorder=order, extrasamples=extra or None
        )
        grey = (GREY / 255).round() * 255 if dtype == "bool" else GREY
        expected = np.dstack([grey] * 3) if len(values) < 3 else COLOUR
        case = (dtype, channels, planes, order)
        assert check(stream.getvalue(), None if channels == "cielab" else expected, case) == readable(*case), case


def test_modes_and_pages(tmp_path):
    deep = Image.fromarray(GREY.astype("u2") * 257)
    content = saved(deep, "PNG", transparency=0)
    assert np.array_equal(read_image(io.BytesIO(content), mode="L"), GREY)
    assert np.array_equal(np.asarray(read_image(io.BytesIO(content), mode="RGBA"))[..., 2], GREY)
    tifffile.imwrite(tmp_path / "pages.tif", np.stack([GREY, 0 * GREY]).astype("u2") * 257, photometric="minisblack")
    assert np.array_equal(read_image(str(tmp_path / "pages.tif"), mode="L"), GREY)
    tifffile.imwrite(tmp_path / "deep.tif", GREY.astype("i4") - 300)
    with pytest.raises(UserError, match=r"deep\.tif: .* \(mode I, values from -300 to -76; .*--drop-corrupt"):
        read_image(str(tmp_path / "deep.tif"))


@pytest.mark.parametrize("mode", ["RGB", "I;16", "L", "RGBA", "CMYK"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_images_are_as_stored_or_upright(mode, turn):
    """Upright is what the numbers of EXIF say; all paths read as stored, but for TIFF."""
    (image, stored), exif = pil_image(mode), Image.Exif()
    exif[0x0112] = turn
    turned = stored.swapaxes(0, 1) if turn > 4 else stored  # the first row is the left side, from the top
    turned = turned[:: -1 if turn in (3, 4, 7, 8) else 1, :: -1 if turn in (2, 3, 6, 7) else 1]
    for kind in ("PNG", "WEBP", "JPEG")[: {"RGB": 3, "CMYK": 0}.get(mode, 1)]:
        content = saved(image, kind, exif=exif, **STORED[kind][2])
        assert check(content, stored, kind)
        assert orientation(read_image(io.BytesIO(content))) == turn
        upright = read_image(io.BytesIO(content), upright=True)
        assert np.abs(np.asarray(upright, int) - turned).max() <= 2
    for packing in ("raw", "tiff_adobe_deflate"):
        assert check(saved(image, "TIFF", tiffinfo={0x0112: turn}, compression=packing), turned, packing)
        assert np.abs(np.asarray(read_image("cat.tif", upright=True), int) - turned).max() <= 2


def test_color_of_more_than_8_bits_in_jpeg_2000():
    """PIL reads the white of these as black; the bits are those that the header states."""
    for mode, bits in itertools.product(("LA", "RGB", "RGBA"), (8, 10, 16)):
        content = bytearray(saved(Image.new(mode, (32, 24)), "JPEG2000"))
        depths = content.index(b"\xff\x4f\xff\x51") + 42
        content[depths : depths + 3 * len(mode) : 3] = [bits - 1] * len(mode)
        assert check(bytes(content), np.zeros((24, 32, 3)) if bits == 8 else None, bits) == (bits == 8)


def test_a_large_image_is_no_fault_and_a_header_may_not_claim_anything():
    """An aerial image of 20,000 x 20,000 is above PIL's own limit."""

    def png(side):
        chunks = [b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0), b"IDAT"]
        parts = [struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks]
        return io.BytesIO(b"\x89PNG\r\n\x1a\n" + b"".join(parts))

    with open_image(png(20_000)) as file:
        assert file.size == (20_000, 20_000)
    with pytest.raises(UserError, match="exceeds limit of 1073741824 pixels"), open_image(png(40_000)):
        pass


def test_pil_does_not_warn():
    """Of a palette whose transparency is bytes, and of an EXIF block that was cut."""
    palette = Image.fromarray(GREY).convert("P")
    Path("a.png").write_bytes(saved(palette, "PNG", transparency=bytes(range(256))))
    Path("b.jpg").write_bytes(saved(palette.convert("RGB"), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x0f\x01"))
    lines = "from transfer.data.loading.read_image import *; [orientation(read_image(f)) for f in ('a.png', 'b.jpg')]"
    said = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert said.stderr == ""


def test_images_are_told_by_what_the_decoder_opens(tmp_path):
    """Each extension under which PIL saves a picture, in either case, and none that it cannot open."""
    for name in ("jpg", "jpe", "jfif", "png", "bmp", "webp", "tif", "tiff", "gif", "pgm", "ppm", "tga", "jp2", "qoi"):
        path = tmp_path / f"one.{name}"
        Image.fromarray(COLOUR).save(path)
        assert read_image(str(path))
        assert is_image(path.name)
        assert is_image(path.name.upper())
    for name in ("a.pdf", "a.eps", "a.ps", "a.h5", "a.mpg", "a.wmf", "a.txt", "a.json", "a.npy", "a.jpg.txt", "jpg"):
        assert not is_image(name)
