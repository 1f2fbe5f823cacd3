"""Datasets by YAML files, and folders named alone: read by their content, or refused with what to do."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.transfer.data.coco.coco_tree import objects
from tests.transfer.data.layouts import write_images
from tests.transfer.data.reid.layouts import market
from transfer.core.errors import UsageError, UserError
from transfer.data import recognition
from transfer.data.classification import open_classification
from transfer.data.coco.dataset import open_coco
from transfer.data.layouts import read_archives
from transfer.data.spec import dataset_names, find_root, manifest_digest, resolve_dataset


def written(path, text):
    path.write_text(text)
    return resolve_dataset(str(path))


def test_shipped_files_state_the_facts():
    specs = {name: resolve_dataset(name) for name in dataset_names()}
    assert [spec.name for spec in specs.values()] == list(specs)
    assert not [name for name, spec in specs.items() if not (spec.license and spec.citation)]


def test_a_users_file(tmp_path):
    spec = written(tmp_path / "campus.yaml", "format: market1501\nroot: images\ncounts: {train: {images: 3}}\n")
    assert (spec.name, spec.format, spec.counts) == ("campus", "market1501", {"train": {"images": 3}})
    assert spec.root == (str(tmp_path / "images"), "images")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("format: market1501\nroot: x\nlicence: MIT\n", "unknown key 'licence'; did you mean 'license'"),
        ("format: market1051\nroot: x\n", "did you mean 'market1501'"),
        ("format: market1501\n", "`root` is missing"),
        ("format: market1501\nroot: 3\n", "`root` is 3"),
        ("format: market1501\nroot: x\nversion: 1.10\n", "`version` is 1.1; it must be text"),
        ("format: market1501\nroot: x\ncounts: 12\n", "`counts` is 12"),
        ("format: dtd\nroot: x\nheld_out: 0.0\n", "`held_out` is 0.0; it must be a share above 0 and below 1"),
        ("format: coco\nroot: x\nheld_out: 0.2\n", "coco does not take `held_out`; remove it; it is for image_folder"),
        ("format: dtd\nroot: x\narchives: 1\n", "`archives` is 1; it must be a list"),
        ("format: dtd\nroot: x\nname: x/../../victim\n", "`name` is 'x/../../victim'"),
        ("format: dtd\nroot: x\nname: .hidden\n", "`name` is '.hidden'"),
    ],
)
def test_wrong_words_name_file_and_key(tmp_path, text, message):
    with pytest.raises(UsageError, match=rf"mine\.yaml[\s\S]*{re.escape(message)}"):
        written(tmp_path / "mine.yaml", text)


@pytest.mark.parametrize("place", ["market1501", "market1501/Market-1501-v15.09.15", "Market-1501-v15.09.15"])
def test_found_in_the_data_folder(tmp_path, place):
    root = market(tmp_path / place)
    assert find_root(resolve_dataset("market1501"), tmp_path) == root


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ("train/a/0.jpg val/a/0.jpg", "image_folder"),
        ("valid/a/0.jpg", "image_folder"),
        ("ILSVRC/Data/CLS-LOC/train/n01440764/0.jpg", "imagenet"),
        ("bounding_box_train/x bounding_box_test/x query/x", "market1501"),
        ("train/x test/x list_train.txt list_query.txt list_gallery.txt", "msmt17"),
        ("data/train-00000-of-00002.parquet README.md", "parquet"),
        ("train/state.json test/state.json dataset_dict.json", "parquet"),
        ("annotations/instances_val2017.json val2017/0.jpg train2017/0.jpg", "coco"),
        ("0.jpg a/b/1.png", "images"),
    ],
)
def test_a_folder_alone(tmp_path, monkeypatch, files, kind):
    for name in files.split():
        (tmp_path / "my.set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "my.set" / name).write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = resolve_dataset("~/my.set")
    assert (spec.name, spec.format, spec.root) == ("my.set", kind, (f"{tmp_path}/my.set",))
    assert find_root(spec, None) == tmp_path / "my.set"


@pytest.mark.parametrize("entry", ["~/images", "$HOME/images", "[elsewhere, ~/images]"])
def test_the_home_folder_in_a_users_file(tmp_path, monkeypatch, entry):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = market(tmp_path / "home" / "images")
    assert find_root(written(tmp_path / "mine.yaml", f"format: market1501\nroot: {entry}\n"), None) == root
    monkeypatch.setenv("TRANSFER_DATA", "~")
    root.rename(tmp_path / "home" / "market1501")
    assert find_root(resolve_dataset("market1501"), None) == tmp_path / "home" / "market1501"


def test_nowhere_and_in_two_copies_that_are_not_chosen_between(tmp_path):
    with pytest.raises(UserError, match=r"MSMT17_V1.*: no such folder[\s\S]*--data[\s\S]*mask_train_v2/[\s\S]*ask the"):
        find_root(resolve_dataset("msmt17"), tmp_path)
    one, two = market(tmp_path / "market1501"), market(tmp_path / "Market-1501")
    with pytest.raises(UserError, match=rf"{two}\n  {one}"):
        find_root(resolve_dataset("market1501"), tmp_path)


def test_manifest_digest():
    files = [("b.jpg", 20, b"\x01\x02"), ("a.jpg", 3, b"\xff")]
    expected = hashlib.sha256(b"a.jpg\x003\x00ff\nb.jpg\x0020\x000102\n").hexdigest()
    assert manifest_digest(files) == manifest_digest(reversed(files)) == expected


URL, SHA = "https://host/a.tar.gz", "0" * 64


@pytest.mark.parametrize(
    "entry",
    [
        {"url": URL, "sha265": SHA},
        {"url": "ftp://host/a", "sha256": SHA},
        {"url": URL},
        {"url": URL, "sha256": SHA, "into": "../x"},
        {"url": URL, "sha256": SHA, "inside": "/x"},
    ],
)
def test_what_is_wrong_with_an_archive_is_named(entry):
    with pytest.raises(UsageError, match=r"^set.yaml: `archives`: .*wanted: a `url`"):
        read_archives([entry], Path("set.yaml"))


MAP = np.kron([[0, 1], [1, 0]], np.ones((6, 8))).astype(np.uint8)


def coco(*names):
    images = [{"id": number, "file_name": name, "width": 16, "height": 12} for number, name in enumerate(names)]
    boxes = objects(*((image["id"], 1, [1, 1, 8, 8]) for image in images))
    return json.dumps({"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "cell"}]})


def tree(root, texts, *folders):
    """Write texts by their path, and images 0 and 1 in folders: label maps of 0, 1 behind "-", of 1, 2 behind "+"."""
    for number, folder in enumerate(folders):
        place = root / folder.rstrip("-+")
        if folder.endswith(("-", "+")):
            place.mkdir(parents=True)
            for name in "01":
                Image.fromarray(MAP + folder.endswith("+")).save(place / f"{name}.png")
        else:
            write_images(place, 2, number)
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return str(root)


LISTS = {f"ImageSets/Segmentation/{name}.txt": f"{number}\n" for number, name in enumerate(("train", "val"))}
BOXES = {"Annotations/0.xml": "<annotation>\n"}
CLASSES = {"classes.txt": "soil\nleaf\n"}
SPLIT = ("train/images", "train/masks-", "val/images", "val/masks-")
ADE = ("images/training", "annotations/training+", "images/validation", "annotations/validation+")


@pytest.mark.parametrize(
    ("texts", "folders", "keys", "counts"),
    [
        (LISTS | BOXES, ("JPEGImages", "SegmentationClass-"), ["JPEGImages", "SegmentationClass", 21], (1, 1)),
        (LISTS | CLASSES, ("JPEGImages", "SegmentationClass-"), ["JPEGImages", "SegmentationClass", 2], (1, 1)),
        ({}, ADE, ["images/{}", "annotations/{}", 150], (2, 2)),
        (CLASSES, SPLIT, ["{}/images", "{}/masks", 2], (2, 2)),
        (CLASSES, ("images", "masks-"), ["images", "masks", 2], (2, None)),
        (CLASSES, ("img_dir/train", "ann_dir/train-"), ["img_dir/{}", "ann_dir/{}", 2], (2, None)),
    ],
    ids=["voc", "voc, own classes", "ade", "split/kind", "undivided", "mmsegmentation"],
)
def test_masks(tmp_path, texts, folders, keys, counts):
    spec = resolve_dataset(tree(tmp_path / "set", texts, *folders))
    data = open_classification(spec, None)
    assert [spec.options["images"], spec.options["masks"], len(data.classes)] == keys
    assert tuple(split and len(split) for split in (data.train, data.val)) == counts
    assert f"images: {keys[0]}, masks: {keys[1]}" in spec.reading


def test_classes_of_drawings_and_of_digits_are_no_label_maps(tmp_path):
    """Beside photographs, drawings in color are images; gray images are, where all are gray."""
    for place, mode in (("a/train/photo", "RGB"), ("a/train/logo", "RGB"), ("b/train/1", "L"), ("b/train/7", "L")):
        (tmp_path / place).mkdir(parents=True)
        colors = 3 if place.endswith(("logo", "1")) else 256
        pixels = np.random.default_rng(colors).integers(0, colors, (16, 16, len(mode)), np.uint8).squeeze()
        Image.fromarray(pixels).save(tmp_path / place / "0001.png")
    assert {resolve_dataset(str(tmp_path / name)).format for name in "ab"} == {"image_folder"}


@pytest.mark.parametrize(
    ("texts", "folders", "keys"),
    [
        (
            {f"annotations/instances_{name}.json": coco("0.jpg") for name in ("train", "val")},
            ("train", "val"),
            ["annotations/instances_train.json", "annotations/instances_val.json", "train", "val"],
        ),
        (
            {f"annotations/instances_{name}2017.json": coco(f"{n}.jpg") for n, name in enumerate(("train", "val"))}
            | {"labels/train2017/0.txt": "0 .5 .5 .1 .1", "annotations/captions_train2017.json": "{}"},
            ("images",),
            ["annotations/instances_train2017.json", "annotations/instances_val2017.json", "images", "images"],
        ),
        ({"train/annotation_coco.json": coco("0.jpg")}, ("train",), ["train/annotation_coco.json", None, "train"]),
        (
            {f"{name}.json": coco("0.jpg") for name in ("train", "train_small", "dev", "test")},
            ("images/train", "masks/train", "images/dev", "images/test"),
            ["train.json", "dev.json", "images/train", "images/dev"],
        ),
        ({"lvis_train.json": coco("train/0.jpg").replace("/", "\\/")}, ("train",), ["lvis_train.json", None, "."]),
        ({"train.json": coco("train/0.jpg").replace("/", "\\\\")}, ("train",), ["train.json", None, "."]),
    ],
    ids=["mmdetection", "one folder of images", "beside the images", "two kinds", "with the folder", "of Windows"],
)
def test_coco(tmp_path, texts, folders, keys):
    spec = resolve_dataset(tree(tmp_path / "set", texts, *folders))
    assert (spec.format, [*spec.options.values()]) == ("coco", keys)
    data = open_coco(spec, None)
    assert [bool(split) for split in (data.train, data.val)] == [True, bool(keys[1])]


def test_a_file_is_no_dataset(tmp_path):
    (tmp_path / "set.zip").touch()
    with pytest.raises(UsageError, match=r"set\.zip: a file; name the folder of the data \(unpack archives\)"):
        resolve_dataset(str(tmp_path / "set.zip"))


def test_annotations_are_found_among_more_images_than_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(recognition, "SAMPLED", 1)
    texts = {f"{name}.json": coco(f"{number}.jpg") for number, name in enumerate(("train", "val"))}
    keys = {"train_annotations": "train.json", "val_annotations": "val.json", "train_images": ".", "val_images": "."}
    assert resolve_dataset(tree(tmp_path / "set", texts, "")).options == keys


YOLO = {"train/labels/0.txt": "", "train/labels/1.txt": "0 0.5 0.25 1 .125\n"}
TASK = '[{"id":1,"annotations":[{"id":1,"completed_by":{"id":1},"result":[]}],"data":{"image":"/data/0.jpg"}}]'
TWICE = {f"annotations/instances_train{name}.json": coco("0.jpg") for name in ("", "_mini")}
TWO_KINDS = dict.fromkeys(("train/x", "bounding_box_train/x", "bounding_box_test/x", "query/x"), "")
CLASS_FILES = {f"train/{name}/0.xml": "<annotation>" for name in "ab"}
CLASS_FILES |= {"train.json": '{"images":[{"file_name":"0"}]}'}


@pytest.mark.parametrize(
    ("texts", "folders", "said"),
    [
        (YOLO, ("train/images",), "YOLO labels are not read (train/labels/1.txt); export as COCO JSON"),
        ({"labels/train/0.txt": "0 .5 .5 .1 .1"}, ("images/train",), "(labels/train/0.txt); export as COCO JSON"),
        ({"data.yaml": "train: images\nnc: 1\n"}, ("images",), "YOLO labels are not read (data.yaml)"),
        ({"obj_train_data/0.txt": "0 .5 .5 .1 .1"}, ("obj_train_data",), "YOLO labels are not read"),
        ({"0.json": '{"version": "5", "flags": {}, "shapes": []}'}, ("",), "(0.json); convert them by its"),
        ({"project-1.json": TASK}, ("images",), "Label Studio's files are not read (project-1.json); export as COCO"),
        ({"train.json": coco("0.jpg")}, ("train", "train_b"), "the images of train.json may be in train or train_b"),
        ({"result.json": coco("images/0.jpg")}, ("images",), "(result.json); use a YAML file with `format: coco`"),
        ({"annotations/instances_default.json": coco("0.jpg")}, ("images",), "`train_annotations`, `train_images`"),
        ({"annotations.xml": "<?xml?>\n<annotations>"}, ("images",), "CVAT's XML is not read (annotations.xml)"),
        (BOXES, ("JPEGImages",), "PASCAL VOC's boxes are not read (Annotations/0.xml); export as COCO JSON"),
        ({}, ("leftImg8bit/val/ulm", "gtFine/val/ulm-"), "gtFine/val/ulm/1.png); copy them (of Cityscapes"),
        ({}, ("a/Kvasir/images", "a/Kvasir/masks-"), "contains datasets; set --dataset to"),
        ({}, (*(f"leaves/{folder}" for folder in SPLIT), "b/0"), "leaves, or"),
        (TWICE, ("train",), "instances_train_mini.json may be the annotations of train"),
        ({}, ("train/leaf", "train/parts-"), "are label maps, as they have few colors (train/parts/0.png"),
        (LISTS, (), "a folder in no known layout, without images; name one that holds images"),
        (TWO_KINDS, (), "may be of format image_folder or market1501; name a YAML file that says:\n  format:"),
    ],
)  # fmt: skip
def test_what_is_not_read_says_what_to_do(tmp_path, texts, folders, said):
    root = tree(tmp_path / "set", texts, *folders)
    with pytest.raises(UsageError, match=rf"^{root}: .*{re.escape(said)}"):
        resolve_dataset(root)


@pytest.mark.parametrize(
    ("texts", "folders", "reading"),
    [
        ({}, ("Train/a", "Test/a"), "image_folder (train: Train, val: Test)"),
        ({}, ("Training/a",), "image_folder (train: Training)"),
        ({}, ("train/train", "train/bus"), "image_folder"),
        ({}, ("train", "test1", "tests"), "image_folder"),
        ({}, ("train", "bus", "car"), "images"),
        ({}, ("Test", "bus", "car"), "images"),
        (CLASS_FILES, ("train/a", "train/b", "val/a", "val/b"), "image_folder"),
        ({}, ("train/a-", "train/b-", "val/a-", "val/b-"), "image_folder"),
        ({}, ("train/mask", "train/no_mask", "train/face"), "image_folder"),
    ],
)
def test_splits_in_other_letters_and_what_looks_like_splits_or_labels(tmp_path, texts, folders, reading):
    assert resolve_dataset(tree(tmp_path / "set", texts, *folders)).reading == f"read as format {reading}"
