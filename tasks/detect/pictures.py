"""Images with the objects and the detected boxes drawn on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from transfer.core.files import write_error
from transfer.data.loading.read_image import read_image

Item = dict[str, Any]
COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
OBJECT = "#555555"
SHOWN, ALWAYS = 0.3, 3
"""Lowest score of a drawn box, and number of best boxes drawn always: early in a training no score is above."""


def draw_detections(
    path: str, results: Sequence[Item], objects: Sequence[Item], names: dict[int, str], *, upright: bool = False
) -> Image.Image:
    """Return the image with its objects in grey, and over them every box with its class and score.

    Args:
        path: file of the image.
        results: detections of this image, in COCO's format.
        objects: annotations of this image, in COCO's format.
        names: name of each category id.
        upright: whether boxes are those of the image turned by its EXIF orientation.
    """
    image = read_image(path, upright=upright)
    pen = ImageDraw.Draw(image)
    for item in objects:
        _box(pen, item["bbox"], names[item["category_id"]], OBJECT)
    ranked = sorted(results, key=lambda result: -result["score"])
    shown = [result for place, result in enumerate(ranked) if place < ALWAYS or result["score"] >= SHOWN]
    for result in reversed(shown):  # the best on top
        label = f"{names[result['category_id']]} {result['score']:.2f}"
        _box(pen, result["bbox"], label, COLORS[result["category_id"] % len(COLORS)])
    return image


def save_pictures(
    folder: Path, images: Sequence[tuple[str, list[Item], list[Item]]], names: dict[int, str], *, upright: bool = False
) -> None:
    """Save `folder`/NAME.png for every (path, results, objects); NAME-2.png if the second image has that name, too.

    Raises:
        UserError: an image cannot be read, or its picture cannot be written.
    """
    stems = [Path(path).stem for path, _, _ in images]
    try:
        folder.mkdir(exist_ok=True)
        for number, (stem, image) in enumerate(zip(stems, images), start=1):
            name = f"{stem}-{number}" if stem in stems[: number - 1] else stem
            draw_detections(*image, names, upright=upright).save(folder / f"{name}.png")
    except OSError as error:
        raise write_error(folder, error) from error


def _box(pen: ImageDraw.ImageDraw, box: Sequence[float], text: str, color: str) -> None:
    """Draw a box, and its text on a patch at its corner or as near as fits into the image."""
    x, y, width, height = box
    pen.rectangle((x, y, x + max(width - 1, 0), y + max(height - 1, 0)), outline=color, width=2)  # PIL draws its end
    _, _, *patch = pen.textbbox((0, 0), text)
    corner = [max(min(at, most - side), 0) for at, most, side in zip((x, y), pen.im.size, patch)]
    pen.rectangle(pen.textbbox((corner[0], corner[1]), text), fill=color)
    pen.text((corner[0], corner[1]), text, fill="white")
