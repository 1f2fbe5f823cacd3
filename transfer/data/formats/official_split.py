"""Sets with a published split, in the layouts of their archives: CUB-200-2011, Stanford Cars, DTD, Oxford-IIIT Pets,
and CIFAR-10 and CIFAR-100, which are pickles of Python 2.

The published test part is evaluated (`val`). Images keep the order of their lists. Shapes: M images, C classes.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.cache import file_stamp
from transfer.core.errors import MissingInput, UserError, reason_of
from transfer.data.formats.folders import FoundLayout, class_names, dataset_root
from transfer.data.formats.users_reader import ListedSplit, layout_from_lists, listed_fields
from transfer.data.layouts import CUB_LISTS
from transfer.data.spec import DatasetSpec
from transfer.data.splits.in_memory import PixelSplit, Source
from transfer.data.splits.manifest import PackedNames

LABELLED = "cars_test_annos_withlabels.mat"


def cub200(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read CUB-200-2011: `images/NNN.Name/*.jpg`, and lists `N VALUE` of paths, classes and the split (1: training).

    Raises:
        DatasetNotFound: it is not there.
        UserError: a line is malformed, the lists do not fit together, or an image is missing.
    """
    root = dataset_root(spec, data)
    *tables, names = ([*listed_fields(root / name, "N VALUE")] for name in CUB_LISTS)
    ids = {number for number, _ in tables[0]}
    if any(sorted(number for number, _ in table) != sorted(ids) for table in tables):
        raise UserError(f"{root}: {', '.join(CUB_LISTS[:3])} do not list the same images, each once")
    numbers, parts = map(dict, tables[1:])
    rows = [(path, int(numbers[number]) - 1, parts[number]) for number, path in tables[0]]
    train, val = (
        ListedSplit(
            root / CUB_LISTS[0],
            root / "images",
            [path for path, _, part in rows if (part == "1") is trained],
            [label for _, label, part in rows if (part == "1") is trained],
        )
        for trained in (True, False)
    )
    return layout_from_lists(spec, [name for _, name in sorted(names, key=lambda row: int(row[0]))], train, val)


