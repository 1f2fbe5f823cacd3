import numpy as np
import PIL
import pytest

from tests.transfer.data.layouts import content
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset
from transfer.data.toy import coco
from transfer.data.toy.digits import TOYS, WRITERS
from transfer.data.toy.people import Size, write_market

SMALL = Size(seed=3, train=2, test=2, cameras=3, seen_by=2, shots=1, distractors=2, junk=1)


@pytest.mark.parametrize("name", TOYS)
def test_the_shipped_set(name, private_cache):
    data = open_classification(resolve_dataset(name), None)
    classes = 8 if name == "toy_colorectal" else 10
    assert (data.storage, data.counts["ignored"], len(data.classes)) == ("published", 0, classes)
    assert (data.notes, data.train.read(0).size) == ((), (32, 32))
    assert np.bincount(data.train.labels, minlength=classes).min() >= 10
    assert np.bincount(data.val.labels, minlength=classes).min() >= 1
    toys = [path.name for path in private_cache.iterdir() if path.name.startswith("toy")]
    assert toys == [f"{name}-1-pillow{PIL.__version__}"]


@pytest.mark.parametrize(
    "write", [WRITERS["cars"], WRITERS["cifar100"], coco._write, lambda root: write_market(root, SMALL)]
)
def test_the_same_is_written_every_time(write, tmp_path):
    """Every byte of every file, MATLAB's and the pickles included."""
    written = []
    for root in (tmp_path / "one", tmp_path / "two"):
        root.mkdir()
        write(root)
        written.append(content(root))
    assert written[0] == written[1]
    assert len(written[0]) >= 3
