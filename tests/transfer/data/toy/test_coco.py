import numpy as np
import PIL
import pytest
from PIL import Image
from pycocotools import mask as masks
from scipy.ndimage import binary_dilation

from transfer.data.coco.dataset import open_coco
from transfer.data.spec import resolve_dataset
from transfer.data.toy.coco import _write

FOLDER = f"toy_coco-1-pillow{PIL.__version__}"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    _write(folder)
    return folder


@pytest.fixture
def data(root, private_cache):
    private_cache.mkdir(parents=True)
    (private_cache / FOLDER).symlink_to(root)
    return open_coco(resolve_dataset("toy_coco"), None)


def filled(segmentation, height, width):
    encoded = masks.frPyObjects(segmentation, height, width)
    return masks.decode(encoded if isinstance(encoded, dict) else masks.merge(encoded)).astype(bool)


def test_shipped_facts_hold(data):
    """`open_coco` compares what was drawn with the counts of the YAML file."""
    assert data.masks
    assert data.notes == ()
    assert data.category_ids == (1, 2, 3, 5, 6, 8, 11, 12, 15, 16)
    assert data.classes[:2] == ("zero", "one")
    assert {name: count for name, count in data.dropped["train"].items() if count} == {"crowds": 12}


@pytest.mark.parametrize("name", ["train", "val"])
def test_masks_fit_boxes_and_what_is_drawn(data, name):
    """Each mask fills its box and area, and its rim is darker than the ground around it."""
    split, darker = getattr(data, name), []
    pixels = [np.asarray(Image.open(path).convert("L"), dtype=float) for path in split.paths()]
    for row, segmentation in enumerate(split.segmentations):
        grey = pixels[int(split.image[row])]
        mask = filled(segmentation, *grey.shape)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
        assert split.boxes[row].tolist() == box
        assert split.areas[row] == mask.sum()
        grown = binary_dilation(mask, np.ones((3, 3)))
        edge = mask & np.roll(~mask, 1, 1)
        darker.append(grey[edge].mean() < grey[grown & ~mask].mean())
    assert np.mean(darker) > 0.95
