"""Colored figures in the layouts of Market-1501 and MSMT17: small datasets for trying things, without any download.

They are written once into the cache folder as JPEG files under the names of the real sets, so that the real parsers
read them. What identifies a person is the colors of head, torso and legs and the pattern of the torso; background and
tint change with the camera, place, light and noise from image to image.
"""

from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from transfer.data.toy.digits import save

Color = tuple[int, int, int]
TIMES = ("morning", "noon", "afternoon")
BOX = (64, 128)
"""Width and height of an image in pixels."""
SHADES = (40, 130, 220)
QUALITY = 90
STRIPE_WIDTH = 8
"""Width of a pattern's stripes in pixels."""


class Size(NamedTuple):
    """Numbers of a drawn set. Every person is seen by `seen_by` of the cameras, `shots` times by each."""

    seed: int
    train: int
    test: int
    cameras: int
    seen_by: int
    shots: int
    distractors: int = 0
    junk: int = 0


MARKET = Size(seed=1501, train=48, test=24, cameras=6, seen_by=4, shots=2, distractors=40, junk=24)
MSMT = Size(seed=17, train=32, test=20, cameras=15, seen_by=5, shots=2)


Look = tuple[Color, Color, Color, Color, int]
"""What is the same in all images of a person: the colors of head, torso, accent and legs, and the pattern of the torso:
rows, columns, both or neither."""
Camera = tuple[Color, Color, Color]
"""Wall, ground, and the gain of each channel in percent."""


def _color(rng: np.random.Generator, low: int, high: int) -> Color:
    red, green, blue = rng.integers(low, high, 3).tolist()
    return red, green, blue


def _draw_look(rng: np.random.Generator) -> Look:
    """Draw a look of few colors and many combinations: two people often share a torso or legs."""
    head, torso, accent, legs = (tuple(rng.choice(SHADES, 3).tolist()) for _ in range(4))
    return head, torso, accent, legs, int(rng.integers(4))


def _people(size: Size) -> tuple[list[Look], list[Camera], list[list[tuple[int, int]]]]:
    """Return all looks, the cameras, and for each person's images the indices of camera and shot."""
    rng = np.random.default_rng([size.seed, 0])
    cameras = [(_color(rng, 60, 200), _color(rng, 60, 200), _color(rng, 70, 120)) for _ in range(size.cameras)]
    looks = [_draw_look(rng) for _ in range(size.train + size.test)]
    seen = [rng.choice(size.cameras, size.seen_by, replace=False).tolist() for _ in looks]
    return looks, cameras, [[*product(cameras_of, range(size.shots))] for cameras_of in seen]


