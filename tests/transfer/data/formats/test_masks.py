"""Images with masks: layouts by the keys of the YAML, and what is wrong with them."""

import shutil
import struct
import zlib
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.transfer.data.layouts import spec
from transfer.core.errors import UsageError, UserError
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset

MASK = [[0, 1, 2, 255], [0, 1, 1, 0]]


def write(
    root: Path,
    images: str = "images/{}",
    masks: str = "masks/{}",
    mask: Any = MASK,
    mode: str = "L",
    suffix: str = "png",
) -> Path:
    """Three images to train on and two to score, 4 x 2 pixels each."""
    labels = Image.fromarray(np.array(mask, np.uint8)).convert(mode)
    for split, number in (("train", 0), ("train", 1), ("train", 2), ("val", 3), ("val", 4)):
        image = Image.fromarray(np.random.default_rng(number).integers(0, 256, (2, 4, 3), dtype=np.uint8))
        for form, part, end in ((images, image, "jpg"), (masks, labels, suffix)):
            path = root / form.format(split) / f"a{number}.{end}"
            path.parent.mkdir(parents=True, exist_ok=True)
            part.save(path)
    return root


def opened(root: Path, **given: Any) -> Any:
    options = {key: given.pop(key) for key in ("subset", "drop_corrupt") if key in given}
    told = spec("masks", root, **{"classes": 3, **given})
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
    table = tmp_path / "objectInfo150.txt"
    table.write_text("Idx\tRatio\tName\n1\t0.1576\twall\n2\t0.1072\tbed \n")
    named = opened(tmp_path, **keys, first=1, names=table.name)
    assert (named.classes, named.digest) == (("wall", "bed"), data.digest)
    with pytest.raises(UserError, match=r"objectInfo150.txt: not a table of 3 classes whose last column is `Name`"):
        opened(tmp_path, **keys | {"classes": 3}, names=table.name)


def test_voc_has_lists_and_palettes(tmp_path: Path) -> None:
    write(tmp_path, "JPEGImages", "SegmentationClass", mode="P")
    for name, lines in (("train", "a0\na2\n"), ("val", "a4\n")):
        (tmp_path / f"{name}.txt").write_text(lines)
    data = opened(tmp_path, images="JPEGImages", masks="SegmentationClass", lists="{}.txt")
    assert list(data.training.names) == ["a0.jpg", "a2.jpg"]
    assert np.asarray(data.validation.mask(0)).tolist() == MASK
    (tmp_path / "train.txt").write_text("a0.jpg\na2\na0\n")
    with pytest.raises(UserError, match=r"train.txt: names images twice: a0; remove"):
        opened(tmp_path, images="JPEGImages", masks="SegmentationClass", lists="{}.txt")


def test_one_folder_of_pairs_is_divided_by_content(tmp_path: Path) -> None:
    """The held-out images are scored and not trained on; a split of one's own beside them is an error."""
    keys = {"images": "photos", "masks": "labels"}
    write(tmp_path, **keys)
    data = opened(tmp_path, **keys, held_out=0.3)
    assert (len(data.training), len(data.validation), data.held_out) == (3, 2, None)
    assert sorted([*data.training.names, *data.validation.names]) == [f"a{number}.jpg" for number in range(5)]
    assert np.asarray(data.validation.mask(1)).tolist() == MASK
    assert data.notes[0] == "0.3 of the images are held out as the val split"
    with pytest.raises(UserError, match=r"needs a validation split, which is missing \(`held_out: 0.2` in its YAML"):
        opened(tmp_path, **keys).needed("val", "segment")
    with pytest.raises(UserError, match="images/val/ is there, and `held_out` makes a val split; remove one"):
        opened(write(tmp_path), held_out=0.3)
    for folder in ("images", "masks"):
        shutil.rmtree(tmp_path / folder / "val")
    with pytest.raises(UserError, match=r"`held_out: 0.9` leaves none of the 3 training images"):
        opened(tmp_path, held_out=0.9)


def test_values_are_mapped_and_void_by_keys(tmp_path: Path) -> None:
    plain, keys = opened(write(tmp_path)), {"classes": ["soil", "leaf"], "values": {0: "soil", 1: 0, 255: "leaf"}}
    data = opened(tmp_path, **keys, void=[2])
    assert np.asarray(data.training.mask(0)).tolist() == [[0, 0, 255, 1], [0, 0, 0, 0]]
    assert data.labelled()["train"][2].tolist() == [18, 3]
    named = {0: "soil", 1: "soil", 255: "leaf"}
    assert opened(tmp_path, classes=None, values=named, void=[2]).classes == ("soil", "leaf")
    assert not any("255" in note for note in data.notes)
    digests = {opened(tmp_path, **keys, void=void).digest for void in ([2], [2, 9])} | {data.digest, plain.digest}
    assert len(digests) == 3
    assert opened(tmp_path, void=[255]).digest == plain.digest, "what is ignored anyway"
    assert "train: 12.5% of the pixels are 255, which is ignored (key `void`)" in plain.notes


