"""Handwritten digits of scikit-learn as a folder of images, and in the layouts of published sets, without any download.

In these layouts there are ten classes, "zero" to "nine", of 20 images, of which 14 are for training where a list says
so. The eight classes of colorectal histology are eight of the digits; Caltech-101 takes 38 images a class, as it needs
more than 30. Each digit has two colors of its own, and lies in one of the sets only, so that the sets are as different
as so few writers allow. And drawn JPEG files of the size of photographs, to measure how fast images are read.
"""

import functools
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.data.layouts import CUB_LISTS, TISSUES

DIGIT_SIDE = 32
VALIDATION_INTERVAL = 5
"""Each fifth image of a class is for validation."""


def write_digits(root: Path) -> None:
    """Write 1,797 images of 8 x 8 into `train/` and `val/`, scaled up to 32 x 32 RGB.

    They are UCI's Optical Recognition of Handwritten Digits, the part written by 13 people, who are not told apart, so
    that training and validation share them.
    """
    for digit, images in enumerate(_digits()):
        for number, pixels in enumerate(images):
            folder = root / ("val" if number % VALIDATION_INTERVAL == VALIDATION_INTERVAL - 1 else "train") / str(digit)
            save(enlarge(pixels).convert("RGB"), folder / f"{number:04d}.png")


def enlarge(pixels: NDArray[Any]) -> Image.Image:
    """Return counts of set pixels, 0..16 [8, 8], as a grey image of 32 x 32."""
    grey = Image.fromarray((pixels * 255 / 16 + 0.5).astype(np.uint8))
    return grey.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BICUBIC)


