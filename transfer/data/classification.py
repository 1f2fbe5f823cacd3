"""Classification data: a training and a validation split, checked against what the set should hold.

A new format is a reader (spec, data folder) -> `FoundLayout`, its entry in `READERS` here, and one in
`transfer.data.layouts.FORMATS`. A set that is also stored as Parquet or on the hub is read by `read_stored`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened
from transfer.data.formats import published
from transfer.data.formats.folders import FoundLayout, StorageVariant, image_folder, unlabelled_images
from transfer.data.formats.imagenet import imagenet, imagenet21k, imagenet_test
from transfer.data.formats.masks import MaskSplit, check_masks, masks
from transfer.data.formats.parquet import hf, parquet, read_stored
from transfer.data.formats.users_reader import classification_by_user
from transfer.data.layouts import SPLIT_TITLES
from transfer.data.spec import DatasetSpec, check_counts, find_root, manifest_digest
from transfer.data.splits import integrity
from transfer.data.splits.integrity import select_by_content, take_fraction
from transfer.data.splits.manifest import OpenedData
from transfer.data.splits.split import Look, Split

__all__ = ["ClassificationData", "Split", "open_classification"]

READERS: dict[str, Callable[[DatasetSpec, Path | None], FoundLayout]] = {
    "image_folder": image_folder,
    "images": lambda spec, root: unlabelled_images(spec, find_root(spec, root)),
    "imagenet": imagenet,
    "imagenet_test": imagenet_test,
    "imagenet21k": imagenet21k,
    "parquet": parquet,
    "hf": hf,
    **{read.__name__: partial(read_stored, read) for read in published.PUBLISHED},
}
MASKED: dict[str, Callable[[DatasetSpec, Path | None], FoundLayout]] = {"masks": masks}
"""Readers of images whose pixels are labelled."""
CHECKED_AT_ONCE = 200_000
"""Sets of more images are not decoded before they are used."""


def balanced_weights(counts: NDArray[Any]) -> NDArray[Any]:
    """Return n / (C n_c) for each class in float64, scikit-learn's `class_weight="balanced"`; 0 for absent classes.

    The weights of n samples have mean 1, and all C classes that occur have the same sum.

    Args:
        counts: n_c, or the classes' shares.
    """
    present = counts > 0
    return np.where(present, counts.sum() / (present.sum() * np.where(present, counts, 1)), 0.0)


@dataclass(frozen=True, kw_only=True)
class ClassificationData(OpenedData):
    """An opened dataset.

    `counts` are {"train" | "val" | "held_out": {"images", "classes"}, "ignored"}, of classes with images.
    """

    classes: tuple[str, ...]
    """Names; the position is the label."""
    train: Split | None
    val: Split | None
    held_out: Split | None = None
    """Training images that are scored during a training in place of `val`; see `DatasetSpec.held_out`."""
    storage: StorageVariant = "published"
    """How the dataset is stored."""
    origin: str = ""
    """ID@REVISION on the hub."""

    @property
    def training(self) -> Split:
        """The training split, where it was checked that there is one."""
        assert self.train is not None
        return self.train

    @property
    def validation(self) -> Split:
        """The validation split, where it was checked that there is one."""
        assert self.val is not None
        return self.val

    def needed(self, split: str, by: str) -> Split:
        """Return the split "train" or "val". Raises UserError that says what there is instead."""
        needed = {"train": self.train, "val": self.val}[split]
        if needed is not None:
            return needed
        notes = f" ({'; '.join(self.notes)})" if self.notes else ""
        fix = f"add it to the dataset (a folder {split}/, or the key `{split}` of its YAML), or set another --dataset"
        raise UserError(f"{self.name}: {by} needs a {SPLIT_TITLES[split]} split, which is missing{notes}; {fix}")

    @property
    def splits(self) -> list[Split]:
        """The splits that there are."""
        return [split for split in (self.train, self.val, self.held_out) if split is not None]

    def labelled(self) -> dict[str, tuple[str, Sequence[Any], NDArray[Any]]]:
        """Return the number of images of each class by split, or of its pixels."""
        splits = self.splits if self.classes else []
        return {split.name: (f"{split.COUNTED} of a class", self.classes, split.of_labels()) for split in splits}

    def read_channels(self, channels: int) -> None:
        """Have images read with so many channels. Raises UserError where they cannot be."""
        for split in self.splits:
            split.read_channels(channels)


def open_classification(
    spec: DatasetSpec,
    root: Path | None,
    *,
    label_fraction: float = 1.0,
    fraction_seed: int = 0,
    subset: int | None = None,
    drop_corrupt: bool = False,
    trained: bool = True,
) -> ClassificationData:
    """Find, read and check a dataset.

    Every image that is used is decoded once, so that a corrupt one is named at the start, and the verdict remembered.
    Sets of more than `CHECKED_AT_ONCE` (200,000) images without masks are spared that unless `drop_corrupt` asks for
    it: a damaged image is then named when it is met.

    Args:
        spec: its facts.
        root: the `--data` option (see `find_root`).
        label_fraction: share of each class's training images (see `take_fraction`), at least one.
        fraction_seed: the seed of that choice.
        subset: images of each class in both splits, before the label fraction.
        drop_corrupt: exclude corrupt images instead of raising.
        trained: whether its training images are used, so that test images among them are an error, see `overlap_notes`.

    Raises:
        UserError: not found, incomplete, inconsistent, or with a corrupt image.
        UsageError: its YAML file asks for something that does not exist.
    """
    layout = classification_by_user(spec, root) if spec.reader else (READERS | MASKED)[spec.format](spec, root)
    splits = {name: split for name, split in (("train", layout.train), ("val", layout.val)) if split is not None}
    check_counts(spec, _counts(splits, len(layout.classes)), absent={"train", "val"} - splits.keys())
    notes = _check_labels(spec, layout, splits)
    if subset is not None:
        splits = {name: select_by_content(split, lambda _: subset, skip=drop_corrupt) for name, split in splits.items()}
    if "train" in splits:
        if spec.held_out:
            rest, held = integrity.hold_out(splits["train"], spec.held_out, drop_corrupt=drop_corrupt)
            name = "val" if spec.format in MASKED else "held_out"
            splits = {"train": rest, name: replace(held, name=name)} | {**splits, "train": rest}
        splits["train"] = take_fraction(splits["train"], label_fraction, seed=fraction_seed, drop_corrupt=drop_corrupt)
    readable, looks = splits, list[Look]()
    if drop_corrupt or spec.format in MASKED or sum(map(len, splits.values())) <= CHECKED_AT_ONCE:
        readable = {
            name: _without_damaged(spec, split, layout.classes, drop_corrupt, notes, looks)
            for name, split in splits.items()
        }
    notes += check_masks(spec, layout.classes, readable, chosen=subset is not None or label_fraction != 1)
    files = dict(readable)
    for name, split in readable.items():
        files |= {f"{name}/{kind}": part for kind, part in split.parts().items()}
    contents = {name: split.contents(spec.name) for name, split in files.items()}
    images = {name: (split.names, contents[name]) for name, split in readable.items()}
    if layout.classes and "train" in readable:
        notes += _in_two_classes(readable["train"], contents["train"])
    notes += integrity.overlap_notes(spec.name, images, allowed=not trained or spec.overlap == "allow")
    return ClassificationData(
        name=spec.name,
        version=spec.version,
        classes=layout.classes,
        train=readable.get("train"),
        val=readable.get("val"),
        held_out=readable.get("held_out"),
        counts=_counts(readable, len(layout.classes)) | {"ignored": layout.ignored},
        digest=manifest_digest(_entries(files, contents)),
        storage=layout.storage,
        origin=layout.origin,
        skipped=sum(map(len, splits.values())) - sum(map(len, readable.values())),
        manifests={name: split.manifest for name, split in files.items() if split.manifest},
        pictures=integrity.pictures_of(looks),
        notes=(*layout.notes, *notes),
    )


def _without_damaged(
    spec: DatasetSpec, split: Split, classes: tuple[str, ...], skip: bool, notes: list[str], looks: list[Look]
) -> Split:
    """Return the split without corrupt images, and add to `notes` and `looks`. Raises UserError when a class has none
    left.
    """
    bad, readable, read_notes = integrity.check_split(split, name=f"{spec.name} {split.name}", skip=skip)
    notes += [f"{split.name}: {note}" for note in read_notes]
    looks += readable
    if isinstance(split, MaskSplit):
        split.keep(readable)
    if not len(bad):
        return split
    rest = split.select(np.setdiff1d(np.arange(len(split)), bad))
    lost = np.setdiff1d(split.labels, rest.labels)
    if len(lost):
        names = shortened([classes[label] for label in lost])
        raise UserError(f"{spec.name}: all {split.name} images of {len(lost)} class(es) are corrupt: {names}")
    return rest


def _in_two_classes(split: Split, contents: NDArray[Any]) -> list[str]:
    """Return a note on equal images of unlike labels; `contents` are digests, uint8 [M, bytes]."""
    digests = np.ascontiguousarray(contents[:, :8]).view(np.uint64).ravel()
    order = np.lexsort((split.labels, digests))
    unlike = np.diff(digests[order]) == 0
    unlike &= np.diff(split.labels[order]) != 0
    pairs = zip(order[:-1][unlike], order[1:][unlike])
    names = [f"{split.names[first]} = {split.names[second]}" for first, second in pairs]
    return [f"train: {len(names)} images are also in another class: {shortened(names, 3)}"] if names else []


def _check_labels(spec: DatasetSpec, layout: FoundLayout, splits: dict[str, Split]) -> list[str]:
    """Check that labels, if there are any, are in range, and that no class is without a training image.

    Return a note on classes without a validation image.
    """
    if not layout.classes:
        return []
    notes = list[str]()
    for name, split in splits.items():
        wrong = np.flatnonzero((split.labels < 0) | (split.labels >= len(layout.classes)))
        if len(wrong):
            fault = f"label {split.labels[wrong[0]]} is outside 0..{len(layout.classes) - 1}"
            raise UserError(f"{split.place(int(wrong[0]))}: {fault} ({len(wrong)} images like this)")
        empty = [layout.classes[label] for label in np.setdiff1d(np.arange(len(layout.classes)), split.present())]
        if empty and name == "train" and not layout.sparse:
            subset = f"`format: imagenet`, `root: {spec.root[0]}` and `classes: {len(layout.classes) - len(empty)}`"
            fix = f"; for a subset of the classes use a YAML file with {subset}" * (spec.format == "imagenet")
            raise UserError(f"{spec.name}: {len(empty)} class(es) without training images: {shortened(empty)}{fix}")
        if empty and name == "val":
            notes.append(f"val: no image of {len(empty)} of {len(layout.classes)} classes: {shortened(empty, 3)}")
    return notes


def _counts(splits: dict[str, Split], most: int) -> dict[str, Any]:
    """Return the images of each split, and the classes, which give the chance level, unless images have several."""
    counts = {name: {"images": len(split)} for name, split in splits.items()}
    for name, split in splits.items():
        if split.true_labels is None:
            counts[name]["classes"] = min(len(split.present()), most)
    return counts


def _entries(splits: dict[str, Split], contents: dict[str, NDArray[Any]]) -> Iterator[tuple[str, int, Any]]:
    """Yield what the digest has of each image, see `manifest_digest`."""
    for name, split in splits.items():
        images = zip(split.targets.tolist(), split.names, split.sizes, contents[name], strict=True)
        for label, image, size, content in images:
            yield f"{name}/{label}/{image}", size, content
