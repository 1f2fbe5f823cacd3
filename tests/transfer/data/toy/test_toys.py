"""The drawn sets."""

import numpy as np
import PIL
import pytest

from transfer.core.cache import make_once
from transfer.core.errors import UserError
from transfer.data.coco.dataset import open_coco
from transfer.data.coco.split import encoded_mask, mask_library
from transfer.data.spec import dataset_names, resolve_dataset
from transfer.data.toy import scenes
from transfer.data.toy.digits import WRITERS
from transfer.data.toy.people import Size, write_market
from transfer.doctor.datasets import open_any

SMALL = Size(seed=3, train=2, test=2, cameras=3, seen_by=2, shots=1, distractors=2, junk=1)


@pytest.mark.parametrize("name", [name for name in dataset_names() if name.startswith("toy_")])
def test_shipped_facts_hold(name, private_cache):
    """Opening a set compares what is drawn with the counts of its YAML file."""
    data = open_any(resolve_dataset(name), None)
    assert data.notes == ()
    assert [path.name for path in private_cache.glob("toy*")] == [f"{name}-1-pillow{PIL.__version__}"]
    if name.removeprefix("toy_") in WRITERS:
        assert np.bincount(data.train.labels).min() >= 10
    for query in getattr(data, "query", ()):
        assert any(one.identity == query.identity and one.camera != query.camera for one in data.gallery)


@pytest.mark.parametrize("write", [WRITERS["cifar100"], scenes.write_scenes, lambda root: write_market(root, SMALL)])
def test_the_same_is_written_every_time(write, tmp_path):
    written = []
    for root in (tmp_path / "one", tmp_path / "two"):
        root.mkdir()
        write(root)
        written.append({path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()})
    assert written[0] == written[1]
    assert len(written[0]) >= 3


def test_a_writing_is_done_once_and_an_interrupted_one_leaves_nothing(private_cache):
    def full(root):
        (root / "train").mkdir()
        raise OSError("No space left on device")

    with pytest.raises(UserError, match=r"cannot be made in .*No space left.*XDG_CACHE_HOME"):
        make_once("toy", full)
    assert list(private_cache.iterdir()) == []
    written = []
    assert make_once("toy", written.append) == make_once("toy", written.append)
    assert len(written) == 1


def test_masks_fill_boxes_and_areas():
    split = open_coco(resolve_dataset("toy_coco"), None).train
    for row, segmentation in enumerate(split.segmentations):
        image = split.images[int(split.image[row])]
        mask = mask_library().decode(encoded_mask(segmentation, image.height, image.width)).astype(bool)
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        box = [columns[0], rows[0], columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1]
        assert split.boxes[row].tolist() == box
        assert split.areas[row] == mask.sum()
