"""Sets with a published split, in the layouts of their archives: CUB-200-2011, Stanford Cars, DTD, Oxford-IIIT Pets.

What is scored (`val`) is the published test part. Images stand in the order of their lists. Letters: C classes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.data.formats.folders import FoundLayout, class_names, dataset_root
from backbones.data.formats.list_files import ListedSplit, label_from, layout_from_lists, number_from, numbered_lines
from backbones.data.layouts import CUB_LISTS
from backbones.data.spec import DatasetSpec
from backbones.errors import UsageError, UserError, shortened

PARTITIONS = 10
LABELLED = "cars_test_annos_withlabels.mat"


def cub200(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read CUB-200-2011: `images/NNN.Name/*.jpg`, and lists `ID VALUE` of paths, classes and the split (1: training).

    Raises:
        Absent: it is not there.
        UserError: a line is malformed, the lists do not fit together, or an image is missing.
    """
    root = dataset_root(spec, data)
    paths, numbers, parts, names = (_read_table(root / name) for name in CUB_LISTS)
    for name, table in zip(CUB_LISTS[1:3], (numbers, parts)):
        odd = sorted(paths.keys() ^ table.keys())
        if odd:
            raise UserError(f"{root}: {CUB_LISTS[0]} and {name} do not list the same images: ids {shortened(odd)}")
    if sorted(names) != list(range(1, len(names) + 1)):
        raise UserError(f"{root / CUB_LISTS[3]}: the classes are not numbered from 1 to {len(names)}")
    split: dict[str, tuple[list[str], list[int]]] = {"1": ([], []), "0": ([], [])}
    for image, (_, path) in paths.items():
        place, part = parts[image]
        if part not in split:
            raise UserError(f"{place}: {part!r} is neither 1 (training) nor 0 (test)")
        split[part][0].append(path)
        split[part][1].append(label_from(numbers[image][1], len(names), numbers[image][0]))
    train, val = (ListedSplit(root / CUB_LISTS[0], root / "images", *split[part]) for part in "10")
    return layout_from_lists(spec, [names[number][1] for number in sorted(names)], train, val)


def _read_table(path: Path) -> dict[int, tuple[str, str]]:
    """Return lines `ID VALUE` as {id: ("FILE:LINE", value)}."""
    table: dict[int, tuple[str, str]] = {}
    for place, fields in numbered_lines(path):
        number = number_from(fields[0])
        if len(fields) != 2 or number is None:
            raise UserError(f"{place}: {' '.join(fields)!r} is not of the form `ID VALUE`")
        if number in table:
            raise UserError(f"{place}: id {number} stands in {table[number][0]} already")
        table[number] = place, fields[1]
    if not table:
        raise UserError(f"{path}: there are no lines; extract the archive again")
    return table


