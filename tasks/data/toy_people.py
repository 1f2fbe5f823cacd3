"""Drawn people in the layouts of Market-1501 and MSMT17: small data sets for trying things, without any download.

They are written once into the cache folder as JPEG files under the names of the real sets, so that the real parsers
read them. What identifies a person is clothes, hair, bag and build; pose, viewpoint and box change from image to image,
background, light and colours with the camera.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from backbones.data.cache import make_once
from tasks.data.toy_figure import Look, draw_look
from tasks.data.toy_scene import Camera, make_camera, photograph

DRAWING = 1
"""Version of the drawing, raised with every change: results on other drawings are results on another data set."""
TIMES = ("morning", "noon", "afternoon")


@dataclass(frozen=True)
class Size:
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


def toy_market() -> Path:
    """Return the folder of the toy Market-1501, drawn on first use. Raises UserError when it cannot be written."""
    return _once("toy_market", MARKET, _write_market)


def toy_msmt17() -> Path:
    """Return the folder of the toy MSMT17 (layout of V1, with `list_val.txt`), as `toy_market` does."""
    return _once("toy_msmt17", MSMT, _write_msmt17)


GENERATORS: dict[str, Callable[[], Path]] = {"toy_market": toy_market, "toy_msmt17": toy_msmt17}


def _once(name: str, size: Size, write: Callable[[Path, Size], None]) -> Path:
    key = hashlib.sha256(repr((DRAWING, sorted(asdict(size).items()))).encode()).hexdigest()[:12]
    return make_once(f"{name}-{key}", lambda folder: write(folder, size))


@dataclass(frozen=True)
class _Shot:
    """One image to draw: index of the person's look, index of the camera, number among their images."""

    person: int
    camera: int
    number: int


def _shots(size: Size) -> tuple[list[Look], list[Camera], list[list[_Shot]]]:
    """Return all looks, the cameras, and each person's images."""
    rng = np.random.default_rng([size.seed, 0])
    cameras = [make_camera(number, rng) for number in range(1, size.cameras + 1)]
    looks = [draw_look(rng) for _ in range(size.train + size.test)]
    shots = []
    for person in range(len(looks)):
        seen_by = rng.choice(size.cameras, size.seen_by, replace=False).tolist()
        pairs = [(camera, number) for camera in seen_by for number in range(size.shots)]
        shots.append([_Shot(person, camera, number) for camera, number in pairs])
    return looks, cameras, shots


def _rng(size: Size, *key: int) -> np.random.Generator:
    return np.random.default_rng([size.seed, 1, *key])


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    image.save(path, quality=90)


def _market_name(identity: int, camera: int, rng: np.random.Generator, box: int) -> str:
    label = f"{identity:04d}" if identity >= 0 else str(identity)
    return f"{label}_c{camera + 1}s{rng.integers(1, 4)}_{rng.integers(1, 100_000):06d}_{box:02d}.jpg"


def _write_market(root: Path, size: Size) -> None:
    """Draw Market-1501: queries come from two cameras; junk shows parts of people, distractors parts or nobody."""
    looks, cameras, everybody = _shots(size)
    identities = np.random.default_rng(size.seed).permutation(len(looks)) + 1
    for person, shots in enumerate(everybody):
        test = person >= size.train
        identity = int(identities[person])
        for shot in shots:
            rng = _rng(size, shot.person, shot.camera, shot.number)
            image = photograph(looks[person], cameras[shot.camera], rng)
            folder = "bounding_box_test" if test else "bounding_box_train"
            _save(image, root / folder / _market_name(identity, shot.camera, rng, shot.number + 1))
        for query in (shots[0], shots[-1]) if test else ():
            rng = _rng(size, query.person, query.camera, size.shots)
            image = photograph(looks[person], cameras[query.camera], rng)
            _save(image, root / "query" / _market_name(identity, query.camera, rng, 0))
    for number in range(size.distractors + size.junk):
        rng = _rng(size, len(looks), number)
        camera = number % size.cameras
        junk = number >= size.distractors
        look = looks[size.train + number % size.test] if junk else draw_look(rng) if number % 2 else None
        image = photograph(look, cameras[camera], rng, crop=rng.uniform(0.4, 0.7))
        name = _market_name(-1 if junk else 0, camera, rng, number % 10)
        _save(image, root / "bounding_box_test" / name)


def _write_msmt17(root: Path, size: Size) -> None:
    """Draw MSMT17: boxes of varying size; training and test identities both count from 0, as in the real lists."""
    looks, cameras, everybody = _shots(size)
    lists: dict[str, list[str]] = {"train": [], "val": [], "query": [], "gallery": []}
    for person, shots in enumerate(everybody):
        test = person >= size.train
        identity = person - size.train if test else person
        for position, (shot, split) in enumerate(zip(shots, _msmt17_splits(len(shots), test), strict=True)):
            rng = _rng(size, shot.person, shot.camera, shot.number)
            box = (int(rng.integers(52, 72)), int(rng.integers(120, 150)))
            image = photograph(looks[person], cameras[shot.camera], rng, size=box)
            time = f"{rng.integers(1, 13):02d}{rng.integers(1, 29):02d}{TIMES[rng.integers(3)]}"
            name = f"{identity:04d}_{position:03d}_{shot.camera + 1:02d}_{time}_{rng.integers(10_000):04d}_0.jpg"
            (root / ("test" if test else "train")).mkdir(exist_ok=True)
            _save(image, root / ("test" if test else "train") / f"{identity:04d}" / name)
            lists[split].append(f"{identity:04d}/{name} {identity}\n")
    for split, lines in lists.items():
        (root / f"list_{split}.txt").write_text("".join(lines), encoding="utf-8")


def _msmt17_splits(shots: int, test: bool) -> Iterator[str]:
    """Yield the split of each image: a person's last training image is validation, first and last test image query."""
    for position in range(shots):
        if test:
            yield "query" if position in (0, shots - 1) else "gallery"
        else:
            yield "val" if position == shots - 1 else "train"
