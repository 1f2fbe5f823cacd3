import PIL
import pytest

from transfer.core.cache import make_once
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset


def test_the_shipped_set(private_cache):
    data = open_classification(resolve_dataset("toy_digits"), None)
    assert data.classes == tuple("0123456789")
    assert data.counts["train"]["images"] + data.counts["val"]["images"] == 1797
    assert (data.notes, data.train.read(0).size) == ((), (32, 32))
    toys = [folder.name for folder in private_cache.iterdir() if folder.name.startswith("toy")]
    assert toys == [f"toy_digits-1-pillow{PIL.__version__}"]


def test_made_once_for_each_version_of_pillow(monkeypatch):
    """Another JPEG compressor and resizing give other pixels, and one run would have two results."""
    written = []
    here = make_once("toy", written.append)
    assert make_once("toy", written.append) == here
    monkeypatch.setattr(PIL, "__version__", "0.0")
    assert make_once("toy", written.append) != here
    assert len(written) == 2


def test_an_interrupted_writing_leaves_nothing(private_cache):
    def full(root):
        (root / "train").mkdir()
        raise OSError("No space left on device")

    with pytest.raises(UserError, match=r"cannot be made in .*No space left.*XDG_CACHE_HOME"):
        make_once("toy", full)
    assert list(private_cache.iterdir()) == []
