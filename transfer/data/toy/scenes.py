"""Drawn scenes, without any download: digits in the layout of COCO 2017 for detection, and shapes with masks.

Digits are scikit-learn's handwritten ones. Each object is a digit on a card of its own shape: the digit's outline, row
by row, a little larger. The mask is the outline of the card, so it fits what is drawn exactly. Categories are the ten
digits, under ids with gaps, as COCO has. Some images hold a crowd, a group of small digits of one kind under one
run-length encoding, and some hold nothing. Shapes: H x W pixels of the canvas, h x w pixels of a card.

Shapes are filled with rows, columns or checks. What tells the class of a pixel is the pattern around it: outline,
place, and both colors of a shape, a light and a dark one, are drawn at random, as is the ground. Patterns lie on one
grid in all images, so that even a linear layer of pixels tells them apart. Rims are 255, to be ignored, as VOC's are.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from transfer.data.toy.digits import DIGIT_NAMES, VALIDATION_INTERVAL, save

SCENE_COUNTS = {"train": 96, "val": 32}
CATEGORY_IDS = (1, 2, 3, 5, 6, 8, 11, 12, 15, 16)
TILE_SIDES = (16, 64)
"""Shortest and longest side in pixels of the tile of a digit."""
CROWD_SIDES = (11, 15)
"""Shortest and longest side in pixels of the tile of a digit in a crowd."""
PLACE_TRIES = 40
CROWDED, EMPTY = 8, 16
"""Interval of the images with a crowd, and of those with nothing."""


class _Placed(NamedTuple):
    """A card at its place on the canvas, in pixels."""

    digit: int
    x: int
    y: int
    mask: NDArray[Any]


def write_scenes(root: Path) -> None:
    """Write the layout of COCO 2017."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for split, count in SCENE_COUNTS.items():
        in_split = (np.arange(len(digits.target)) % VALIDATION_INTERVAL == VALIDATION_INTERVAL - 1) == (split == "val")
        pools = [digits.images[in_split & (digits.target == digit)] for digit in range(10)]
        images: list[dict[str, Any]] = []
        objects: list[dict[str, Any]] = []
        for number in range(count):
            rng = np.random.default_rng([1, list(SCENE_COUNTS).index(split), number])
            picture, placed, crowd = _scene(number, pools, rng)
            # ids have nothing to do with the order of drawing, as in COCO
            key = int(rng.integers(1, 900)) * 1000 + number
            image: dict[str, Any] = {"id": key, **dict(zip(("height", "width"), picture.shape))}
            image["file_name"] = f"{key:012d}.jpg"
            images.append(image)
            save(Image.fromarray(picture), root / f"{split}2017" / image["file_name"], quality=90)
            objects += [_annotation(card, image["id"], len(objects) + place) for place, card in enumerate(placed, 1)]
            if crowd:
                objects.append(_crowd_annotation(crowd, image, len(objects) + 1))
        pairs = zip(CATEGORY_IDS, DIGIT_NAMES)
        categories = [{"id": number, "name": name, "supercategory": "digit"} for number, name in pairs]
        (root / "annotations").mkdir(exist_ok=True)
        content = {"images": images, "annotations": objects, "categories": categories}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content), encoding="utf-8")