@pytest.mark.parametrize(
    "keys",
    [{"values": value} for value in ([0, 1], {0: 0}, {0: 0, 1: 1, 2: 3}, {0: 0, 1: 1, 2: 2, "x": 2})]
    + [{"values": {1: 0, 2: 1, 3: 2}, "first": 1}, {"void": 255}, {"void": [1]}, {"void": [256]}, {"exif": "turn"}],
)
def test_wrong_keys_are_named(keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"mine: `{next(iter(keys))}` is .*; it must"):
        opened(write(tmp_path), **keys)


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "size": ({"mask": [[0, 1]]}, {}, r"5 of 5 masks are of 2 x 1 pixels, their images of 4 x 2 .*masks/train/a0.png"),
    "value": ({"mask": [range(4)] * 2}, {"classes": 2}, r"2 of 4 values .* 2, 3 \(.*/a0.png\).*`void`; .* instances"),
    "binary": ({"mask": [[0, 255] * 2] * 2}, {"classes": ["a", "b"]}, r"b; they hold 0, 255 \(.*: {0: a, 255: b}`, el"),
    "colors": ({"mode": "RGB"}, {}, r"mine: 5 of 5 masks are of mode RGB \(a mask has one channel .*a0.png"),
    "lossy": ({"suffix": "jpg"}, {}, r"mine: 5 of 5 masks are in JPEG, .* \(export them again as PNG.*a0.jpg"),
    "classes": ({}, {"classes": ["a", "a"]}, r"mine: `classes` are a, a; set in its YAML between 2 and 254"),
    "names or numbers": ({}, {"classes": ["1", "0"], "values": {0: "1", 1: "0"}}, "`values` may mean names or numbers"),
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


def test_classes_without_pixels_are_errors_in_training_and_notes_elsewhere(tmp_path: Path) -> None:
    chosen = opened(write(tmp_path), subset=1).training.masks.path(0)
    for path in (chosen, *tmp_path.glob("masks/val/*")):
        Image.new("L", (4, 2)).save(path)
    assert opened(tmp_path).notes[-1] == "val: no pixel of 2 of 3 classes, which mIoU leaves out: 1, 2"
    assert "train: no pixel of 2 of 3 classes: 1, 2" in opened(tmp_path, subset=1).notes, "the masks are not to blame"
    for path in tmp_path.glob("masks/train/*"):
        Image.new("L", (4, 2)).save(path)
    with pytest.raises(UserError, match="mine: 2 of 3 classes have no pixel in the train masks: 1, 2; they hold 0 "):
        opened(tmp_path)
    (tmp_path / "classes.txt").write_text("soil\nleaf\nroot\n")
    with pytest.raises(UserError, match=r"; keys are set in a YAML file with these:\n  format: \"masks\"\n  root: "):
        open_classification(resolve_dataset(str(tmp_path)), None)


def test_palettes_that_differ(tmp_path: Path) -> None:
    write(tmp_path)
    for number, colors in enumerate(([0] * 3 + [9] * 3, [9] * 3 + [0] * 3)):
        mask = Image.fromarray(np.array([[0, 1, 1, 1], [0, 1, 1, 0]], np.uint8))
        mask.putpalette(colors)
        mask.save(tmp_path / f"masks/train/a{number}.png")
    with pytest.raises(UserError, match=r"1 of 5 masks are with another color for 0 in .* than .*a0.png.*a1.p"):
        opened(tmp_path)
    assert opened(tmp_path, values={0: 0, 1: 1, 2: 2}).counts["train"]["images"] == 3


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    """PIL scales gray of fewer bits, and of PGM with another maximum."""
    write(tmp_path, mask=[[0, 1, 2, 15]] * 2)
    parts = (b"IHDR", struct.pack(">IIBBBBB", 4, 2, 4, 0, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0\x01\x2f" * 2))
    written = b"\x89PNG\r\n\x1a\n" + b"".join(starmap(chunk, (*parts, (b"IEND", b""))))
    (tmp_path / "masks/train/a0.png").write_bytes(written)
    for name, kind, pixels in (("a1", 5, b"\0\1\2\x0f" * 2), ("a2", 2, b"0 1 2 15 " * 2)):
        (tmp_path / f"masks/train/{name}.png").rename(tmp_path / f"masks/train/{name}.pgm")
        (tmp_path / f"masks/train/{name}.pgm").write_bytes(b"P%d 4 2 20\n" % kind + pixels)
    Image.fromarray(np.array([[0, 1, 1, 0]] * 2, bool)).save(tmp_path / "masks/val/a3.png")
    data = opened(tmp_path, classes=3, values={0: 0, 1: 1, 15: 2}, void=[2])
    for index in range(3):
        assert np.asarray(data.training.mask(index)).tolist() == [[0, 1, 255, 2]] * 2
    assert np.asarray(data.validation.mask(0)).tolist() == [[0, 1, 1, 0]] * 2


def test_files_that_do_not_pair_are_named(tmp_path: Path) -> None:
    (write(tmp_path) / "images/val/a4.jpg").unlink()
    assert "masks/val/: 1 skipped, without an image: a4.png" in opened(tmp_path).notes
    Image.new("RGB", (4, 2)).save(tmp_path / "images/train/a1.png")
    with pytest.raises(UserError, match=r"images/train: a1.jpg and a1.png share a name; remove or rename"):
        opened(tmp_path)


@pytest.mark.parametrize(("width", "said"), [(4, "`exif: apply` alone"), (2, "")])
def test_images_with_an_orientation_need_a_key(width: int, said: str, tmp_path: Path) -> None:
    """Stored on their side, with masks of the upright images, of which the sizes tell if they are no squares."""
    write(tmp_path, mask=[[0, 1], [1, 2], [2, 0], [0, 255]][:width])
    for file in tmp_path.glob("images/*/*.jpg"):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.open(file).crop((0, 0, width, 2)).save(file, exif=exif)
    with pytest.raises(UserError, match=rf"5 of 5 masks are of images with EXIF orientation 6 \(set `exif: .*{said}"):
        opened(tmp_path)
    data = opened(tmp_path, exif="apply")
    assert data.training.read(0).size == (2, width)
    assert "train: 3 images have an EXIF orientation; they are opened upright" in data.notes
    if said:
        with pytest.raises(UserError, match=f"^mine: 5 of 5 masks are of the size for {said}, as"):
            opened(tmp_path, exif="ignore")
    else:
        assert opened(tmp_path, exif="ignore").digest != data.digest
