"""Images with the boxes that were found on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from backbones.data.images import read_image
from backbones.errors import UserError
from backbones.files import cannot_write

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
SHOWN = 0.3
"""Detections below this score are left out."""


def picture(path: str, results: Sequence[dict[str, Any]], names: dict[int, str]) -> Image.Image:
    """The image with every box, its class and its score.

    Args:
        results: of this image. names: category id -> name.
    """
    image = read_image(path)
    pen = ImageDraw.Draw(image)
    for result in sorted(results, key=lambda result: result["score"]):
        if result["score"] >= SHOWN:
            x, y, width, height = result["bbox"]
            colour = COLOURS[result["category_id"] % len(COLOURS)]
            pen.rectangle((x, y, x + width, y + height), outline=colour, width=2)
            text = f"{names[result['category_id']]} {result['score']:.2f}"
            pen.rectangle(pen.textbbox((x, y), text), fill=colour)
            pen.text((x, y), text, fill="white")
    return image


def save_pictures(folder: Path, images: Sequence[tuple[str, list[dict[str, Any]]]], names: dict[int, str]) -> None:
    """`folder`/NAME.png for every (path, results). Raises UserError when they cannot be written."""
    try:
        folder.mkdir(exist_ok=True)
        for path, results in images:
            picture(path, results, names).save(folder / f"{Path(path).stem}.png")
    except UserError:
        raise
    except OSError as error:
        raise cannot_write(folder, error) from error