def _scene(
    number: int, pools: list[NDArray[Any]], rng: np.random.Generator
) -> tuple[NDArray[Any], list[_Placed], list[_Placed]]:
    """Draw an image; return uint8 [H, W, 3], its objects, and the members of a crowd. Nothing overlaps."""
    canvas = _canvas(int(rng.integers(104, 153)), int(rng.integers(136, 185)), rng)
    taken = np.zeros(canvas.shape[:2], dtype=bool)
    placed: list[_Placed] = []
    crowd: list[_Placed] = []
    if number % EMPTY == EMPTY - 1:
        return canvas.astype(np.uint8), placed, crowd
    if number % CROWDED == CROWDED // 2:
        digit, top, left = int(rng.integers(10)), int(rng.integers(0, 60)), int(rng.integers(0, 80))
        region = (slice(top, top + 36), slice(left, left + 48))
        members = [_place(digit, pools[digit], CROWD_SIDES, canvas[region], taken[region], rng) for _ in range(8)]
        crowd = [_Placed(digit, card.x + left, card.y + top, card.mask) for card in members if card]
        taken[region] = True
    for _ in range(int(rng.integers(1, 6))):
        digit = int(rng.integers(10))
        card = _place(digit, pools[digit], TILE_SIDES, canvas, taken, rng)
        placed += [card] if card is not None else []
    return (canvas + 0.5).astype(np.uint8), placed, crowd


def _place(
    digit: int,
    pool: NDArray[Any],
    sizes: tuple[int, int],
    canvas: NDArray[Any],
    taken: NDArray[Any],
    rng: np.random.Generator,
) -> _Placed | None:
    """Draw a digit on a free place, in two random colors; return None when no place is found."""
    mask, strokes = _card(pool[int(rng.integers(len(pool)))], round(float(np.exp(rng.uniform(*np.log(sizes))))))
    height, width = mask.shape
    light, dark = rng.uniform(165, 255, 3), rng.uniform(0, 90, 3)
    for _ in range(PLACE_TRIES if height <= taken.shape[0] and width <= taken.shape[1] else 0):
        y = int(rng.integers(taken.shape[0] - height + 1))
        x = int(rng.integers(taken.shape[1] - width + 1))
        window = (slice(y, y + height), slice(x, x + width))
        if not taken[window].any():
            taken[window] = True
            colors = dark + (light - dark) * strokes[:, :, None]
            canvas[window] = np.where(mask[:, :, None], colors, canvas[window])
            return _Placed(digit, x, y, mask)
    return None


