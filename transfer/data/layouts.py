"""The layouts that datasets come in: what each looks like on disk, and which YAML keys it knows. Imports no torch.

Published archives, as the YAML file of a dataset states them:

archives:
  - {url: "https://...", sha256: ..., bytes: ..., into: folder, inside: path/of/an/archive/in/it}
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError

SPLITS = {"train": ("train",), "val": ("val", "validation", "valid", "dev", "test")}
"""The usual names of the split to train on and of the one to score, the first one first."""
SPLIT_NAMES = (*SPLITS["train"], *SPLITS["val"])
SPLIT_TITLES = {"train": "training", "val": "validation"}
PARQUET = (
    *("{}.parquet", "{}-*.parquet", "{}/*.parquet", "data/{}-*.parquet", "{}/state.json"),
    "default/{}/*.parquet",
)
"""Patterns of the files of a split in Parquet, as `datasets` saves it to a folder, or as the hub converts it."""

BESIDE = "_annotations.coco.json"
"""Annotations in COCO's format that lie beside the images of their split, as Roboflow exports them."""
EXPORTED = tuple(f"{name}/{BESIDE}" for name in ("train", "valid", "test"))


Trees = tuple[tuple[str, ...], ...]
"""Lists of files and folders (with a slash at the end) in the folder of a dataset, any of which may be there."""


@dataclass(frozen=True)
class Format:
    """How a layout looks on disk, and which YAML keys beyond the common ones it understands.

    `trees` are alternatives: a folder has the layout when it holds every entry of one of them ("/" marks folders).
    Without trees any folder will do, and the reader of the format judges it.
    """

    trees: Trees = ()
    keys: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    """Patterns, of which one tells a layout without trees where the user names a folder alone."""


SOLUTION, TRUTH = "LOC_val_solution.csv", "ILSVRC2012_validation_ground_truth.txt"
MSMT17_LISTS = ("list_train.txt", "list_query.txt", "list_gallery.txt")
CUB_LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
CARS = ("cars_train/", "cars_test/", "devkit/cars_train_annos.mat", "devkit/cars_meta.mat")
CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
TISSUES = ("01_TUMOR", "02_STROMA", "03_COMPLEX", "04_LYMPHO", "05_DEBRIS", "06_MUCOSA", "07_ADIPOSE", "08_EMPTY")
STORAGE_KEYS = ("hub", "generator")
"""Keys of the published layouts: `hub` names the same set on the Hugging Face hub (`formats/parquet.py`)."""

FORMATS = {
    "market1501": Format(
        (("bounding_box_train/", "query/", "bounding_box_test/"), ("query/", "bounding_box_test/")),
        ("train", "query", "gallery", "pattern", "cameras", "generator"),
    ),
    "reid_folders": Format(
        (("train/", "query/", "gallery/"), ("query/", "gallery/")), ("train", "query", "gallery", "pattern")
    ),
    "msmt17": Format(
        (("train/", "test/", *MSMT17_LISTS), ("mask_train_v2/", "mask_test_v2/", *MSMT17_LISTS)), ("generator",)
    ),
    "reid_lists": Format(keys=("train", "query", "gallery", "columns", "header", "images", "cameras", "split")),
    "torchreid": Format(keys=("set", "split", "cameras")),
    "image_folder": Format(tuple((f"{name}/",) for name in SPLIT_NAMES), (*SPLITS, "generator")),
    "images": Format(),
    "imagenet": Format(
        (("train/",), ("val/",), ("ILSVRC/Data/CLS-LOC/train/",), ("ILSVRC/Data/CLS-LOC/val/",)), ("classes", "labels")
    ),
    "imagenet_test": Format(keys=("classes",)),
    "imagenet21k": Format((("n01440764/",),), ("classes",)),
    "parquet": Format(
        keys=(*SPLITS, "image", "label"),
        signs=(
            "state.json",
            "dataset_dict.json",
            *(form.format(name) for name, form in product(SPLIT_NAMES, PARQUET)),
        ),
    ),
    "hf": Format(keys=("hub", "revision", "config", "train", "val", "image", "label")),
    "cub200": Format((("images/", *CUB_LISTS),), STORAGE_KEYS),
    "caltech101": Format((("101_ObjectCategories/",), ("BACKGROUND_Google/",)), STORAGE_KEYS),
    "stanford_cars": Format((CARS,), STORAGE_KEYS),
    "cifar": Format((("train", "test", "meta"), CIFAR10), STORAGE_KEYS),
    "dtd": Format((("images/", "labels/train1.txt", "labels/test1.txt"),), ("partition", *STORAGE_KEYS)),
    "colorectal_histology": Format((tuple(f"{name}/" for name in TISSUES),), ("train_images", *STORAGE_KEYS)),
    "oxford_pets": Format((("images/", "annotations/trainval.txt", "annotations/test.txt"),), STORAGE_KEYS),
    "uc_merced": Format((("Images/",),), ("train_images", *STORAGE_KEYS)),
    "masks": Format(
        tuple((f"images/{name}/", f"masks/{name}/") for name in SPLIT_NAMES),
        ("images", "masks", "lists", *SPLITS, "classes", "names", "first", "values", "void", "exif", "generator"),
    ),
    "coco": Format(
        keys=(
            *("train_annotations", "train_images", "val_annotations", "val_images", "exif", "boxes", "generator"),
            *("areas", "ious", "max_detections", "ignore_flag", "ignore_classes"),
        ),
        signs=("annotations/instances_*2017.json", *EXPORTED),
    ),
}

