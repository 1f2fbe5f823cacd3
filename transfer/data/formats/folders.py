"""Class folders -> splits. Nothing is decoded; every folder is listed once. Shapes: M images."""

import os
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, TypeVar
from unicodedata import normalize

from transfer.core.errors import MissingInput, UserError, shortened
from transfer.data.layouts import SPLIT_NAMES, SPLITS
from transfer.data.listing import beside, holds_images, listed, passed_over, scan_images
from transfer.data.loading.read_image import is_image
from transfer.data.spec import DatasetSpec, find_root, text_option
from transfer.data.splits.split import FileSplit, Split

StorageVariant = Literal["published", "parquet", "hub"]
SCANNERS = 16
"""Threads that list folders: on a network disk most of the time is waiting."""


@dataclass(frozen=True, kw_only=True)
class FoundLayout:
    """What a reader of a format returns: whole splits, before any choice of images."""

    classes: tuple[str, ...] = ()
    """Names in the order of the labels; none where there are no labels."""
    train: Split | None = None
    val: Split | None = None
    ignored: int = 0
    """Files that are no images, and hidden ones."""
    storage: StorageVariant = "published"
    """How it is stored: in folders and files as its authors published it, as Parquet files, or in the hub's cache."""
    origin: str = ""
    """ID@REVISION on the hub."""
    sparse: bool = False
    """Whether classes may be without training images, as in ImageNet-21k."""
    notes: Sequence[str] = ()
    """See `ClassificationData.notes`."""

    def with_split(self, split: Split, others: Sequence[str] = ()) -> Self:
        """Return the layout with a split, "train" or "val", and with what was found beside its images."""
        changes: dict[str, Any] = {split.name: split, "ignored": self.ignored + len(others)}
        return replace(self, **changes, notes=[*self.notes, *passed_over(others)])


