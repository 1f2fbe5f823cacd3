"""Places and light: the scene and the rendering of a camera."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from tasks.data.toy_figure import CANVAS, Colour, Figure, Look, draw_look, draw_pose

PANORAMA = (720, 256)
HAZE: Colour = (136, 138, 136)


@dataclass(frozen=True)
class Camera:
    """A fixed camera: its panorama, and how it renders colours."""

    panorama: Image.Image
    gain: NDArray[Any]
    gamma: float
    blur: float
    noise: float
    shade: Image.Image


def make_camera(number: int, rng: np.random.Generator) -> Camera:
    """Make camera `number` (from 1): the places take turns, every sixth camera has a poor lens."""
    poor = number % len(PLACES) == 0
    left, right = rng.permutation([rng.uniform(0.95, 1.1), rng.uniform(0.6, 0.8)])
    ramp = np.clip(255 * np.linspace(left, right, CANVAS[0]), 0, 255).astype(np.uint8)
    shade = Image.fromarray(np.broadcast_to(ramp[None, :, None], (CANVAS[1], CANVAS[0], 3)).copy())
    return Camera(
        panorama=_panorama(list(PLACES)[(number - 1) % len(PLACES)], rng),
        gain=rng.uniform(0.85, 1.1) * rng.uniform(0.95, 1.05, 3),
        gamma=rng.uniform(0.88, 1.15),
        blur=1.1 if poor else rng.uniform(0.1, 0.5),
        noise=0.025 if poor else 0.01,
        shade=shade,
    )


def photograph(
    look: Look | None, camera: Camera, rng: np.random.Generator, *, crop: float = 1.0, size: tuple[int, int] = (64, 128)
) -> Image.Image:
    """Draw one detection box: the person in some pose before a part of the panorama.

    Args:
        look: look of the person; None for a box without one.
        camera: camera that takes the image.
        rng: generator of pose, place and box.
        crop: share of the person that the box shows; below 1 for bad detections.
        size: (width, height) of the image.
    """
    left = int(rng.integers(PANORAMA[0] - CANVAS[0]))
    scene = camera.panorama.crop((left, 0, left + CANVAS[0], CANVAS[1]))
    if rng.random() < 0.15:
        _place(scene, draw_look(rng), camera, rng, scale=0.6, x=int(rng.choice([-36, 52])), y=42)
    if look is not None:
        _place(scene, look, camera, rng, scale=look.height * rng.uniform(0.93, 1.04), x=int(rng.integers(-4, 5)), y=4)
    width, height = CANVAS
    if crop < 1:
        top, start = rng.uniform(0, 1 - crop) * height, rng.uniform(0, 1 - crop) * width
        box = (start, top, start + crop * width, top + crop * height)
    else:
        top, start = rng.uniform(2, 12), rng.uniform(14, 24)
        box = (start, top, width - rng.uniform(14, 24), height - rng.uniform(0, 8))
    small = scene.resize(size, Image.Resampling.BOX if crop == 1 else Image.Resampling.BILINEAR, box=box)
    return _develop(small.filter(ImageFilter.GaussianBlur(camera.blur)), camera, rng)


def _place(
    scene: Image.Image, look: Look, camera: Camera, rng: np.random.Generator, *, scale: float, x: int, y: int
) -> None:
    """Paste a person with a shadow; `x`, `y` shift the scaled canvas."""
    figure = Figure(look, draw_pose(rng)).draw()
    colours = ImageChops.multiply(figure.convert("RGB"), camera.shade)
    width, height = round(CANVAS[0] * scale), round(CANVAS[1] * scale)
    corner = (x + (CANVAS[0] - width) // 2, y + (CANVAS[1] - height) // 2)
    foot = (corner[0] + width // 2, corner[1] + round(height * 0.92))
    shadow = ImageDraw.Draw(scene, "RGBA")
    shadow.ellipse([foot[0] - 30 * scale, foot[1] - 6, foot[0] + 34 * scale, foot[1] + 8 * scale], fill=(0, 0, 0, 80))
    scene.paste(colours.resize((width, height)), corner, figure.getchannel("A").resize((width, height)))


def _develop(image: Image.Image, camera: Camera, rng: np.random.Generator) -> Image.Image:
    """Apply light, colour cast and noise of the camera, with some change from image to image."""
    pixels = (np.asarray(image, dtype=np.float32) / 255) ** (camera.gamma * rng.uniform(0.92, 1.08))
    pixels *= (camera.gain * rng.uniform(0.9, 1.1)).astype(np.float32)
    pixels += camera.noise * rng.standard_normal(pixels.shape, dtype=np.float32)
    return Image.fromarray((255 * pixels.clip(0, 1) + 0.5).astype(np.uint8))


def _panorama(place: str, rng: np.random.Generator) -> Image.Image:
    """Draw a wide view of a place, hazy and out of focus so that the person in front stands out."""
    edge = int(rng.integers(120, 150))
    wall, ground = _tone(rng, 150), _tone(rng, 125)
    image = Image.new("RGB", PANORAMA, wall)
    pen = ImageDraw.Draw(image)
    pen.rectangle([0, edge, *PANORAMA], fill=ground)
    PLACES[place](pen, edge, ground, rng)
    return Image.blend(image, Image.new("RGB", PANORAMA, HAZE), 0.4).filter(ImageFilter.GaussianBlur(2))


def _bricks(pen: ImageDraw.ImageDraw, edge: int, ground: Colour, rng: np.random.Generator) -> None:
    for row, y in enumerate(range(0, edge, 12)):
        for x in range(-12 * (row % 2), PANORAMA[0], 26):
            pen.rectangle([x, y, x + 24, y + 10], fill=_near((150, 84, 66), rng))


def _park(pen: ImageDraw.ImageDraw, edge: int, ground: Colour, rng: np.random.Generator) -> None:
    width, height = PANORAMA
    pen.rectangle([0, edge, width, height], fill=(84, 112, 66))
    pen.rectangle([0, 0, width, 60], fill=(176, 196, 214))
    for x in range(0, width, 22):
        r, y = rng.uniform(22, 46), rng.uniform(40, edge - 10)
        pen.ellipse([x - r, y - r, x + r, y + r], fill=_near((58, 92, 52), rng))
    pen.polygon([(0, height), (0, 200), (width, 170), (width, 230)], fill=(164, 150, 126))


def _windows(pen: ImageDraw.ImageDraw, edge: int, ground: Colour, rng: np.random.Generator) -> None:
    for x in range(0, PANORAMA[0], 56):
        pen.rectangle([x + 4, 10, x + 50, edge - 6], fill=_near((96, 122, 140), rng))
        pen.line([x + 8, edge - 14, x + 40, 16], fill=(186, 204, 214), width=5)


def _street(pen: ImageDraw.ImageDraw, edge: int, ground: Colour, rng: np.random.Generator) -> None:
    pen.rectangle([0, edge, PANORAMA[0], edge + 18], fill=(150, 148, 142))
    for x in range(0, PANORAMA[0], 90):
        pen.rectangle([x, 206, x + 46, 214], fill=(216, 214, 206))
        pen.rounded_rectangle([x + 8, edge - 46, x + 78, edge - 2], 14, fill=_near(_tone(rng, 120), rng))


def _stalls(pen: ImageDraw.ImageDraw, edge: int, ground: Colour, rng: np.random.Generator) -> None:
    for x in range(0, PANORAMA[0], 72):
        pen.rectangle([x, 64, x + 70, edge + 16], fill=_near((110, 78, 52), rng))
        for stripe in range(0, 70, 20):
            pen.rectangle([x + stripe, 30, x + stripe + 10, 62], fill=(202, 66, 58))
            pen.rectangle([x + stripe + 10, 30, x + stripe + 20, 62], fill=(236, 226, 208))
        for fruit in range(6, 66, 9):
            pen.ellipse([x + fruit, 98, x + fruit + 9, 107], fill=_near(_tone(rng, 150, 70), rng))


def _hall(pen: ImageDraw.ImageDraw, edge: int, ground: Colour, rng: np.random.Generator) -> None:
    width, height = PANORAMA
    for x in range(-height, width, 30):
        pen.line([x, height, x + 140, edge], fill=_near(ground, rng), width=3)
    for y in range(edge, height, 22):
        pen.line([0, y, width, y], fill=_near(ground, rng), width=2)
    for x in range(20, width, 120):
        pen.rectangle([x, 22, x + 52, edge], fill=_near((120, 96, 74), rng))


Draw = Callable[[ImageDraw.ImageDraw, int, Colour, np.random.Generator], None]
PLACES: dict[str, Draw] = {
    "bricks": _bricks,
    "park": _park,
    "windows": _windows,
    "street": _street,
    "stalls": _stalls,
    "hall": _hall,
}


def _tone(rng: np.random.Generator, level: float, spread: float = 22) -> Colour:
    red, green, blue = np.clip(level + rng.uniform(-spread, spread, 3), 0, 255).astype(int).tolist()
    return red, green, blue


def _near(colour: Colour, rng: np.random.Generator) -> Colour:
    red, green, blue = np.clip(np.array(colour) * rng.uniform(0.85, 1.12), 0, 255).astype(int).tolist()
    return red, green, blue