def _card(pixels: NDArray[Any], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return a card from counts of set pixels 0..16 [8, 8] drawn on `size` x `size` pixels.

    It is a mask bool [h, w], whose rows are unbroken, and strokes [h, w] in [0, 1], both cut to the mask.
    """
    grey = Image.fromarray(np.pad(pixels * 255 / 16 + 0.5, 1).astype(np.uint8))
    strokes = np.asarray(grey.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64) / 255
    inked = strokes > 0.2
    border = max(1, size // 16)
    rows = np.flatnonzero(inked.any(axis=1))
    mask = np.zeros_like(inked)
    for row in range(max(rows[0] - border, 0), min(rows[-1] + border + 1, size)):
        near = np.flatnonzero(inked[max(row - border, 0) : row + border + 1].any(axis=0))
        if len(near):
            mask[row, max(near[0] - border, 0) : near[-1] + border + 1] = True
    window = np.ix_(np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0)))
    return mask[window], strokes[window]


def _canvas(height: int, width: int, rng: np.random.Generator) -> NDArray[Any]:
    """Return float64 [H, W, 3]: soft patches of color, stripes and grain, none as bright or dark as the digits."""
    coarse = rng.uniform(95, 160, (5, 6, 3)).astype(np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64)
    angle, period = rng.uniform(0, np.pi), rng.uniform(5, 14)
    y, x = np.mgrid[:height, :width]
    stripes = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 2 * np.pi / period)
    return np.clip(soft + 12 * stripes[:, :, None] + rng.normal(0, 6, (height, width, 3)), 0, 255)


def _annotation(card: _Placed, image: int, number: int) -> dict[str, Any]:
    height, width = card.mask.shape
    return {
        "id": number,
        "image_id": image,
        "category_id": CATEGORY_IDS[card.digit],
        "bbox": [card.x, card.y, width, height],
        "area": int(card.mask.sum()),
        "iscrowd": 0,
        "segmentation": [_outline(card)],
    }


def _outline(card: _Placed) -> list[int]:
    """Return x, y, x, y, ... of the corners of the mask: down its left side, and up its right side."""
    lefts = card.mask.argmax(axis=1) + card.x
    rights = card.mask.shape[1] - card.mask[:, ::-1].argmax(axis=1) + card.x
    heights = [card.y + row + lower for row in range(len(lefts)) for lower in (0, 1)]
    corners = [*zip(lefts.repeat(2), heights), *[*zip(rights.repeat(2), heights)][::-1]]
    # a point between two others on one vertical line is not a corner
    bends = [
        corner
        for place, corner in enumerate(corners)
        if not corners[place - 1][0] == corner[0] == corners[(place + 1) % len(corners)][0]
    ]
    return np.array(bends).ravel().tolist()


def _crowd_annotation(crowd: list[_Placed], image: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the union of the members as COCO writes crowds: lengths of runs of 0, 1, 0, ... down the columns."""
    whole = np.zeros((image["height"], image["width"]), dtype=np.uint8)
    for member in crowd:
        height, width = member.mask.shape
        whole[member.y : member.y + height, member.x : member.x + width] |= member.mask
    flat = np.concatenate([[0], whole.ravel(order="F"), [2]])
    ends = np.flatnonzero(np.diff(flat))
    rows, columns = np.flatnonzero(whole.any(axis=1)), np.flatnonzero(whole.any(axis=0))
    mask = whole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    union = _Placed(crowd[0].digit, int(columns[0]), int(rows[0]), mask)
    runs = {"size": [image["height"], image["width"]], "counts": np.diff(ends, prepend=0).tolist()}
    return _annotation(union, image["id"], number) | {"iscrowd": 1, "segmentation": runs}


SHAPES_COUNTS = {"train": 64, "val": 32}
SIDE = 96
"""Height and width of an image in pixels."""
SIDES = (32, 64)
"""Shortest and longest side of a shape in pixels."""
STRIPE = 4
"""Width of a stripe in pixels."""


def write_shapes(root: Path) -> None:
    """Write images of shapes, and their masks."""
    for place, (split, count) in enumerate(SHAPES_COUNTS.items()):
        for number in range(count):
            picture, mask = _draw_shapes(np.random.default_rng([1, place, number]))
            save(Image.fromarray(picture), root / "images" / split / f"{number:04d}.jpg", quality=90)
            save(Image.fromarray(mask), root / "masks" / split / f"{number:04d}.png")


def _draw_shapes(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw an image; return uint8 [96, 96, 3] and its mask, uint8 [96, 96]."""
    coarse = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    canvas = np.array(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.float64)
    mask: NDArray[Any] = np.zeros((SIDE, SIDE), np.uint8)
    rows, columns = np.mgrid[:SIDE, :SIDE] // STRIPE % 2
    for _ in range(int(rng.integers(2, 5))):
        label, outline = int(rng.integers(1, 4)), ("ellipse", "rectangle", "polygon")[int(rng.integers(3))]
        width, height = rng.integers(*SIDES, 2).tolist()
        left, top = int(rng.integers(SIDE - width)), int(rng.integers(SIDE - height))
        right, bottom = left + width, top + height
        corners = [(left, bottom), (right, bottom), (int(rng.integers(left, right)), top)]
        shape = Image.new("L", (SIDE, SIDE))
        drawn = corners if outline == "polygon" else (left, top, right, bottom)
        getattr(ImageDraw.Draw(shape), outline)(drawn, fill=label, outline=255)
        pattern, new = (rows, columns, rows ^ columns)[label - 1], np.asarray(shape) > 0
        mask = np.where(new, np.asarray(shape), mask)
        colors = rng.uniform([[150], [0]], [[256], [106]], (2, 3))  # light and dark
        canvas[new] = colors[pattern[new]]
    return (canvas + rng.normal(0, 4, canvas.shape)).clip(0, 255).astype(np.uint8), mask
