"""Drawn JPEG files of the size of photographs, to measure how fast images are read."""

import io

import numpy as np
from PIL import Image

QUALITY = 85


def draw_jpegs(count: int, width: int, height: int) -> list[bytes]:
    """Return JPEG files of smooth colors with some noise, with some 0.5 bytes per pixel as those of ImageNet."""
    generator, files = np.random.default_rng(0), []
    for _ in range(count):
        colors = Image.fromarray(generator.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
        smooth = np.asarray(colors.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        noisy = (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=QUALITY)
        files.append(stream.getvalue())
    return files