def stanford_cars(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Stanford Cars: `cars_train/` and `cars_test/` (or Kaggle's `cars_train/cars_train/`), labels in MATLAB
    files.

    Raises:
        Absent: it is not there.
        UserError: a MATLAB file is missing or damaged, a class is out of range, or an image is missing.
    """
    root = dataset_root(spec, data)
    meta = root / "devkit" / "cars_meta.mat"
    classes = [str(name) for name in _read_matlab(meta, "class_names")]
    labelled = next((path for path in (root / LABELLED, root / "devkit" / LABELLED) if path.is_file()), None)
    if labelled is None:
        raise UserError(
            f"{spec.name}: {root / LABELLED}: there is no such file (nor in devkit/), and cars_test_annos.mat has no "
            "labels; it is a file of its own beside the archive of the devkit"
        )
    train = _read_cars(root / "cars_train", root / "devkit" / "cars_train_annos.mat", len(classes))
    return layout_from_lists(spec, classes, train, _read_cars(root / "cars_test", labelled, len(classes)))


def _read_cars(folder: Path, source: Path, count: int) -> ListedSplit:
    """Read the entries of `annotations`, with the fields `fname` and `class` (1..count) among others."""
    entries = _read_matlab(source, "annotations")
    if not {"fname", "class"} <= set(entries.dtype.names or ()):
        raise UserError(f"{source}: `annotations` lacks the fields `fname` and `class`; they hold images and labels")
    images, labels = [], []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry["fname"], str):
            raise UserError(f"{source}: entry {number} of `annotations` names no file")
        images.append(entry["fname"])
        number = entry["class"]
        text = f"{number:g}" if isinstance(number, float) else str(number)  # MATLAB's own numbers are floating-point
        labels.append(label_from(text, count, f"{source}, {images[-1]}"))
    nested = folder / folder.name
    return ListedSplit(source, nested if nested.is_dir() else folder, images, labels)


def _read_matlab(path: Path, name: str) -> NDArray[Any]:
    """Return the entries of one variable of a MATLAB file."""
    from scipy.io import loadmat

    try:
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])
    except Exception as error:  # a damaged file leads scipy to errors of many kinds
        reason = f"it has no variable {name!r}" if isinstance(error, KeyError) else error
        raise UserError(f"{path}: cannot be read as a MATLAB file ({reason}); extract the archive again") from None


def dtd(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read DTD: `images/CLASS/*.jpg`; the key `partition` (1..10, default 1) chooses the lists
    `labels/{train,test}N.txt`.

    The validation images of `labels/valN.txt` are left out.

    Raises:
        Absent: it is not there.
        UserError: a list is missing or malformed, names an unknown class, or an image is missing.
        UsageError: there is no such partition.
    """
    partition = spec.options.get("partition", 1)
    if not isinstance(partition, int) or isinstance(partition, bool) or not 1 <= partition <= PARTITIONS:
        raise UsageError(f"{spec.name}: `partition` is {partition!r}; it must be a number from 1 to {PARTITIONS}")
    root = dataset_root(spec, data)
    classes = class_names(root / "images")
    train, test = (_read_textures(root, f"{part}{partition}.txt", classes) for part in ("train", "test"))
    return layout_from_lists(spec, classes, train, test)


def _read_textures(root: Path, name: str, classes: Sequence[str]) -> ListedSplit:
    """Read a list with lines `CLASS/IMAGE`."""
    source = root / "labels" / name
    label_of = {name: label for label, name in enumerate(classes)}
    images, labels = [], []
    for place, fields in numbered_lines(source):
        folder, _, image = fields[0].partition("/")
        if len(fields) != 1 or not image:
            raise UserError(f"{place}: {' '.join(fields)!r} is not of the form `CLASS/IMAGE`")
        if folder not in label_of:
            raise UserError(f"{place}: {folder!r} is not a class: there is no folder {root / 'images' / folder}")
        images.append(fields[0])
        labels.append(label_of[folder])
    return ListedSplit(source, root / "images", images, labels)


def oxford_pets(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Oxford-IIIT Pets: `images/*.jpg` and lists `IMAGE CLASS SPECIES BREED`; `Abyssinian_100` is an Abyssinian.

    Raises:
        Absent: it is not there.
        UserError: a line is malformed, a class has two names or two classes one, or an image is missing.
    """
    root = dataset_root(spec, data)
    names: dict[int, str] = {}
    train, test = (_read_pets(root, name, names) for name in ("trainval.txt", "test.txt"))
    if sorted(names) != list(range(len(names))):
        raise UserError(
            f"{train.source}: the classes are not numbered from 1 to {len(names)}: {_numbered_classes(names)}"
        )
    return layout_from_lists(spec, [names[label] for label in sorted(names)], train, test)


def _read_pets(root: Path, name: str, names: dict[int, str]) -> ListedSplit:
    """Read a list, and fill in `names`, {label: class name}, on which both lists must agree."""
    source = root / "annotations" / name
    images, labels = [], []
    for place, fields in numbered_lines(source):
        if fields[0].startswith("#"):
            continue
        breed = fields[0].rpartition("_")[0]
        number = number_from(fields[1]) if len(fields) == 4 and breed else None
        if number is None:
            raise UserError(f"{place}: {' '.join(fields)!r} is not of the form `NAME_N CLASS SPECIES BREED`")
        label = number - 1
        if names.setdefault(label, breed) != breed or list(names.values()).count(breed) > 1:
            raise UserError(
                f"{place}: {fields[0]} is of class {fields[1]}, unlike a line before: {_numbered_classes(names)}"
            )
        images.append(f"{fields[0]}.jpg")
        labels.append(label)
    return ListedSplit(source, root / "images", images, labels)


def _numbered_classes(names: dict[int, str]) -> str:
    return shortened([f"{label + 1} {names[label]}" for label in sorted(names)])
