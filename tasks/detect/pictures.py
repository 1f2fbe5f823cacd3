"""Images with the objects and the detected boxes drawn on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from transfer.core.files import writing
from transfer.core.pictures import BOX_COLORS, file_name
from transfer.data.coco.dataset import CocoData

Item = dict[str, Any]
OBJECT = "#555555"
SHOWN, ALWAYS = 0.3, 3
"""Lowest score of a drawn box, and number of best boxes drawn always: early in a training no score is above."""


def draw_detections(
    image: Image.Image, results: Sequence[Item], objects: Sequence[Item], names: dict[int, str]
) -> Image.Image:
    """Return the image with its objects in grey, and over them every box with its class and score.

    Args:
        image: is drawn on.
        results: detections of this image, in COCO's format.
        objects: annotations of this image, in COCO's format.
        names: name of each category id.
    """
    pen = ImageDraw.Draw(image)
    for item in objects:
        _box(pen, item["bbox"], names[item["category_id"]], OBJECT)
    ranked = sorted(results, key=lambda result: -result["score"])
    count = max(ALWAYS, sum(result["score"] >= SHOWN for result in results))
    for result in reversed(ranked[:count]):  # the best on top
        label = f"{names[result['category_id']]} {result['score']:.2f}"
        _box(pen, result["bbox"], label, BOX_COLORS[result["category_id"] % len(BOX_COLORS)])
    return image


def save_pictures(folder: Path, data: CocoData, results: Sequence[Item], count: int) -> None:
    """Save `folder`/NAME.png (see `file_name`) for the first validation images.

    Raises:
        UserError: an image cannot be read, or its picture cannot be written.
    """
    assert data.val is not None
    of_image: dict[int, tuple[list[Item], list[Item]]] = {image.id: ([], []) for image in data.val.images[:count]}
    for kind, items in enumerate((results, data.as_coco(data.val)["annotations"])):
        for item in items:
            if item["image_id"] in of_image:
                of_image[item["image_id"]][kind].append(item)
    names = dict(zip(data.category_ids, data.classes))
    with writing(folder):
        folder.mkdir(exist_ok=True)
        for place, items in enumerate(of_image.values()):
            name = file_name(data.val.images[place].file_name)
            draw_detections(data.val.read(place), *items, names).save(folder / f"{name}.png")


def _box(pen: ImageDraw.ImageDraw, box: Sequence[float], text: str, color: str) -> None:
    """Draw a box, and its text on a patch at its corner or as near as fits into the image."""
    x, y, width, height = box
    pen.rectangle((x, y, x + max(width - 1, 0), y + max(height - 1, 0)), outline=color, width=2)  # PIL draws its end
    _, _, *patch = pen.textbbox((0, 0), text)
    corner = [max(min(at, most - side), 0) for at, most, side in zip((x, y), pen.im.size, patch)]
    pen.rectangle(pen.textbbox((corner[0], corner[1]), text), fill=color)
    pen.text((corner[0], corner[1]), text, fill="white")