def image_folder(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read `train/CLASS/image.jpg` and `val/CLASS/image.jpg`, where `choose_splits` says what may stand for `val`.

    A `train/` with images and no folders has no labels, and neither has a split without any class of `train/`.

    Raises:
        UserError: a folder is missing or has no classes, training has an empty one, or validation one of its own.
    """
    root = find_root(spec, data)
    folders, notes = choose_splits(
        spec, root, lambda name: root / name if (root / name).is_dir() else None, _without_labels, form="{}/"
    )
    if "train" in folders and not folder_names(folders["train"]):
        layout = unlabelled_images(spec, folders["train"])
        return replace(layout, notes=[*layout.notes, *beside(root, [os.path.relpath(folders["train"], root)])])
    layout = FoundLayout(notes=notes)
    for split, folder in folders.items():
        present = class_names(folder)
        names = tuple(dict.fromkeys(normalize("NFC", name) for name in present))
        layout = replace(layout, classes=layout.classes or names)
        if not {*names} <= {*layout.classes}:
            raise UserError(f"{spec.name}: {class_difference(layout.classes, names)}")
        layout = layout.with_split(*read_split(split, folder, layout.classes, present=present))
    usual = chain(*(names for key, names in SPLITS.items() if key not in spec.options))
    skipped = beside(root, [*usual, *(os.path.relpath(folder, root) for folder in folders.values())])
    return replace(layout, notes=[*layout.notes, *skipped])


def unlabelled_images(spec: DatasetSpec, folder: Path) -> FoundLayout:
    """Return all images in a folder and below it as a training split without classes. Raises UserError for none."""
    names, others, _ = scan_images(folder)
    if not names:
        raise MissingInput(f"{spec.name}: no images found in {folder}")
    layout = FoundLayout(notes=[f"{len(names)} images without labels"])
    return layout.with_split(FileSplit.of("train", folder, names), others)


def _without_labels(folder: Path, train: Path | None) -> str:
    """Return why a split to score has no labels; empty if it has."""
    if not (names := folder_names(folder)):
        return "no class folders"
    if train and (known := folder_names(train)) and known.isdisjoint(names):
        cure = "; sort its images by val_annotations.txt" if (folder / "val_annotations.txt").is_file() else ""
        return f"no class folder of those in {train.name}/{cure}"
    return "" if holds_images(folder) else "no images"


def folder_names(folder: Path) -> set[str]:
    """Return the names of the folders in a folder in NFC, see `listed`."""
    return {normalize("NFC", name) for name in listed(folder)[0]}


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders in a split's folder, `in_order`; see `listed`.

    Raises:
        UserError: there is none, or images lie beside them.
    """
    folders, files, _ = listed(folder)
    if stray := sorted(filter(is_image, files)):
        fix = "move each image into the folder of its class"
        raise UserError(f"{folder}: {len(stray)} image(s) outside the class folders: {shortened(stray)}; {fix}")
    names = tuple(in_order(folders))
    if not names:
        raise UserError(f"{folder}: no class folders found (expected {folder.name}/CLASS/image.jpg)")
    return names


def read_split(
    name: str, folder: Path, classes: Sequence[str], *, present: Sequence[str] | None = None
) -> tuple[FileSplit, list[str]]:
    """Return a split, its images in the order of the classes and then of paths, and the other files.

    Args:
        name: the name of the split.
        folder: that holds the class folders.
        classes: all, in the order of their labels.
        present: the folders, in any of Unicode's forms of their class's name; None: one for each class.
    """
    label_of = {wanted: label for label, wanted in enumerate(classes)}
    present = classes if present is None else present
    with ThreadPoolExecutor(SCANNERS) as pool:
        scans = dict(zip(present, pool.map(scan_images, [folder / entry for entry in present])))
    entry_of_real = {real: entry for entry, (_, _, reals) in scans.items() for real in reals}
    _, files, left = listed(folder)
    names, labels, others, shared = list[str](), list[int](), files + left, list[str]()
    for entry, (images, remainder, reals) in scans.items():
        names += [f"{entry}/{image}" for image in images]
        labels += len(images) * [label_of[entry if entry in label_of else normalize("NFC", entry)]]
        others += [f"{entry}/{file}" for file in remainder]
        shared += [f"{entry} and {entry_of_real[real]}" for real in reals if entry_of_real[real] != entry]
    if shared:
        raise UserError(f"{folder}: classes have a folder in common by a link: {shortened(shared)}; remove the link")
    return FileSplit.of(name, folder, names, labels), others


def class_difference(train: Sequence[str], val: Sequence[str]) -> str:
    """Return what is different about the classes of the two splits."""
    trained, scored = sorted({*train} - {*val}), sorted({*val} - {*train})
    if trained or scored:
        only = f"only in training: {shortened(trained)}; only in validation: {shortened(scored)}"
        return f"the classes of training and validation differ: {only}"
    label = next(label for label, pair in enumerate(zip(train, val)) if pair[0] != pair[1])
    example = f"label {label} is {train[label]} in training and {val[label]} in validation"
    return f"the classes of training and validation have different orders: {example}; number them alike"


Part = TypeVar("Part")


def choose_splits(
    spec: DatasetSpec,
    place: object,
    find: Callable[[str], Part | None],
    unlabelled: Callable[[Part, Part | None], str],
    *,
    form: str = "{}",
) -> tuple[dict[str, Part], list[str]]:
    """Return the parts to train on ("train") and to score ("val"), of which one may be missing, and notes.

    The keys `train` and `val` name a part. Else `train` is trained on, and the first of `val`, `validation`, `valid`,
    `dev` and `test` that has labels is scored.

    Args:
        spec: with the keys.
        place: where parts were looked for, for messages.
        find: name -> a part, None if there is none.
        unlabelled: why a part has no labels, empty if it has; asked of those to score, one by one, beside the part to
            train on.
        form: how a name is written in notes.

    Raises:
        MissingInput: no part was found, or the one that a key names is missing.
    """
    chosen: dict[str, Part] = {}
    notes: list[str] = []
    for key, usual in SPLITS.items():
        part_name = text_option(spec, key)
        found = ((form.format(name), find(name)) for name in ([part_name] if part_name else usual))
        parts = [(title, part) for title, part in found if part is not None]
        if part_name and not parts:
            raise MissingInput(f"{spec.name}: {place}: {form.format(part_name)} not found (key `{key}`)")
        while key == "val" and parts and (reason := unlabelled(parts[0][1], chosen.get("train"))):
            notes.append(f"{parts.pop(0)[0]} has {reason}")
        if parts:
            (title, chosen[key]), *others = parts
            if key == "val" and not part_name and "generator" not in spec.options:
                left = f", not {', '.join(name for name, _ in others)}" if others else ""
                notes.append(f"evaluated on {title}{left}")
    if not chosen:
        names = [form.format(name) for name in SPLIT_NAMES]
        reason = f" ({'; '.join(notes)})" if notes else ""
        fix = "set the keys `train` and `val`"
        raise MissingInput(f"{spec.name}: {place} has none of {', '.join(names)}{reason}; {fix}")
    return chosen, notes


def in_order(names: Collection[str]) -> list[str]:
    """Return the names of classes in the order of their labels: sorted, in whatever of Unicode's forms they are, as
    numbers where all are whole numbers.
    """
    if all(re.fullmatch("-?[0-9]+", name) for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names, key=lambda name: (normalize("NFC", name), name))


def missing_numbers(numbers: Collection[int]) -> str:
    """Return " (without 3, 4, 5)", the numbers that are missing from 0, or else 1, up to the last; empty for none."""
    gaps = sorted({*range(int(min(numbers, default=0) > 0), max(numbers, default=0))}.difference(numbers))
    return f" (without {shortened(gaps, 3)})" if gaps else ""


def in_short(classes: Collection[str]) -> str:
    """Return "0, 1, 2, ... 11"."""
    first, last = [*classes][:3], [*classes][3:]
    dots = "... " if len(last) > 1 else ""
    return ", ".join(first) + (f", {dots}{last[-1]}" if last else "")
