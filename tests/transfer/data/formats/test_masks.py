"""Images with masks: layouts by the keys of the YAML, and what is wrong with them."""

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
    for split, numbers in (("train", (0, 1, 2)), ("val", (3, 4))):
        for number in numbers:
            noise = np.random.default_rng(number).integers(0, 256, (2, 4, 3), dtype=np.uint8)
            drawn = Image.fromarray(np.array(mask, np.uint8))
            if mode == "P":
                drawn.putpalette(bytes(range(256)) * 3)
            drawn = drawn.convert(mode) if mode == "RGB" else drawn
            for form, image, suffix in ((images, Image.fromarray(noise), "jpg"), (masks, drawn, "png")):
                path = root / form.format(split) / f"a{number}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.save(path)
    return root


def opened(root: Path, **given: Any) -> Any:
    options = {key: given.pop(key) for key in ("subset", "drop_corrupt") if key in given}
    return open_classification(spec("masks", root, **given), None, **options)


def test_plain_folders_name_classes_by_a_file_or_by_numbers(tmp_path: Path) -> None:
    data: Any = open_classification(resolve_dataset(str(write(tmp_path))), None)
    assert data.classes == ("0", "1", "2")
    assert data.counts["val"] == {"images": 2, "classes": 3}
    assert np.asarray(data.training.mask(1)).tolist() == MASK
    (tmp_path / "classes.txt").write_text("soil\nleaf\nroot\n")
    assert (
        opened(tmp_path).classes
        == opened(tmp_path, classes=["soil", "leaf", "root"]).classes
        == ("soil", "leaf", "root")
    )
    assert len(opened(tmp_path, subset=1).training.masks) == 1


def test_ade20k_begins_at_one(tmp_path: Path) -> None:
    keys = {"images": "images/{}", "masks": "annotations/{}", "classes": 2, "first": 1}
    data = opened(write(tmp_path, masks="annotations/{}"), **keys)
    assert data.classes == ("1", "2")
    assert np.asarray(data.training.mask(0)).tolist() == [[255, 0, 1, 255], [255, 0, 0, 255]]
    shifted = opened(tmp_path, **keys | {"classes": 3, "first": 0})
    assert shifted.digest != data.digest


def test_voc_has_lists_and_palettes(tmp_path: Path) -> None:
    write(tmp_path, "JPEGImages", "SegmentationClass", mode="P")
    (tmp_path / "lists").mkdir()
    for name, lines in (("train", "a0\na2\n"), ("val", "a4\n")):
        (tmp_path / "lists" / f"{name}.txt").write_text(lines)
    data = opened(tmp_path, images="JPEGImages", masks="SegmentationClass", lists="lists/{}.txt", classes=3)
    assert list(data.training.names) == ["a0.jpg", "a2.jpg"]
    assert np.asarray(data.validation.mask(0)).tolist() == MASK


def test_a_class_without_pixels_is_noted(tmp_path: Path) -> None:
    data = opened(write(tmp_path), classes=["soil", "leaf", "root", "stone"])
    assert data.notes == ("evaluated on images/val", "val: no image of 1 of 4 classes: stone")


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "size": ({"mask": [[0, 1]]}, {}, r"masks/train/a0.png: 2 x 1 pixels, its image .*a0.jpg 4 x 2; save the mask"),
    "value": ({}, {"classes": 2}, r"masks/train/a0.png: value 2 is none of the classes 0 to 1; correct the mask"),
    "colors": (
        {"mode": "RGB"},
        {"classes": 3},
        r"a0.png: cannot be read as an image \(mode RGB; a mask has one channel",
    ),
    "classes": ({}, {"classes": ["a", "a"]}, r"mine: `classes` are a, a; in its YAML they must be between 2 and 254"),
    "first": ({}, {"first": "1"}, r"mine: `first` is '1'"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_named(kind: str, tmp_path: Path) -> None:
    written, keys, said = WRONG[kind]
    with pytest.raises(UserError, match=said):
        opened(write(tmp_path, **written), **keys)


def test_missing_and_doubtful_files_are_named(tmp_path: Path) -> None:
    (write(tmp_path) / "masks/val/a3.png").unlink()
    with pytest.raises(UserError, match=r"masks/val: 1 of 2 val images have no mask here: a3; add it"):
        opened(tmp_path)
    (tmp_path / "images/train/a0.png").write_bytes((tmp_path / "masks/train/a0.png").read_bytes())
    with pytest.raises(UserError, match=r"images/train: other images have the same name.*a0.jpg; remove one"):
        opened(tmp_path)


def test_a_damaged_mask_is_left_out_on_request(tmp_path: Path) -> None:
    file = write(tmp_path) / "masks/train/a1.png"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match=r"1 of 3 images cannot be read.*\n.*a1.png"):
        opened(tmp_path)
    assert opened(tmp_path, drop_corrupt=True).counts["train"]["images"] == 2
