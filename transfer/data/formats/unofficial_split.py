"""Sets that are published without a split: Caltech-101, colorectal histology, UC Merced. Shapes: M images.

They are divided as TensorFlow Datasets (TFDS) divides them, since published few-shot results stand on its export.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError
from transfer.data.formats.folders import FoundLayout, class_names, dataset_root, read_split
from transfer.data.layouts import TISSUES
from transfer.data.spec import DatasetSpec
from transfer.data.splits.split import Split

KeyRule = Callable[[str, str], str]
"""(class name, file name) -> the key of an image in TFDS."""
CALTECH, SHOTS, SEED = "101_ObjectCategories", 30, 1234


def caltech101(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Caltech-101: `101_ObjectCategories/CLASS/image_NNNN.jpg`, itself or one level below.

    BACKGROUND_Google is one of the classes. 30 images of each are for training, the others are scored. They are drawn
    as TFDS draws them (seed 1234, one stream for all classes), but with classes and files in sorted order: TFDS takes
    them in the order of the file system, so that equality with its export is unconfirmed.

    Raises:
        DatasetNotFound: it is not there.
        UserError: a class has fewer than 31 images.
    """
    root = dataset_root(spec, data)
    folder = root / CALTECH if (root / CALTECH).is_dir() else root
    classes = class_names(folder)
    whole, ignored, notes = read_split("train", folder, classes)
    layout = FoundLayout(classes=classes, train=whole, val=None, ignored=ignored, notes=notes)
    stream, chosen = np.random.RandomState(SEED), []
    for label, name in enumerate(classes):
        images = np.flatnonzero(whole.labels == label)
        if len(images) <= SHOTS:
            raise UserError(
                f"{folder / name}: {len(images)} images, where {SHOTS} for training and one to score are needed; "
                "extract the archive again"
            )
        chosen.append(stream.choice(images, SHOTS, replace=False))
    train = np.sort(np.concatenate(chosen))
    rest = np.setdiff1d(np.arange(len(whole)), train)
    return _divide(layout, whole, train, rest)


def colorectal_histology(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Kather et al. 2016: `01_TUMOR/*.tif` to `08_EMPTY/*.tif`; the key `train_images: N` is the number for
    training.

    Raises:
        DatasetNotFound: it is not there.
        UserError: a class is empty, or there are too few images.
    """
    return _divide_class_folders(spec, dataset_root(spec, data), TISSUES, tissue_key)


def uc_merced(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read UC Merced Land Use: `Images/CLASS/CLASSNN.tif`; `train_images` and errors as for `colorectal_histology`."""
    folder = dataset_root(spec, data) / "Images"
    return _divide_class_folders(spec, folder, class_names(folder), file_key)


def _divide_class_folders(spec: DatasetSpec, folder: Path, folders: Sequence[str], key: KeyRule) -> FoundLayout:
    whole, ignored, notes = read_split("train", folder, folders)
    classes = tuple(map(_class_name, folders))
    layout = FoundLayout(classes=classes, train=whole, val=None, ignored=ignored, notes=notes)
    return divide_by_tfds_order(spec, layout, list(whole.names), key)


def _class_name(folder: str) -> str:
    """Return "tumor" for "01_TUMOR"; names without a number are kept."""
    return re.sub(r"^\d+_", "", folder).lower() if folder in TISSUES else folder


def tissue_key(class_name: str, file_name: str) -> str:
    """Return the key of colorectal histology, e.g. "tumor/NAME.tif". Raises UserError for a class of another set."""
    tissues = tuple(map(_class_name, TISSUES))
    tissue = re.sub(r"^\d+_", "", class_name).lower()
    if tissue not in tissues:
        raise UserError(
            f"class {class_name!r} must be one of {', '.join(tissues)}: the choice of training images depends on it"
        )
    return f"{tissue}/{file_name}"


def file_key(class_name: str, file_name: str) -> str:
    """Return the key of UC Merced."""
    return file_name


def tfds_order(keys: Sequence[str]) -> list[int]:
    """Return the order [M] in which TFDS writes a split "train": by md5 of "train" and key, as a number."""
    digests = [int(hashlib.md5(b"train" + key.encode()).hexdigest(), 16) for key in keys]
    return sorted(range(len(keys)), key=lambda index: (digests[index], keys[index]))


def divide_by_tfds_order(
    spec: DatasetSpec, layout: FoundLayout, paths: Sequence[str | None], key: KeyRule
) -> FoundLayout:
    """Divide the only split, all M images, in two: the first N of `tfds_order` for training, the rest to be scored.

    Both parts keep that order, so they are the same in folders and in Parquet.

    Args:
        spec: with the option `train_images`, N.
        layout: what to divide.
        paths: [M], published paths of the images; only file names count. None where a row keeps none.
        key: what the order goes by.

    Raises:
        UserError: file names are missing or not the published ones, or there are not more than N images.
    """
    count, whole = spec.options.get("train_images"), layout.train
    assert whole is not None
    if not isinstance(count, int) or not 0 < count < len(whole):
        raise UserError(
            f"{spec.name}: `train_images` is {count!r}; it must be a number of images, of which some of the "
            f"{len(whole)} are left to score"
        )
    keys = []
    for index, path in enumerate(paths):
        name = (path or "").replace("\\", "/").rpartition("/")[2]
        if not name.lower().endswith((".tif", ".tiff")):
            stated = f"the file name {path!r}" if path else "no file name"
            raise UserError(
                f"{whole.place(index)}: {stated}, but the split of {spec.name} goes by the names of the published .tif "
                f"files; use these: {spec.how or 'the published folders'}"
            )
        keys.append(key(layout.classes[whole.labels[index]], name))
    order = np.array(tfds_order(keys))
    return _divide(layout, whole, order[:count], order[count:])


def _divide(layout: FoundLayout, whole: Split, train: NDArray[Any], rest: NDArray[Any]) -> FoundLayout:
    parts = [replace(whole.select(keep), name=name) for name, keep in (("train", train), ("val", rest))]
    return replace(layout, train=parts[0], val=parts[1])
