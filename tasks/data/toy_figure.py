"""Drawings of people: clothes and build are a `Look`; pose and viewpoint change from image to image.

Coordinates are pixels of a canvas of `CANVAS` (width, height); `s` is -1 for a limb on the left of the image, else 1.
"""

from dataclasses import dataclass
from math import cos, sin

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]
CANVAS = (128, 256)

SKIN: list[Colour] = [(241, 205, 178), (224, 178, 140), (190, 138, 100), (141, 92, 62), (92, 60, 44)]
HAIR: list[Colour] = [(28, 24, 24), (62, 42, 32), (110, 74, 46), (176, 134, 80), (148, 146, 146), (120, 48, 30)]
CLOTH: list[Colour] = [
    (34, 36, 42),
    (236, 236, 232),
    (128, 130, 134),
    (176, 42, 48),
    (36, 74, 142),
    (112, 164, 210),
    (40, 112, 74),
    (222, 186, 62),
    (206, 112, 44),
    (124, 70, 138),
    (226, 150, 170),
    (116, 86, 60),
]
LEGS: list[Colour] = [(30, 32, 38), (52, 70, 108), (92, 116, 156), (134, 126, 108), (92, 62, 48), (208, 204, 194)]
HAIRCUTS = ("short", "long", "bun", "bald", "cap")
PATTERNS = ("plain", "hoops", "stripes", "checks", "dots", "halves", "print", "jacket")
LOWERS = ("trousers", "trousers", "shorts", "skirt")
BAGS = ("none", "backpack", "handbag", "satchel")


@dataclass(frozen=True)
class Look:
    """Appearance of a person, the same in all images."""

    skin: Colour
    hair: Colour
    shirt: Colour
    accent: Colour
    legs: Colour
    shoes: Colour
    bag_colour: Colour
    haircut: str
    pattern: str
    sleeves: bool
    lower: str
    bag: str
    width: float
    height: float


def draw_look(rng: np.random.Generator) -> Look:
    """Draw a random look. Few colours and many combinations: two people often share a shirt or trousers."""
    shirt, accent = rng.choice(len(CLOTH), 2, replace=False)
    return Look(
        skin=SKIN[rng.integers(len(SKIN))],
        hair=HAIR[rng.integers(len(HAIR))],
        shirt=CLOTH[shirt],
        accent=CLOTH[accent],
        legs=LEGS[rng.integers(len(LEGS))],
        shoes=CLOTH[rng.integers(4)],
        bag_colour=CLOTH[rng.integers(len(CLOTH))],
        haircut=HAIRCUTS[rng.integers(len(HAIRCUTS))],
        pattern=PATTERNS[rng.integers(len(PATTERNS))],
        sleeves=bool(rng.random() < 0.6),
        lower=LOWERS[rng.integers(len(LOWERS))],
        bag=BAGS[rng.integers(len(BAGS))],
        width=float(rng.uniform(0.8, 1.06)),
        height=float(rng.uniform(0.9, 1.04)),
    )


@dataclass(frozen=True)
class Pose:
    """Pose of a person in one image; angles in radians from straight down."""

    facing: int
    """Direction of walking: 0 towards the camera, 1 away from it, 2 to the left, 3 to the right."""
    stride: float
    swing: float
    elbow: float
    shift: float

    @property
    def side(self) -> int:
        """Return -1 for a person walking to the left, 1 to the right, 0 seen from the front or the back."""
        return {2: -1, 3: 1}.get(self.facing, 0)


def draw_pose(rng: np.random.Generator) -> Pose:
    facing = int(rng.integers(4))
    stride = rng.uniform(-0.5, 0.5) if facing > 1 else rng.uniform(-0.08, 0.14)
    return Pose(facing, stride, rng.uniform(-0.45, 0.45), rng.uniform(0.05, 0.7), rng.uniform(-3, 3))


