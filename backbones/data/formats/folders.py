"""Class folders -> splits. Nothing is decoded; every folder is listed once. Letters: M images."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from backbones.data.formats.folder_index import FolderIndex
from backbones.data.loading.read_image import is_image
from backbones.data.spec import DatasetSpec, find_root, generated_root, text_option
from backbones.data.splits.split import FileSplit, Split
from backbones.data.toy.digits import toy_digits
from backbones.data.toy.layouts import TOYS
from backbones.errors import MissingInput, UserError, shortened

VALIDATION = ("val", "validation", "test")
GENERATORS = {"toy_digits": toy_digits, **TOYS}
StorageVariant = Literal["published", "parquet", "hub"]
SCANNERS = 16
"""Threads that list folders: on a network disk most of the time is waiting."""


@dataclass(frozen=True, kw_only=True)
class FoundLayout:
    """What a reader of a format returns: whole splits, before any choice of images."""

    classes: tuple[str, ...]
    train: Split | None
    val: Split | None
    ignored: int = 0
    """Files that are no images, and hidden ones."""
    storage: StorageVariant = "published"
    """How it is stored: in folders and files as its authors published it, as Parquet files, or in the hub's cache."""
    origin: str = ""
    """ID@REVISION on the hub."""
    sparse: bool = False
    """Whether classes may be without training images, as in ImageNet-21k."""


@dataclass(frozen=True)
class ClassFolder:
    """The images of one class: file names, sorted, and the number of other files."""

    names: list[str]
    ignored: int


def image_folder(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read `train/CLASS/image.jpg` and `val/CLASS/image.jpg`; the keys `train` and `val` name other folders.

    Raises:
        UserError: a folder is missing, has no classes or an empty one, or the two have different classes.
    """
    root = dataset_root(spec, data)
    folders = {
        "train": _split_folder(spec, root, "train", ("train",)),
        "val": _split_folder(spec, root, "val", VALIDATION),
    }
    classes: tuple[str, ...] = ()
    splits, ignored = {}, 0
    for split, folder in folders.items():
        if folder is None:
            continue
        names = class_names(folder)
        if classes and names != classes:
            raise UserError(f"{spec.name}: {class_difference(classes, names)}")
        classes = names
        splits[split], skipped = read_split(split, folder, classes)
        ignored += skipped
    if not splits:
        raise MissingInput(f"{spec.name}: {root} has no folder train/, nor one of {', '.join(VALIDATION)}")
    return FoundLayout(classes=classes, train=splits.get("train"), val=splits.get("val"), ignored=ignored)


def dataset_root(spec: DatasetSpec, data: Path | None) -> Path:
    """Return the folder of the data set; an embedded one is written on first use. Raises UserError, UsageError."""
    return generated_root(spec, GENERATORS) or find_root(spec, data)


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the class folders in a split's folder; hidden ones are left out.

    Raises:
        UserError: there is none, or images lie beside them.
    """
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    shown = [entry for entry in entries if not entry.name.startswith(".")]
    stray = [entry.name for entry in shown if is_image(entry.name) and not entry.is_dir()]
    if stray:
        raise UserError(
            f"{folder}: {len(stray)} image(s) beside the class folders: {shortened(stray)}; an image belongs into the "
            "folder of its class"
        )
    names = tuple(entry.name for entry in shown if entry.is_dir())
    if not names:
        raise UserError(f"{folder}: there are no class folders (expected {folder.name}/CLASS/image.jpg)")
    return names


def read_split(
    name: str, folder: Path, classes: Sequence[str], *, present: Sequence[str] | None = None
) -> tuple[FileSplit, int]:
    """Return a split, its images in the order of the classes and then of file names, and the number of ignored files.

    A large one is read from its index, see `folder_index`.

    Args:
        name: the name of the split.
        folder: that holds the class folders.
        classes: all, in the order of their labels.
        present: those that have a folder; None: all.

    Raises:
        UserError: a class is empty, or a folder lies where images should.
    """
    label_of = {wanted: label for label, wanted in enumerate(classes)}
    listed = list(classes if present is None else present)
    index = FolderIndex(folder, listed, classes)
    if indexed := index.load(name):
        return indexed
    with ThreadPoolExecutor(SCANNERS) as pool:
        scanned = list(pool.map(scan_images, [folder / entry for entry in listed]))
    empty = [entry for entry, images in zip(listed, scanned, strict=True) if not images.names]
    if empty:
        raise UserError(
            f"{folder}: {len(empty)} class folder(s) without images: {shortened(empty)}; fill or remove them"
        )
    labels = np.repeat([label_of[entry] for entry in listed], [len(images.names) for images in scanned])
    names = (f"{entry}/{image}" for entry, images in zip(listed, scanned, strict=True) for image in images.names)
    split = replace(FileSplit.unlabelled(name, folder, names), labels=labels.astype(np.int64))
    ignored = sum(images.ignored for images in scanned)
    index.keep(split, ignored)
    return split, ignored


def scan_images(folder: Path) -> ClassFolder:
    """Return the images that lie in one folder; links are followed, and hidden and other files counted.

    Raises:
        UserError: the folder holds a folder.
    """
    images, ignored = [], 0
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            ignored += 1
        elif entry.is_dir():
            raise UserError(f"{entry.path}: a folder among the images of a class; move its images up, or it away")
        elif is_image(entry.name):
            images.append(entry.name)
        else:
            ignored += 1
    return ClassFolder(sorted(images), ignored)


def _split_folder(spec: DatasetSpec, root: Path, key: str, usual: Sequence[str]) -> Path | None:
    """Return the folder that `key` names, else the first usual one that exists."""
    named = text_option(spec, key)
    if named is None:
        return next((root / name for name in usual if (root / name).is_dir()), None)
    if not (root / named).is_dir():
        raise MissingInput(f"{spec.name}: {root / named}: there is no such folder (key `{key}`)")
    return root / named


def class_difference(train: Sequence[str], val: Sequence[str]) -> str:
    """Return what is different about the classes of the two splits."""
    only = [sorted(set(one) - set(other)) for one, other in ((train, val), (val, train))]
    return (
        f"the classes of training and validation differ: only in training: {shortened(only[0])}; only in validation: "
        f"{shortened(only[1])}{'' if any(only) else '; or their order'}"
    )
