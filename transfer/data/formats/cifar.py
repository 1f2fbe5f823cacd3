"""CIFAR-10 and CIFAR-100 as published: pickles of Python 2. Shapes: M images."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.cache import file_stamp
from transfer.core.errors import UserError, reason_of
from transfer.data.formats.folders import FoundLayout, dataset_root
from transfer.data.packed import PackedNames
from transfer.data.spec import DatasetSpec
from transfer.data.splits.in_memory import PixelSplit, Source

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
