import hashlib

import numpy as np
import PIL
import pytest
from PIL import Image

from backbones.data.spec import resolve_dataset
from tasks.data.coco import open_coco
from tasks.data.toy_coco import _write

FOLDER = f"toy_coco-1-pillow{PIL.__version__}"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    _write(folder)
    return folder


@pytest.fixture
def data(root, cache):
    cache.mkdir(parents=True)
    (cache / FOLDER).symlink_to(root)
    return open_coco(resolve_dataset("toy_coco"), None)


def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).digest()) for path in files]


def filled(segmentation, height, width):
    """Pixels whose centre lies within a polygon (even-odd rule), or that a run-length encoding sets."""
    if isinstance(segmentation, dict):
        counts = segmentation["counts"]
        flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return flat.reshape(width, height).T
    x, y = np.array(segmentation[0], dtype=float).reshape(-1, 2).T
    inside = np.zeros((height, width), dtype=bool)
    rows, columns = np.mgrid[:height, :width] + 0.5
    for place in range(len(x)):
        crosses = (y[place - 1] > rows) != (y[place] > rows)
        if y[place - 1] != y[place]:
            at = x[place - 1] + (rows - y[place - 1]) * (x[place] - x[place - 1]) / (y[place] - y[place - 1])
            inside ^= crosses & (columns < at)
    return inside


def test_shipped_facts_hold(data):
    """`open_coco` compares what was drawn with the counts of the YAML file."""
    assert data.masks
    assert data.category_ids == (1, 2, 3, 5, 6, 8, 11, 12, 15, 16)
    assert data.classes[:2] == ("zero", "one")
    assert {name: count for name, count in data.dropped["train"].items() if count} == {"crowds": 12}


@pytest.mark.parametrize("name", ["train", "val"])
def test_masks_fit_boxes_and_what_is_drawn(data, name):
    """Each mask fills its box and area, and its rim is darker than the ground around it."""
    split, darker = getattr(data, name), []
    pixels = {
        index: np.asarray(Image.open(split.path(index)).convert("L"), dtype=float) for index in range(len(split.images))
    }
    for row, segmentation in enumerate(split.segmentations):
        grey = pixels[int(split.image[row])]
        mask = filled(segmentation, *grey.shape)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
        assert split.boxes[row].tolist() == box
        assert split.areas[row] == mask.sum()
        grown = np.zeros_like(mask)
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                grown |= np.roll(mask, (down, right), (0, 1))
        edge = mask & np.roll(~mask, 1, 1)
        darker.append(grey[edge].mean() < grey[grown & ~mask].mean())
    assert np.mean(darker) > 0.95


def test_drawing_is_deterministic(root, tmp_path):
    _write(tmp_path)
    assert content(tmp_path) == content(root)
