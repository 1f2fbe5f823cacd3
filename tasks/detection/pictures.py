"""Images with the detected boxes drawn on them."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from backbones.data.loading.read_image import read_image
from backbones.runtime.files import write_error
from tasks.picture_checksums import write_sums

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
MISSED, COVERED, DASH = "#555555", 0.5, 5
"""Colour of missed objects, IoU from which a box covers an object, and pixels of a dash."""
SHOWN, ALWAYS = 0.3, 3
"""Lowest score of a drawn box, and number of best boxes drawn always: early in a training no score is above."""


def draw_detections(
    path: str,
    results: Sequence[dict[str, Any]],
    names: dict[int, str],
    objects: Sequence[dict[str, Any]] | None = None,
) -> Image.Image:
    """Return the image with every box, its class and its score drawn on it.

    With `objects` a box that covers none of its class (IoU of 0.5, in the order of the scores) is dashed and marked
    "false", and an object that no box covers is dashed in grey and marked "missed".

    Args:
        path: file of the image.
        results: detections of this image, in COCO's format.
        names: name of each category id.
        objects: annotations of this image, in COCO's format; crowds are no objects.
    """
    image = read_image(path)
    pen = ImageDraw.Draw(image)
    ranked = sorted(results, key=lambda result: -result["score"])
    shown = [result for place, result in enumerate(ranked) if place < ALWAYS or result["score"] >= SHOWN]
    right, missed = judged(shown, objects or ())
    for item in missed:
        _frame(pen, item["bbox"], MISSED, dashed=True)
        _label(pen, item["bbox"][:2], f"missed {names[item['category_id']]}", MISSED)
    for result, is_right in reversed([*zip(shown, right, strict=True)]):  # the best on top
        colour = COLOURS[result["category_id"] % len(COLOURS)]
        wrong = objects is not None and not is_right
        _frame(pen, result["bbox"], colour, dashed=wrong)
        label = f"{names[result['category_id']]} {result['score']:.2f}"
        _label(pen, result["bbox"][:2], f"false {label}" if wrong else label, colour)
    return image


def judged(
    results: Sequence[dict[str, Any]], objects: Sequence[dict[str, Any]]
) -> tuple[list[bool], list[dict[str, Any]]]:
    """Return whether each detection covers an object of its class that none before it covers, and the objects left.

    Args:
        results: detections of one image, the highest score first.
        objects: its annotations; those with `iscrowd` count for nothing.
    """
    left = [item for item in objects if not item.get("iscrowd")]
    right = []
    for result in results:
        overlaps = [
            (iou(result["bbox"], item["bbox"]), place) for place, item in enumerate(left) if _same(result, item)
        ]
        best, place = max(overlaps, default=(0.0, -1))
        right.append(best >= COVERED)
        if right[-1]:
            del left[place]
    return right, left


def _same(result: dict[str, Any], item: dict[str, Any]) -> bool:
    return bool(result["category_id"] == item["category_id"])


def iou(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the intersection over union of two boxes (x, y, width, height)."""
    widths = (
        max(0.0, min(one[at] + one[at + 2], other[at] + other[at + 2]) - max(one[at], other[at])) for at in (0, 1)
    )
    shared = math.prod(widths)
    union = one[2] * one[3] + other[2] * other[3] - shared
    return shared / union if union > 0 else 0.0


def _frame(pen: ImageDraw.ImageDraw, box: Sequence[float], colour: str, *, dashed: bool) -> None:
    x, y, width, height = box
    right, bottom = x + max(width - 1, 0), y + max(height - 1, 0)  # PIL draws the last pixel too
    if not dashed:
        pen.rectangle((x, y, right, bottom), outline=colour, width=2)
        return
    for start, end, level, across in (
        (x, right, y, True),
        (x, right, bottom, True),
        (y, bottom, x, False),
        (y, bottom, right, False),
    ):
        at = start
        while at < end:
            to = min(at + DASH, end)
            pen.line((at, level, to, level) if across else (level, at, level, to), fill=colour, width=2)
            at += 2 * DASH


def save_pictures(
    folder: Path, images: Sequence[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]], names: dict[int, str]
) -> None:
    """Save `folder`/NAME.png for every (path, results, objects); NAME-2.png for the second image of a name, and so on.

    Raises:
        UserError: an image cannot be read, or its picture cannot be written.
    """
    saved: set[str] = set()
    try:
        folder.mkdir(exist_ok=True)
        for path, results, objects in images:
            name = _unused(Path(path).stem, saved)
            saved.add(name)
            draw_detections(path, results, names, objects).save(folder / f"{name}.png")
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