def draw_jpegs(count: int, width: int, height: int) -> list[bytes]:
    """Return JPEG files of smooth colors with some noise, with some 0.5 bytes per pixel as those of ImageNet."""
    generator, files = np.random.default_rng(0), []
    for _ in range(count):
        colors = Image.fromarray(generator.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
        smooth = np.asarray(colors.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
        noisy = (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        stream = io.BytesIO()
        Image.fromarray(noisy).save(stream, "JPEG", quality=85)
        files.append(stream.getvalue())
    return files


TISSUE_DIGITS = (0, 1, 3, 4, 5, 6, 7, 9)
"""The digits with most images; the others have too few left for the set of eight tissues."""
PERIOD, TRAIN_IMAGES = 20, 14


class ToyImage(NamedTuple):
    """One image of a set."""

    digit: int
    number: int
    """From 0, within its class and set."""
    image: Image.Image

    @property
    def for_training(self) -> bool:
        """Whether lists put it into training."""
        return self.number % PERIOD < TRAIN_IMAGES


def toy_images(name: str) -> Iterator[ToyImage]:
    """Yield the images of the set `name` of `WRITERS`, by class."""
    digits, sets = _digits(), [*WRITERS]
    turn = sets.index(name)
    for digit in TISSUE_DIGITS if name == "colorectal" else range(10):
        start = PERIOD * sum(other != "colorectal" or digit in TISSUE_DIGITS for other in sets[:turn])
        for number, pixels in enumerate(digits[digit][start : start + (38 if name == sets[-1] else PERIOD)]):
            rng = np.random.default_rng([1, turn, digit, number])
            yield ToyImage(digit, number, _color(enlarge(pixels), rng))


@functools.cache
def _digits() -> list[NDArray[Any]]:
    """Return the images of each digit, [M, 8, 8]; read once for the sets of a run."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return [digits.images[digits.target == digit] for digit in range(10)]


def _color(grey: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a light digit on a dark ground."""
    light, dark = rng.integers(150, 256, 3), rng.integers(0, 106, 3)
    share = np.asarray(grey, dtype=np.float64)[:, :, None] / 255
    return Image.fromarray((dark + (light - dark) * share + 0.5).astype(np.uint8))


def save(image: Image.Image, path: Path, quality: int = 95) -> None:
    """Write an image in the format that the suffix names, a JPEG in this quality."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **dict[str, Any]({"quality": quality} if path.suffix == ".jpg" else {}))


DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def _write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _mixed(images: list[ToyImage]) -> list[ToyImage]:
    """Return images in an order in which classes are mixed."""
    return [images[place] for place in np.random.default_rng(1).permutation(len(images))]


def _write_cub200(root: Path) -> None:
    folders = [f"{digit + 1:03d}.{name.capitalize()}" for digit, name in enumerate(DIGIT_NAMES)]
    rows = list[tuple[str, int, int]]()
    for number, image in enumerate(toy_images("cub200"), start=1):
        path = f"{folders[image.digit]}/{DIGIT_NAMES[image.digit].capitalize()}_{image.number + 1:04d}_{number}.jpg"
        save(image.image, root / "images" / path)
        rows.append((path, image.digit + 1, int(image.for_training)))
    for title, values in zip(CUB_LISTS, (*zip(*rows), folders)):
        _write_lines(root / title, [f"{number} {value}" for number, value in enumerate(values, start=1)])


def _write_cars(root: Path) -> None:
    """Write images numbered from 1 in each folder, classes mixed."""
    from scipy.io import savemat

    listed: dict[str, list[tuple[int, str]]] = {"train": [], "test": []}
    for image in _mixed(list(toy_images("cars"))):
        part = "train" if image.for_training else "test"
        name = f"{len(listed[part]) + 1:05d}.jpg"
        listed[part].append((image.digit + 1, name))
        save(image.image, root / f"cars_{part}" / name)
    devkit, labelled = root / "devkit", np.dtype([("class", object), ("fname", object)])
    devkit.mkdir()
    for path, part in ((devkit / "cars_train_annos.mat", "train"), (root / "cars_test_annos_withlabels.mat", "test")):
        savemat(path, {"annotations": np.array(listed[part], dtype=labelled)[None]})
    savemat(devkit / "cars_meta.mat", {"class_names": np.array(DIGIT_NAMES, dtype=object)[None]})


def _write_cifar100(root: Path) -> None:
    """Write the pickles, without coarse classes."""
    everything = list(toy_images("cifar100"))
    for file, trained in (("train", True), ("test", False)):
        part = _mixed([image for image in everything if image.for_training is trained])
        content: dict[str, Any] = {
            "fine_labels": [image.digit for image in part],
            "data": np.stack([np.asarray(image.image).transpose(2, 0, 1).reshape(-1) for image in part]),
        }
        (root / file).write_bytes(pickle.dumps(content, protocol=2))
    (root / "meta").write_bytes(pickle.dumps({"fine_label_names": list(DIGIT_NAMES)}, protocol=2))


def _write_dtd(root: Path) -> None:
    """Write the first partition: images 0 to 11 of a class are for training, 12 and 13 for validation."""
    listed: dict[str, list[str]] = {}
    for image in toy_images("dtd"):
        path = f"{DIGIT_NAMES[image.digit]}/{DIGIT_NAMES[image.digit]}_{image.number + 1:04d}.jpg"
        save(image.image, root / "images" / path)
        part = "train" if image.number < TRAIN_IMAGES - 2 else "val" if image.number < TRAIN_IMAGES else "test"
        listed.setdefault(part, []).append(path)
    for part, lines in listed.items():
        _write_lines(root / "labels" / f"{part}1.txt", sorted(lines))


def _write_colorectal(root: Path) -> None:
    for number, image in enumerate(toy_images("colorectal")):
        slide = f"{10_000 + number:X}_CRC-Prim-HE-{number % 10 + 1:02d}_{image.number + 1:03d}"
        folder = root / TISSUES[TISSUE_DIGITS.index(image.digit)]
        save(image.image, folder / f"{slide}.tif_Row_1_Col_{150 * number + 1}.tif")


def _write_pets(root: Path) -> None:
    """Write cats, which are even digits with capitalised names, and dogs, the odd ones, each digit a breed."""
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    for image in toy_images("pets"):
        dog = image.digit % 2
        name = f"{DIGIT_NAMES[image.digit] if dog else DIGIT_NAMES[image.digit].capitalize()}_{image.number + 1}"
        save(image.image, root / "images" / f"{name}.jpg")
        part = "trainval" if image.for_training else "test"
        lists[part].append(f"{name} {image.digit + 1} {dog + 1} {image.digit // 2 + 1}")
    for title, lines in lists.items():
        _write_lines(root / "annotations" / f"{title}.txt", lines)


def _write_uc_merced(root: Path) -> None:
    for image in toy_images("uc_merced"):
        name = DIGIT_NAMES[image.digit]
        save(image.image, root / "Images" / name / f"{name}{image.number:02d}.tif")


def _write_caltech101(root: Path) -> None:
    for image in toy_images("caltech101"):
        folder = root / "101_ObjectCategories" / ("BACKGROUND_Google" if image.digit == 0 else DIGIT_NAMES[image.digit])
        save(image.image, folder / f"image_{image.number + 1:04d}.jpg")


WRITERS: dict[str, Callable[[Path], None]] = {
    "cub200": _write_cub200,
    "cars": _write_cars,
    "cifar100": _write_cifar100,
    "dtd": _write_dtd,
    "colorectal": _write_colorectal,
    "pets": _write_pets,
    "uc_merced": _write_uc_merced,
    "caltech101": _write_caltech101,
}
"""They take the images of a digit one after the other, 20 each; the last takes 38."""
