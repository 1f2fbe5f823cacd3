"""CIFAR-10 and CIFAR-100 as published: pickles of Python 2. Letters: M images."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.data.array_index import file_stamp
from backbones.data.formats.folders import FoundLayout, dataset_root
from backbones.data.spec import DatasetSpec
from backbones.data.splits.arrow_split import Source
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.pixel_split import PixelSplit
from backbones.errors import UserError

SIDE, CHANNELS = 32, 3
BYTES = CHANNELS * SIDE * SIDE
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
HINT = "extract the archive again"


def cifar(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read `cifar-100-python/{train,test,meta}` (fine labels) or
    `cifar-10-batches-py/{data_batch_1..5,test_batch,...}`.

    Raises:
        Absent: it is not there.
        UserError: a file is damaged, is not of the published form, or has a label out of range.
    """
    root = dataset_root(spec, data)
    if (root / "batches.meta").is_file():
        files, meta, kind = {"train": BATCHES, "val": ("test_batch",)}, "batches.meta", ""
    else:
        files, meta, kind = {"train": ("train",), "val": ("test",)}, "meta", "fine_"
    classes = _unpickle(root / meta).get(f"{kind}label_names")
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise UserError(f"{root / meta}: `{kind}label_names` is no list of names; {HINT}")
    splits = {name: _split(name, [root / file for file in files[name]], kind, len(classes)) for name in files}
    empty = sorted(set(range(len(classes))) - set(splits["train"].labels.tolist()))
    if empty:
        raise UserError(f"{root}: {len(empty)} class(es) without training images, the first is {classes[empty[0]]}")
    return FoundLayout(classes=tuple(classes), train=splits["train"], val=splits["val"])


def _split(name: str, paths: Sequence[Path], kind: str, count: int) -> PixelSplit:
    batches = [_read_batch(path, kind, count) for path in paths]
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


def _read_batch(path: Path, kind: str, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images uint8 [M, 32, 32, 3] and labels int64 [M] of one file, both checked."""
    content = _unpickle(path)
    pixels, labels = content.get("data"), content.get(f"{kind}labels")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (BYTES,)
        or not len(pixels)
    ):
        raise UserError(f"{path}: `data` is not an array of bytes with rows of {BYTES}; {HINT}")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise UserError(f"{path}: `{kind}labels` is not a list of {len(pixels)} numbers; {HINT}")
    wrong = [row for row, label in enumerate(labels) if not 0 <= label < count]
    if wrong:
        raise UserError(
            f"{path}, row {wrong[0]}: label {labels[wrong[0]]} is outside 0..{count - 1} ({len(wrong)} rows like this)"
        )
    images = pixels.reshape(-1, CHANNELS, SIDE, SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.int64)


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
            return _latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no published file does")


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Encode as Python 3 pickles bytes for Python 2; other encodings are not needed."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _unpickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle leads to errors of any kind
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path}: cannot be read as a file of CIFAR ({reason}); {HINT}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a dictionary, as files of CIFAR are; {HINT}")
    return content