UNDIVIDED = ("market1501", "reid_folders", "msmt17", "reid_lists", "torchreid", "images", "imagenet_test", "coco")
"""Formats that do not take `held_out`."""


def wanted_splits(keys: Mapping[str, Any], splits: Iterable[str] = SPLITS) -> list[str]:
    """Return the names of splits that the keys `train` and `val` give, or the usual ones."""
    return [*chain.from_iterable([keys[split]] if keys.get(split) else SPLITS[split] for split in splits)]


def imagenet_truths(folder: Path) -> list[Path]:
    """Return the lists of the classes of the validation images, which lie in a folder, in those above it: Kaggle's list
    and the devkit's, the likelier first.
    """
    patterns = (SOLUTION, f"*devkit*/data/{TRUTH}", f"data/{TRUTH}")
    return [file for pattern, above in product(patterns, folder.parents[:4]) for file in sorted(above.glob(pattern))]


def is_largest(tree: Collection[str], trees: Iterable[Collection[str]]) -> bool:
    """Return whether no other tree has all entries of this one, and more."""
    return not any({*tree} < {*other} for other in trees)


def missing_entries(folder: Path, tree: Sequence[str]) -> list[str]:
    """Return the entries of a tree that a folder lacks, or that are empty or unreadable there."""
    return [entry for entry in tree if not _present(folder / entry, entry)]


def _present(path: Path, entry: str) -> bool:
    if not entry.endswith("/"):
        return path.is_file()
    if not (path.is_dir() and os.access(path, os.R_OK)):
        return False
    with os.scandir(path) as entries:  # not all of a hundred thousand
        return any(entries)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One file to download, and where its content goes."""

    url: str
    sha256: str = ""
    """Of the published file, in hex digits."""
    md5: str = ""
    """Likewise."""
    bytes: int | None = None
    into: str = ""
    """Folder, below the data folder, that gets its content."""
    inside: str = ""
    """The archive within the archive that is meant."""

    def __post_init__(self) -> None:
        """Raise ValueError unless it has a web address and a checksum, and stays below the data folder."""
        published = self.url[:4] == "http" and bool(self.sha256 or self.md5)
        if not published or any(".." in place or place[:1] == "/" for place in (self.into, self.inside)):
            raise ValueError(self)


def read_archives(entries: list[Any], path: Path) -> tuple[Archive, ...]:
    """Return the archives that a dataset's file lists. Raises UsageError that names the file."""
    try:
        return tuple(Archive(**entry) for entry in entries)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: `archives`: {error}; wanted: a `url` of http(s), its `sha256` or `md5`, and "
            "maybe `bytes`, and `into` and `inside` as relative paths without `..`"
        ) from None
