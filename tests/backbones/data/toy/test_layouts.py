import hashlib

import numpy as np
import PIL
import pytest

from backbones.data.classification import open_classification
from backbones.data.spec import resolve_dataset
from backbones.data.toy.coloured_digits import IMAGES_PER_CLASS, toy_images
from backbones.data.toy.layouts import TOYS, WRITERS


@pytest.mark.parametrize("name", TOYS)
def test_the_shipped_set(name, private_cache):
    data = open_classification(resolve_dataset(name), None)
    classes = 8 if name == "toy_colorectal" else 10
    assert (data.storage, data.counts["ignored"], len(data.classes)) == ("published", 0, classes)
    assert data.train.read(0).size == (32, 32)
    assert np.bincount(data.train.labels, minlength=classes).min() >= 10
    assert np.bincount(data.val.labels, minlength=classes).min() >= 1
    toys = [path.name for path in private_cache.iterdir() if path.name.startswith("toy")]
    assert toys == [f"{name}-1-pillow{PIL.__version__}"]


def test_every_digit_lies_in_one_set_only():
    from sklearn.datasets import load_digits

    total, seen = 0, set()
    for name, count in IMAGES_PER_CLASS.items():
        images = list(toy_images(name))
        assert {one.digit: one.number for one in images}.keys() <= set(range(10))
        assert len(images) == count * (8 if name == "colorectal" else 10)
        total += len(images)
        seen |= {(one.digit, one.place) for one in images}
    assert len(seen) == total <= len(load_digits().target)


def test_the_images_are_the_digits_in_two_colours():
    from sklearn.datasets import load_digits

    digits = load_digits()
    for one in list(toy_images("pets"))[::37]:
        source = digits.images[digits.target == one.digit][one.place]
        grey = np.asarray(one.image.convert("L").resize((8, 8)), dtype=float)
        assert np.corrcoef(grey.ravel(), source.ravel())[0, 1] > 0.95
    colours = {one.image.getpixel((0, 0)) for one in toy_images("pets")}
    assert len(colours) > 150


@pytest.mark.parametrize("name", ["cars", "cifar100"])
def test_the_same_is_written_every_time(name, tmp_path):
    """Every byte of every file, MATLAB's and the pickles included."""
    written = []
    for turn in ("one", "two"):
        root = tmp_path / turn
        root.mkdir()
        WRITERS[name](root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        written.append({str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files})
    assert written[0] == written[1]
    assert len(written[0]) >= 3