class Figure:
    """One person on a transparent canvas, drawn from the far side to the near side."""

    def __init__(self, look: Look, pose: Pose) -> None:
        self.look, self.pose = look, pose
        self.image = Image.new("RGBA", CANVAS)
        self.pen = ImageDraw.Draw(self.image)
        self.half = (12 if pose.side else 20) * look.width
        self.middle = CANVAS[0] / 2 + pose.shift

    def draw(self) -> Image.Image:
        far, near = (-1, 1) if self.pose.stride < 0 else (1, -1)
        if self.pose.side:
            self.arm(far, 0.75)
        self.leg(far, 0.8)
        self.leg(near, 1.0)
        if self.look.lower == "skirt":
            self.skirt()
        if self.look.bag == "backpack" and self.pose.facing != 1:
            self.backpack()
        self.torso()
        self.head()
        if self.look.bag == "backpack" and self.pose.facing == 1:
            self.backpack()
        if not self.pose.side:
            self.arm(far, 0.9)
        self.arm(near, 1.0)
        if self.look.bag == "satchel":
            self.satchel()
        return self.image

    def limb(self, points: list[Point], widths: list[float], colours: list[Colour]) -> None:
        """Draw a limb of segments with round joints."""
        for start, end, width, colour in zip(points, points[1:], widths, colours, strict=False):
            self.pen.line([start, end], fill=colour, width=round(width))
            for x, y in (start, end):
                self.dot(x, y, width / 2, colour)

    def dot(self, x: float, y: float, radius: float, colour: Colour) -> None:
        self.pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour)

    def leg(self, s: int, light: float) -> None:
        look, pose = self.look, self.pose
        angle = s * pose.stride
        hip = (self.middle + s * (3 if pose.side else 9) * look.width, 140.0)
        knee = _step(hip, 46, angle)
        bend = 0.35 * max(0.0, -angle * pose.side) if pose.side else 0.0
        ankle = _step(knee, 46, angle * 0.8 - pose.side * bend)
        shoe = _dim(look.shoes, light)
        toe = 9 * pose.side if pose.side else 2 * s
        self.limb([ankle, (ankle[0] + toe, ankle[1] + 4)], [11], [shoe])
        cloth, skin = _dim(look.legs, light), _dim(look.skin, light)
        bare = look.lower != "trousers"
        thigh = skin if look.lower == "skirt" else cloth
        self.limb([knee, ankle], [(10 if bare else 14) * look.width], [skin if bare else cloth])
        self.limb([hip, knee], [18 * look.width], [thigh])

    def skirt(self) -> None:
        x, half, flare = self.middle, self.half * 0.85, self.half * 1.25
        self.pen.polygon([(x - half, 130), (x + half, 130), (x + flare, 186), (x - flare, 186)], fill=self.look.legs)

    def arm(self, s: int, light: float) -> None:
        look, pose = self.look, self.pose
        away = 0.0 if pose.side else s * 0.16
        angle = away + (s * pose.swing if pose.side else s * abs(pose.swing) * 0.3)
        shoulder = (self.middle + s * (2 if pose.side else self.half - 2), 74.0)
        elbow = _step(shoulder, 33, angle)
        hand = _step(elbow, 30, angle + (pose.side or -s) * pose.elbow)
        cloth = _dim(look.accent if look.pattern == "halves" else look.shirt, light)
        skin = _dim(look.skin, light)
        self.limb([elbow, hand], [9], [cloth if look.sleeves else skin])
        self.limb([shoulder, elbow], [12 * look.width], [cloth])
        self.dot(*hand, 5, skin)
        if look.bag == "handbag" and light == 1.0:
            x, y = hand
            self.pen.line([(x - 6, y + 14), (x, y), (x + 6, y + 14)], fill=_dim(look.bag_colour, 0.7), width=2)
            self.pen.rounded_rectangle([x - 12, y + 12, x + 12, y + 32], 4, fill=look.bag_colour)

    def torso(self) -> None:
        x, half, waist = self.middle, self.half, self.half * 0.82
        mask = Image.new("L", CANVAS)
        pen = ImageDraw.Draw(mask)
        pen.polygon([(x - half, 72), (x + half, 72), (x + waist, 144), (x - waist, 144)], fill=255)
        pen.rounded_rectangle([x - half, 64, x + half, 92], 9, fill=255)
        self.pen.rectangle([x - 5, 50, x + 5, 68], fill=_dim(self.look.skin, 0.85))
        self.image.paste(self.fabric(), mask=mask)
        if not self.pose.side and self.pose.facing == 0:
            self.pen.polygon([(x - 6, 63), (x + 6, 63), (x, 72)], fill=self.look.skin)

    def fabric(self) -> Image.Image:
        """Return the shirt as a full canvas, which the caller cuts to the torso."""
        look, x = self.look, self.middle
        cloth = Image.new("RGBA", CANVAS, (*look.shirt, 255))
        pen = ImageDraw.Draw(cloth)
        if look.pattern in ("hoops", "checks"):
            for y in range(70, 150, 14):
                pen.rectangle([0, y, CANVAS[0], y + 6], fill=look.accent)
        if look.pattern in ("stripes", "checks"):
            for column in range(-60, 60, 14):
                pen.rectangle(
                    [x + column, 0, x + column + (3 if look.pattern == "checks" else 6), 256], fill=look.accent
                )
        if look.pattern == "dots":
            for y in range(68, 150, 12):
                for column in range(-30 + y % 8, 34, 12):
                    pen.ellipse([x + column - 3, y - 3, x + column + 3, y + 3], fill=look.accent)
        if look.pattern == "halves":
            pen.rectangle([0, 104, *CANVAS], fill=look.accent)
        if look.pattern == "print" and self.pose.facing == 0:
            pen.ellipse([x - 11, 84, x + 11, 106], fill=look.accent)
        if look.pattern == "jacket" and self.pose.facing == 0:
            pen.rectangle([x - 6, 0, x + 6, 256], fill=look.accent)
        return cloth

    def head(self) -> None:
        look, x, side = self.look, self.middle + 2 * self.pose.side, self.pose.side
        hair, back = look.hair, self.pose.facing == 1
        if look.haircut == "long":
            self.pen.rounded_rectangle([x - 13 - 2 * side, 24, x + 13 - 2 * side, 74], 11, fill=_dim(hair, 0.9))
        if look.haircut == "bun":
            self.dot(x - 8 * side, 21, 8, hair)
        self.pen.ellipse([x - 10, 24, x + 10, 56], fill=look.skin)
        if look.haircut != "bald":
            top = look.accent if look.haircut == "cap" else hair
            if back:
                self.pen.ellipse([x - 11, 22, x + 11, 60 if look.haircut == "long" else 53], fill=hair)
            if side:
                self.pen.pieslice([x - 12, 22, x + 12, 56], 90 if side > 0 else 270, 270 if side > 0 else 90, fill=hair)
            self.pen.pieslice([x - 12, 21, x + 12, 54], 180, 360, fill=top)
            if look.haircut == "cap" and not back:
                self.pen.rounded_rectangle([x - 10 + 9 * side, 34, x + 10 + 11 * side, 39], 2, fill=_dim(top, 0.8))
        if not back and not side:
            for eye in (-4, 4):
                self.dot(x + eye, 42, 1.6, (40, 30, 30))

    def backpack(self) -> None:
        x, side, colour = self.middle, self.pose.side, self.look.bag_colour
        if side:
            self.pen.rounded_rectangle([x - 14 - 15 * side, 70, x + 14 - 15 * side, 124], 9, fill=colour)
        elif self.pose.facing == 1:
            self.pen.rounded_rectangle([x - 16, 70, x + 16, 126], 9, fill=colour)
            self.pen.rounded_rectangle([x - 11, 98, x + 11, 120], 4, fill=_dim(colour, 0.75))

    def satchel(self) -> None:
        x, colour = self.middle, self.look.bag_colour
        end = x + (self.half if self.pose.facing != 1 else -self.half)
        self.pen.line([(2 * x - end, 68), (end, 130)], fill=_dim(colour, 0.7), width=4)
        self.pen.rounded_rectangle([end - 12, 124, end + 12, 148], 4, fill=colour)


def _step(start: Point, length: float, angle: float) -> Point:
    return start[0] + length * sin(angle), start[1] + length * cos(angle)


def _dim(colour: Colour, light: float) -> Colour:
    red, green, blue = (round(channel * light) for channel in colour)
    return red, green, blue