def _photograph(
    look: Look | None, camera: Camera, rng: np.random.Generator, *, crop: float = 1.0, box: tuple[int, int] = BOX
) -> Image.Image:
    """Draw one detection box.

    Args:
        look: look of the person; None for a box without one.
        camera: camera that takes the image.
        rng: generator of place, light and noise.
        crop: share of the sides that the box shows; below 1 for bad detections.
        box: (width, height) of the image.
    """
    wall, ground, tint = camera
    image = Image.new("RGB", BOX, wall)
    pen = ImageDraw.Draw(image)
    pen.rectangle([0, int(rng.integers(60, 95)), *BOX], fill=ground)
    x, y = int(rng.integers(24, 41)), int(rng.integers(2, 16))
    if look is not None:
        head, torso, accent, legs, pattern = look
        pen.ellipse([x - 7, y, x + 7, y + 17], fill=head)
        pen.rectangle([x - 15, y + 18, x + 15, y + 64], fill=torso)
        for start in range(0, 48 if pattern & 1 else 0, 2 * STRIPE_WIDTH):
            pen.rectangle([x - 15, y + 18 + start, x + 15, y + 17 + start + STRIPE_WIDTH], fill=accent)
        for start in range(0, 31 if pattern & 2 else 0, 2 * STRIPE_WIDTH):
            pen.rectangle([x - 15 + start, y + 18, x - 16 + start + STRIPE_WIDTH, y + 64], fill=accent)
        for leg in (-13, 2):
            pen.rectangle([x + leg, y + 65, x + leg + 11, y + 110], fill=legs)
    left, top = (rng.uniform(0, 1 - crop) * side if crop < 1 else 0.0 for side in BOX)
    shown = (left, top, left + crop * BOX[0], top + crop * BOX[1])
    pixels = np.asarray(image.resize(box, Image.Resampling.BILINEAR, box=shown), dtype=np.float64)
    pixels = pixels * np.array(tint) / 100 * rng.uniform(0.8, 1.2) + rng.normal(0, 8, (box[1], box[0], 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _market_name(identity: int, camera: int, rng: np.random.Generator, box: int) -> str:
    label = f"{identity:04d}" if identity >= 0 else str(identity)
    return f"{label}_c{camera + 1}s{rng.integers(1, 4)}_{rng.integers(1, 100_000):06d}_{box:02d}.jpg"


def write_market(root: Path, size: Size = MARKET) -> None:
    """Draw Market-1501: queries come from two cameras; junk shows parts of people, distractors parts or nobody."""
    looks, cameras, everybody = _people(size)
    identities = np.random.default_rng(size.seed).permutation(len(looks)) + 1
    for person, shots in enumerate(everybody):
        test, identity = person >= size.train, int(identities[person])
        images = [("bounding_box_test" if test else "bounding_box_train", camera, shot) for camera, shot in shots]
        images += [("query", camera, size.shots) for camera, _ in (shots[0], shots[-1]) if test]
        for folder, camera, shot in images:
            rng = np.random.default_rng([size.seed, 1, person, camera, shot])
            image = _photograph(looks[person], cameras[camera], rng)
            box = 0 if folder == "query" else shot + 1
            save(image, root / folder / _market_name(identity, camera, rng, box), QUALITY)
    for number in range(size.distractors + size.junk):
        rng = np.random.default_rng([size.seed, 1, len(looks), number])
        camera, junk = number % size.cameras, number >= size.distractors
        look = looks[size.train + number % size.test] if junk else _draw_look(rng) if number % 2 else None
        image = _photograph(look, cameras[camera], rng, crop=rng.uniform(0.4, 0.7))
        save(image, root / "bounding_box_test" / _market_name(-1 if junk else 0, camera, rng, number % 10), QUALITY)


def write_msmt17(root: Path) -> None:
    """Draw MSMT17 (V1, with `list_val.txt`): boxes of varying size; training and test identities both count from 0, as
    in the real lists.

    A person's last training image is for validation, the first and the last test image are queries.
    """
    looks, cameras, everybody = _people(MSMT)
    lists: dict[str, list[str]] = {"train": [], "val": [], "query": [], "gallery": []}
    for person, shots in enumerate(everybody):
        test = person >= MSMT.train
        identity, last = person - MSMT.train * test, len(shots) - 1
        for place, (camera, shot) in enumerate(shots):
            rng = np.random.default_rng([MSMT.seed, 1, person, camera, shot])
            box = (int(rng.integers(52, 72)), int(rng.integers(120, 150)))
            time = f"{rng.integers(1, 13):02d}{rng.integers(1, 29):02d}{TIMES[rng.integers(3)]}"
            name = f"{identity:04d}_{place:03d}_{camera + 1:02d}_{time}_{rng.integers(10_000):04d}_0.jpg"
            image = _photograph(looks[person], cameras[camera], rng, box=box)
            save(image, root / ("test" if test else "train") / f"{identity:04d}" / name, QUALITY)
            known, other = ("gallery", "query") if test else ("train", "val")
            split = other if place == last or (test and place == 0) else known
            lists[split].append(f"{identity:04d}/{name} {identity}\n")
    for split, lines in lists.items():
        (root / f"list_{split}.txt").write_text("".join(lines), encoding="utf-8")
