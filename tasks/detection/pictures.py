"""Images with the detected boxes drawn on them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from backbones.data.loading.read_image import read_image
from backbones.runtime.files import write_error
from tasks.picture_checksums import write_sums

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
SHOWN, ALWAYS = 0.3, 3
"""Lowest score of a drawn box, and number of best boxes drawn always: early in a training no score is above."""


def draw_detections(path: str, results: Sequence[dict[str, Any]], names: dict[int, str]) -> Image.Image:
    """Return the image with every box, its class and its score drawn on it.

    Args:
        path: file of the image.
        results: detections of this image, in COCO's format.
        names: name of each category id.
    """
    image = read_image(path)
    pen = ImageDraw.Draw(image)
    ranked = sorted(results, key=lambda result: -result["score"])
    shown = [result for place, result in enumerate(ranked) if place < ALWAYS or result["score"] >= SHOWN]
    for result in reversed(shown):  # the best on top
        x, y, width, height = result["bbox"]
        colour = COLOURS[result["category_id"] % len(COLOURS)]
        corner = (x + max(width - 1, 0), y + max(height - 1, 0))  # PIL draws the last pixel too
        pen.rectangle((x, y, *corner), outline=colour, width=2)
        _label(pen, (x, y), f"{names[result['category_id']]} {result['score']:.2f}", colour)
    return image


def save_pictures(folder: Path, images: Sequence[tuple[str, list[dict[str, Any]]]], names: dict[int, str]) -> None:
    """Save `folder`/NAME.png for every (path, results); NAME-2.png for the second image of a name, and so on.

    Raises:
        UserError: an image cannot be read, or its picture cannot be written.
    """
    saved: set[str] = set()
    try:
        folder.mkdir(exist_ok=True)
        for path, results in images:
            name = _unused(Path(path).stem, saved)
            saved.add(name)
            draw_detections(path, results, names).save(folder / f"{name}.png")
        write_sums(folder, [f"{name}.png" for name in saved])
    except OSError as error:
        raise write_error(folder, error) from error


def _label(pen: ImageDraw.ImageDraw, corner: tuple[float, float], text: str, colour: str) -> None:
    """Draw text on a coloured patch, at the corner of a box or as near as fits into the image."""
    _, _, width, height = pen.textbbox((0, 0), text)
    limits = (pen.im.size[0] - width, pen.im.size[1] - height)
    x, y = (max(min(place, limit), 0) for place, limit in zip(corner, limits))
    pen.rectangle(pen.textbbox((x, y), text), fill=colour)
    pen.text((x, y), text, fill="white")


def _unused(name: str, used: set[str]) -> str:
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([name], numbered) if candidate not in used)
