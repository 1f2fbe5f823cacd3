import numpy as np
import PIL
import pytest
from sklearn.datasets import load_digits

from backbones.data.classification import open_classification
from backbones.data.spec import resolve_dataset
from backbones.data.toy import digits
from backbones.errors import UserError


def test_the_shipped_set(private_cache):
    data = open_classification(resolve_dataset("toy_digits"), None)
    assert data.classes == tuple("0123456789")
    assert data.counts["train"]["images"] + data.counts["val"]["images"] == 1797
    assert data.train.read(0).size == (32, 32)
    toys = [folder.name for folder in private_cache.iterdir() if folder.name.startswith("toy")]
    assert toys == [f"toy_digits-1-pillow{PIL.__version__}"]


def test_images_are_the_digits_scaled_up():
    root = digits.toy_digits()
    theirs = load_digits()
    sevens = theirs.images[theirs.target == 7]
    from PIL import Image

    for number, folder in ((0, "train"), (3, "train"), (4, "val"), (5, "train")):
        with Image.open(root / folder / "7" / f"{number:04d}.png") as image:
            pixels = np.asarray(image.convert("L").resize((8, 8), Image.Resampling.BOX), dtype=float)
        assert np.corrcoef(pixels.ravel(), sevens[number].ravel())[0, 1] > 0.95


def test_made_once_and_the_same_again(private_cache):
    first = open_classification(resolve_dataset("toy_digits"), None)
    folder = digits.toy_digits()
    stamp = folder.stat().st_mtime_ns
    assert digits.toy_digits().stat().st_mtime_ns == stamp
    content = first.train.encoded(100)
    folder.rename(private_cache / "old")
    second = open_classification(resolve_dataset("toy_digits"), None)
    assert second.digest == first.digest
    assert second.train.encoded(100) == content


def test_what_another_pillow_drew_is_not_taken(private_cache, monkeypatch):
    """Its JPEG compressor and its resizing give other pixels, and one run would have two results."""
    here = digits.toy_digits()
    monkeypatch.setattr(PIL, "__version__", "0.0")
    assert digits.toy_digits() != here
    assert digits.toy_digits().parent == here.parent


def test_an_interrupted_writing_leaves_nothing(private_cache, monkeypatch):
    class Full(OSError):
        pass

    def full(root):
        (root / "train").mkdir()
        raise Full("No space left on device")

    monkeypatch.setattr(digits, "_write", full)
    with pytest.raises(UserError, match=r"cannot be made in .*No space left.*XDG_CACHE_HOME"):
        digits.toy_digits()
    assert list(private_cache.iterdir()) == []
