"""The few-shot sets, in the layouts of their archives. Shapes: M images, C classes.

CUB-200-2011, Stanford Cars, DTD, Oxford-IIIT Pets, CIFAR-10 and CIFAR-100 (pickles of Python 2) have a published split,
of which the test part is evaluated (`val`); images keep the order of their lists. Caltech-101, colorectal histology and
UC Merced have none, and are divided as TensorFlow Datasets (TFDS) divides them: published few-shot results stand on it.
"""

import hashlib
import io
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from transfer.core.cache import file_stamp
from transfer.core.errors import MissingInput, UserError, shortened, unusable
from transfer.data.formats.folders import FoundLayout, class_names, read_split
from transfer.data.formats.rows import Source, SourceSplit
from transfer.data.formats.users_reader import Listed, layout_from_lists, listed_fields
from transfer.data.layouts import CIFAR10, CUB_LISTS, TISSUES
from transfer.data.spec import DatasetSpec, find_root
from transfer.data.splits.manifest import stacked
from transfer.data.splits.split import pixel_digest

LABELLED = "cars_test_annos_withlabels.mat"


def cub200(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read CUB-200-2011: `images/NNN.Name/*.jpg`, and lists `N VALUE` of paths, classes and the split (1: training)."""
    root = find_root(spec, data)
    images, labels, parts, names = (dict(listed_fields(root / name, "N VALUE")) for name in CUB_LISTS)
    if not images.keys() == labels.keys() == parts.keys():
        raise UserError(f"{root}: {', '.join(CUB_LISTS[:3])} do not list the same images")
    lists: dict[str, Listed] = {part: (root / CUB_LISTS[0], root / "images", []) for part in ("train", "val")}
    for number, path in images.items():
        lists["train" if parts[number] == "1" else "val"][2].append((path, int(labels[number])))
    return layout_from_lists(spec, {int(number): name for number, name in names.items()}, lists)


def stanford_cars(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Stanford Cars: `cars_train/` and `cars_test/` (or Kaggle's `cars_train/cars_train/`), labels in MATLAB
    files.
    """
    root = find_root(spec, data)
    names = map(str, _read_matlab(root / "devkit" / "cars_meta.mat", "class_names"))
    labelled = next((path for path in (root / LABELLED, root / "devkit" / LABELLED) if path.is_file()), None)
    if labelled is None:
        raise MissingInput(f"{spec.name}: {root / LABELLED}: file not found (nor in devkit/); download it separately")
    train = _read_cars(root / "cars_train", root / "devkit" / "cars_train_annos.mat")
    lists = {"train": train, "val": _read_cars(root / "cars_test", labelled)}
    return layout_from_lists(spec, dict(enumerate(names, start=1)), lists)


def _read_cars(folder: Path, source: Path) -> Listed:
    """Read the entries of `annotations`, with the fields `fname` and `class` (from 1) among others."""
    entries = _read_matlab(source, "annotations")
    nested = folder / folder.name
    rows = [(str(entry["fname"]), int(entry["class"])) for entry in entries]
    return source, nested if nested.is_dir() else folder, rows


def _read_matlab(path: Path, name: str) -> NDArray[Any]:
    """Return the entries of one variable of a MATLAB file."""
    from scipy.io import loadmat

    with unusable(f"{path}: cannot be read as a MATLAB file", Exception, fix="extract it again"):  # scipy's are of many
        return np.atleast_1d(loadmat(path, squeeze_me=True)[name])


def dtd(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read DTD: `images/CLASS/*.jpg`; the key `partition` (1..10, default 1) chooses the lists
    `labels/{train,test}N.txt`; the images of `labels/valN.txt` are left out.
    """
    root, partition = find_root(spec, data), spec.options.get("partition", 1)
    label_of = {name: label for label, name in enumerate(class_names(root / "images"))}
    lists = {}
    for part, name in (("train", "train"), ("val", "test")):
        source = root / "labels" / f"{name}{partition}.txt"
        rows = [(image, label_of.get(image.partition("/")[0], -1)) for [image] in listed_fields(source, "CLASS/IMAGE")]
        lists[part] = (source, root / "images", rows)
    return layout_from_lists(spec, dict(enumerate(label_of)), lists)


def oxford_pets(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Oxford-IIIT Pets: `images/*.jpg` and lists `IMAGE CLASS SPECIES BREED`; images are `BREED_N`."""
    root = find_root(spec, data)
    names: dict[int, str] = {}
    lists = {}
    for part, name in (("train", "trainval.txt"), ("val", "test.txt")):
        source = root / "annotations" / name
        fields = listed_fields(source, "NAME_N CLASS SPECIES BREED")
        rows = [(f"{image}.jpg", int(number)) for image, number, *_ in fields]
        names = {number: image.rpartition("_")[0] for image, number in reversed(rows)} | names
        lists[part] = (source, root / "images", rows)
    return layout_from_lists(spec, names, lists)


BYTES = 3 * 32 * 32


@dataclass(eq=False)
class PixelSplit(SourceSplit):
    """Images of one size, as published without any encoding; forked workers share them."""

    OF_IMAGES = ("rows", "images")
    images: NDArray[Any]
    """uint8 [M, H, W, 3]."""

    def __post_init__(self) -> None:
        if self.channels == 3:
            self.pixels = self.images

    def encoded(self, index: int) -> bytes:
        """Return a PNG of the image."""
        stream = io.BytesIO()
        self.decoded(index).save(stream, "PNG")
        return stream.getvalue()

    def decoded(self, index: int) -> Image.Image:
        """Return the image, without a PNG on the way."""
        return Image.fromarray(self.images[index]).convert(self.mode)

    def content_digest(self, index: int) -> str:
        """Return the digest of the pixels, which is also that of a PNG of the image."""
        return pixel_digest(self.images[index])

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the pixels, which are in memory."""
        return stacked(hashlib.sha256(image.tobytes()).digest() for image in self.images)


def cifar(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read `cifar-100-python/{train,test,meta}` (fine labels) or
    `cifar-10-batches-py/{data_batch_1..5,test_batch,...}`.
    """
    root = find_root(spec, data)
    if (root / "batches.meta").is_file():
        files, meta, kind = {"train": CIFAR10[:5], "val": ("test_batch",)}, "batches.meta", ""
    else:
        files, meta, kind = {"train": ("train",), "val": ("test",)}, "meta", "fine_"
    splits = {name: _cifar_split(name, root, batches, kind) for name, batches in files.items()}
    classes = tuple(_unpickle(root / meta, f"{kind}label_names"))
    return FoundLayout(classes=classes, train=splits["train"], val=splits["val"])


def _cifar_split(name: str, root: Path, files: Sequence[str], kind: str) -> PixelSplit:
    paths = [root / file for file in files]
    batches = [_read_batch(path, kind) for path in paths]
    images, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    stamp = "\n".join(f"{path.resolve()}\0{file_stamp(path)}" for path in paths)
    source = Source(tuple(map(str, paths)), tuple(len(part) for _, part in batches), stamp)
    return PixelSplit.of(name, labels, np.full(len(labels), BYTES), source, images=images)


def _read_batch(path: Path, kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images uint8 [M, 32, 32, 3] and labels int64 [M] of one file."""
    pixels, labels = np.asarray(_unpickle(path, "data")), np.asarray(_unpickle(path, f"{kind}labels"))
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), BYTES) or labels.dtype.kind != "i":
        raise UserError(f"{path}: not images with rows of {BYTES} bytes and as many labels; extract the archive again")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
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
    with unusable(f"{path}: cannot be read as a file of CIFAR", Exception, fix="extract it again"):
        return _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()[name]


CALTECH, SHOTS, SEED = "101_ObjectCategories", 30, 1234


def caltech101(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Caltech-101: `101_ObjectCategories/CLASS/image_NNNN.jpg`, itself or one level below.

    BACKGROUND_Google is one of the classes. 30 images of each are for training, the others are scored. They are drawn
    as TFDS draws them (seed 1234, one stream for all classes), but among images alone, with classes and files in sorted
    order. TFDS takes them in the order of the file system, with the archive's file BACKGROUND_Google/tmp, which is no
    image: the draws differ.
    """
    root = find_root(spec, data)
    folder = root / CALTECH if (root / CALTECH).is_dir() else root
    classes = class_names(folder)
    whole, others = read_split("train", folder, classes)
    layout = FoundLayout(classes=classes).with_split(whole, others)
    stream, chosen = np.random.RandomState(SEED), []
    for label in range(len(classes)):
        images = np.flatnonzero(whole.labels == label)
        chosen.append(stream.choice(images, min(SHOTS, len(images)), replace=False))
    train = np.sort(np.concatenate(chosen))
    return _divide(layout, train, np.setdiff1d(np.arange(len(whole)), train))


def colorectal_histology(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Kather et al. 2016: `01_TUMOR/*.tif` to `08_EMPTY/*.tif`; the key `train_images: N` is for training."""
    return _divide_class_folders(spec, find_root(spec, data), TISSUES)


def uc_merced(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read UC Merced Land Use: `Images/CLASS/CLASSNN.tif`; `train_images` as for `colorectal_histology`."""
    folder = find_root(spec, data) / "Images"
    return _divide_class_folders(spec, folder, class_names(folder))


PUBLISHED = (cub200, stanford_cars, dtd, oxford_pets, cifar, caltech101, colorectal_histology, uc_merced)


def _divide_class_folders(spec: DatasetSpec, folder: Path, folders: Sequence[str]) -> FoundLayout:
    classes = tuple(_tissue(name) if name in TISSUES else name for name in folders)
    layout = FoundLayout(classes=classes).with_split(*read_split("train", folder, folders))
    return divide_by_tfds_order(spec, layout)


def _tissue(name: str) -> str:
    """Return "tumor" for "01_TUMOR"."""
    return re.sub(r"^\d+_", "", name).lower()


def divide_by_tfds_order(spec: DatasetSpec, layout: FoundLayout) -> FoundLayout:
    """Divide the only split, all M images, in two: the first N for training, the rest to be scored.

    The order is that in which TFDS writes a split "train", by md5 of "train" and a key: the file name, in colorectal
    histology below its tissue, e.g. "tumor/NAME.tif". Both parts keep it, so they are the same in folders and Parquet.

    Args:
        spec: with the option `train_images`, N.
        layout: what to divide.

    Raises:
        UserError: names of files or tissues are missing or not the published ones, or there are not more than N images.
    """
    count, whole = spec.options.get("train_images"), layout.train
    assert whole is not None
    if not isinstance(count, int) or not 0 < count < len(whole):
        rule = f"it must be a number of images, of which some of the {len(whole)} are left to score"
        raise UserError(f"{spec.name}: `train_images` is {count!r}; {rule}")
    of_tissues, keys = spec.format == "colorectal_histology", []
    tissues = [_tissue(name) for name in layout.classes]
    if of_tissues and (odd := set(tissues).difference(map(_tissue, TISSUES))):
        known = ", ".join(map(_tissue, TISSUES))
        raise UserError(f"{spec.name}: {shortened(sorted(odd))}: none of the tissues {known}")
    for index, path in enumerate(whole.published_names()):
        name = (path or "").replace("\\", "/").rpartition("/")[2]
        if not name.lower().endswith((".tif", ".tiff")):
            stated = f"the file name {path!r}" if path else "no file name"
            rule = f"the split of {spec.name} goes by the names of the published .tif files"
            use = f"use these: {spec.how or 'the published folders'}"
            raise UserError(f"{whole.place(index)}: {stated}, but {rule}; {use}")
        keys.append(f"{tissues[whole.labels[index]]}/{name}" if of_tissues else name)
    digests = [hashlib.md5(f"train{key}".encode()).hexdigest() for key in keys]
    order = np.array(sorted(range(len(keys)), key=lambda index: (digests[index], keys[index])))
    return _divide(layout, order[:count], order[count:])


def _divide(layout: FoundLayout, train: NDArray[Any], rest: NDArray[Any]) -> FoundLayout:
    assert layout.train is not None
    whole = layout.train
    return replace(layout, train=whole.select(train), val=replace(whole.select(rest), name="val"))