def stanford_cars(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Stanford Cars: `cars_train/` and `cars_test/` (or Kaggle's `cars_train/cars_train/`), labels in MATLAB
    files.

    Raises:
        DatasetNotFound: it is not there.
        UserError: a MATLAB file is missing or corrupt, or an image is missing.
    """
    root = dataset_root(spec, data)
    classes = [str(name) for name in _read_matlab(root / "devkit" / "cars_meta.mat", "class_names")]
    labelled = next((path for path in (root / LABELLED, root / "devkit" / LABELLED) if path.is_file()), None)
    if labelled is None:
        raise MissingInput(
            f"{spec.name}: {root / LABELLED}: file not found (nor in devkit/), and cars_test_annos.mat has no "
            "labels; download it separately from the devkit archive"
        )
    train = _read_cars(root / "cars_train", root / "devkit" / "cars_train_annos.mat")
    return layout_from_lists(spec, classes, train, _read_cars(root / "cars_test", labelled))


def _read_cars(folder: Path, source: Path) -> ListedSplit:
    """Read the entries of `annotations`, with the fields `fname` and `class` (from 1) among others."""
    images = [str(name) for name in _read_matlab(source, "annotations", "fname")]
    labels = [int(number) - 1 for number in _read_matlab(source, "annotations", "class")]
    nested = folder / folder.name
    return ListedSplit(source, nested if nested.is_dir() else folder, images, labels)


def _read_matlab(path: Path, name: str, field: str = "") -> NDArray[Any]:
    """Return the entries of one variable of a MATLAB file, or one field of them."""
    from scipy.io import loadmat

    try:
        entries = np.atleast_1d(loadmat(path, squeeze_me=True)[name])
        return entries[field] if field else entries
    except Exception as error:  # a corrupt file makes scipy raise errors of many kinds
        reason = f"it has no variable {name!r}" if isinstance(error, KeyError) else error
        raise UserError(f"{path}: cannot be read as a MATLAB file ({reason}); extract the archive again") from None


def dtd(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read DTD: `images/CLASS/*.jpg`; the key `partition` (1..10, default 1) chooses the lists
    `labels/{train,test}N.txt`.

    The validation images of `labels/valN.txt` are left out.

    Raises:
        DatasetNotFound: it is not there.
        UserError: an image is missing.
    """
    root, partition = dataset_root(spec, data), spec.options.get("partition", 1)
    label_of = {name: label for label, name in enumerate(class_names(root / "images"))}
    parts = []
    for source in (root / "labels" / f"{part}{partition}.txt" for part in ("train", "test")):
        images = [image for [image] in listed_fields(source, "CLASS/IMAGE")]
        labels = [label_of.get(image.partition("/")[0], -1) for image in images]
        parts.append(ListedSplit(source, root / "images", images, labels))
    return layout_from_lists(spec, [*label_of], *parts)


def oxford_pets(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Oxford-IIIT Pets: `images/*.jpg` and lists `IMAGE CLASS SPECIES BREED`; `Abyssinian_100` is an Abyssinian.

    Raises:
        DatasetNotFound: it is not there.
        UserError: a line is malformed, a class has two names, or an image is missing.
    """
    root = dataset_root(spec, data)
    names: dict[int, str] = {}
    parts = []
    for source in (root / "annotations" / name for name in ("trainval.txt", "test.txt")):
        rows = [(image, int(number) - 1) for image, number, *_ in listed_fields(source, "NAME_N CLASS SPECIES BREED")]
        parts.append(ListedSplit(source, root / "images", [f"{name}.jpg" for name, _ in rows], [n for _, n in rows]))
        for image, label in rows:
            breed = image.rpartition("_")[0]
            if names.setdefault(label, breed) != breed:
                raise UserError(f"{source}: {image} is of class {label + 1}, as {names[label]} is")
    return layout_from_lists(spec, [names[label] for label in sorted(names)], *parts)


SIDE, CHANNELS = 32, 3
BYTES = CHANNELS * SIDE * SIDE
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
HINT = "extract the archive again"


def cifar(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read `cifar-100-python/{train,test,meta}` (fine labels) or
    `cifar-10-batches-py/{data_batch_1..5,test_batch,...}`.

    Raises:
        DatasetNotFound: it is not there.
        UserError: a file is corrupt, or not of the published form.
    """
    root = dataset_root(spec, data)
    if (root / "batches.meta").is_file():
        files, meta, kind = {"train": BATCHES, "val": ("test_batch",)}, "batches.meta", ""
    else:
        files, meta, kind = {"train": ("train",), "val": ("test",)}, "meta", "fine_"
    classes = tuple(_unpickle(root / meta, f"{kind}label_names"))
    splits = {name: _split(name, [root / file for file in files[name]], kind) for name in files}
    return FoundLayout(classes=classes, train=splits["train"], val=splits["val"])


def _split(name: str, paths: Sequence[Path], kind: str) -> PixelSplit:
    batches = [_read_batch(path, kind) for path in paths]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    stamps = (f"{path.resolve()}\0{file_stamp(path)}" for path in paths)
    source = Source(tuple(map(str, paths)), tuple(len(part) for _, part in batches), "\n".join(stamps))
    return PixelSplit(
        name=name,
        labels=labels,
        names=PackedNames(f"{name}/{row:06d}" for row in range(len(labels))),
        sizes=np.full(len(labels), BYTES, dtype=np.int64),
        images=images,
        rows=np.arange(len(labels)),
        source=source,
    )


def _read_batch(path: Path, kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images uint8 [M, 32, 32, 3] and labels int64 [M] of one file."""
    pixels, labels = np.asarray(_unpickle(path, "data")), np.asarray(_unpickle(path, f"{kind}labels"))
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), BYTES) or labels.dtype.kind != "i":
        raise UserError(f"{path}: not images with rows of {BYTES} bytes and as many labels; {HINT}")
    images = pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int64)


class _Unpickler(pickle.Unpickler):
    """Builds numbers, texts, lists, dictionaries and numpy arrays, and refuses to call anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few objects that a pickled array asks for."""
        arrays = ("numpy.core.multiarray", "numpy._core.multiarray")  # numpy before 2 and since
        if module in arrays and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return lambda text, _: text.encode("latin1")  # as Python 3 pickles bytes for Python 2
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no published file does")


def _unpickle(path: Path, name: str) -> Any:
    """Return an entry of the dictionary that a file holds."""
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()[name]
    except Exception as error:  # a corrupt pickle raises errors of any kind
        raise UserError(f"{path}: cannot be read as a file of CIFAR ({reason_of(error)}); {HINT}") from None
