"""Images with masks: layouts by the keys of the YAML, and what is wrong with them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.transfer.data.layouts import spec
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset

MASK = [[0, 1, 2, 255], [0, 1, 1, 0]]


def write(root: Path, images: str = "images/{}", masks: str = "masks/{}", mask: Any = MASK, mode: str = "L") -> Path:
    """Three images to train on and two to score, 4 x 2 pixels each."""
    labels = Image.fromarray(np.array(mask, np.uint8)).convert(mode)
    for split, number in (("train", 0), ("train", 1), ("train", 2), ("val", 3), ("val", 4)):
        image = Image.fromarray(np.random.default_rng(number).integers(0, 256, (2, 4, 3), dtype=np.uint8))
        for form, part, suffix in ((images, image, "jpg"), (masks, labels, "png")):
            path = root / form.format(split) / f"a{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            part.save(path)
    return root


def opened(root: Path, **given: Any) -> Any:
    options = {key: given.pop(key) for key in ("subset", "drop_corrupt") if key in given}
    share = given.pop("held_out", 0.0)
    told = replace(spec("masks", root, **{"classes": 3, **given}), held_out=share)
    return open_classification(told, None, **options)


def test_plain_folders_name_classes_by_a_file_or_by_numbers(tmp_path: Path) -> None:
    data = opened(write(tmp_path))
    assert data.classes == ("0", "1", "2")
    assert data.counts["val"] == {"images": 2, "classes": 3}
    assert np.asarray(data.training.mask(1)).tolist() == MASK
    assert len(opened(tmp_path, subset=1).training.masks) == 1
    (tmp_path / "classes.txt").write_text("soil\nleaf\nroot\n")
    assert open_classification(resolve_dataset(str(tmp_path)), None).classes == ("soil", "leaf", "root")


def test_ade20k_begins_at_one(tmp_path: Path) -> None:
    keys = {"masks": "annotations/{}", "classes": 2}
    data = opened(write(tmp_path, masks="annotations/{}"), **keys, first=1)
    assert data.classes == ("1", "2")
    assert np.asarray(data.training.mask(0)).tolist() == [[255, 0, 1, 255], [255, 0, 0, 255]]
    assert opened(tmp_path, **keys | {"classes": 3}).digest != data.digest


def test_voc_has_lists_and_palettes(tmp_path: Path) -> None:
    write(tmp_path, "JPEGImages", "SegmentationClass", mode="P")
    for name, lines in (("train", "a0\na2\n"), ("val", "a4\n")):
        (tmp_path / f"{name}.txt").write_text(lines)
    data = opened(tmp_path, images="JPEGImages", masks="SegmentationClass", lists="{}.txt")
    assert list(data.training.names) == ["a0.jpg", "a2.jpg"]
    assert np.asarray(data.validation.mask(0)).tolist() == MASK


def test_one_folder_of_pairs_is_divided_by_content(tmp_path: Path) -> None:
    """The held-out images are scored and not trained on; a split of one's own beside them is an error."""
    keys = {"images": "photos", "masks": "labels"}
    write(tmp_path, **keys)
    data = opened(tmp_path, **keys, held_out=0.3)
    assert (len(data.training), len(data.validation), data.held_out) == (3, 2, None)
    assert sorted([*data.training.names, *data.validation.names]) == [f"a{number}.jpg" for number in range(5)]
    assert np.asarray(data.validation.mask(1)).tolist() == MASK
    assert data.notes == ("0.3 of the images are held out as the val split",)
    with pytest.raises(UserError, match=r"needs a validation split, which is missing \(`held_out: 0.2` in its YAML"):
        opened(tmp_path, **keys).needed("val", "segment")
    with pytest.raises(UserError, match="images/val/ is there, and `held_out` makes a val split; remove one"):
        opened(write(tmp_path), held_out=0.3)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "size": ({"mask": [[0, 1]]}, {}, r"masks/train/a0.png: 2 x 1 pixels, its image 4 x 2; save the mask"),
    "value": ({}, {"classes": 2}, r"masks/train/a0.png: 2 is none of the 2 classes; correct it, or `classes`"),
    "colors": ({"mode": "RGB"}, {}, r"a0.png: cannot be read as an image \(mode RGB; a mask has one channel"),
    "classes": ({}, {"classes": ["a", "a"]}, r"mine: `classes` are a, a; set in its YAML between 2 and 254"),
    "no classes": ({}, {"classes": None}, r"mine: `classes` are nothing; .* or write .*/classes.txt, a name a line"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named(kind: str, tmp_path: Path) -> None:
    written, keys, said = WRONG[kind]
    with pytest.raises(UserError, match=said):
        opened(write(tmp_path, **written), **keys)


def test_a_mask_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    file = write(tmp_path) / "masks/train/a1.png"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match=r"1 of 3 images cannot be read.*\n.*a1.png"):
        opened(tmp_path)
    assert opened(tmp_path, drop_corrupt=True).counts["train"]["images"] == 2
    file.unlink()
    with pytest.raises(UserError, match=r"masks/train: 1 of 3 train images have no file here: a1; add it"):
        opened(tmp_path)
