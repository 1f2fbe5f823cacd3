"""Read splits whose images are named by a list file, and check that the files are on disk."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backbones.data.formats.folders import FoundLayout
from backbones.data.spec import DatasetSpec
from backbones.data.splits.integrity import stat_files
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.split import FileSplit
from backbones.errors import UserError, shortened


@dataclass(frozen=True)
class ListedSplit:
    """The images of one split, in the order of their list."""

    source: Path
    """The list, for messages."""
    folder: Path
    images: list[str]
    """Paths below `folder`."""
    labels: list[int]
    """0..C-1."""


def numbered_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield ("FILE:LINE", fields of that line) for every line that is not blank. Raises UserError when it is
    unreadable.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "not UTF-8"
        raise UserError(f"{path}: cannot be read: {reason}; extract the archive again") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"{path}:{number}", line.split()


def number_from(text: str) -> int | None:
    """Return the number that a few decimal digits stand for; None for any other text."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def label_from(text: str, count: int, place: str) -> int:
    """Return the label 0..count-1 that a class number 1..count stands for. Raises UserError that names the place."""
    number = number_from(text)
    if number is None or not 1 <= number <= count:
        raise UserError(f"{place}: class {text!r} is outside 1..{count}")
    return number - 1


def layout_from_lists(
    spec: DatasetSpec, classes: Sequence[str], train: ListedSplit | None, val: ListedSplit | None
) -> FoundLayout:
    """Return the splits, of which one may be None, once every image they name is known to exist.

    Raises:
        UserError: an image is listed twice or missing, or a class is without training images.
    """
    parts = {name: part for name, part in (("train", train), ("val", val)) if part is not None}
    paths = [f"{part.folder}/{image}" for part in parts.values() for image in part.images]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        sources = " and ".join(dict.fromkeys(str(part.source) for part in parts.values()))
        raise UserError(f"{sources}: {len(twice)} image(s) listed more than once: {shortened(twice)}")
    empty = sorted(set(range(len(classes))) - set(train.labels)) if train else []
    if train and empty:
        names = shortened([classes[label] for label in empty])
        raise UserError(f"{train.source}: {len(empty)} class(es) without training images: {names}")
    splits = {name: _split(spec, name, part) for name, part in parts.items()}
    return FoundLayout(classes=tuple(classes), train=splits.get("train"), val=splits.get("val"))


def _split(spec: DatasetSpec, name: str, part: ListedSplit) -> FileSplit:
    paths = [f"{part.folder}/{image}" for image in part.images]
    try:
        stats = stat_files(paths, name=spec.name)
    except UserError as error:
        raise UserError(f"{error}\n{part.source} names them: extract the archive of the images again") from None
    return FileSplit(
        name=name,
        labels=np.array(part.labels, dtype=np.int64),
        names=PackedNames(part.images),
        sizes=np.array([stats[path].st_size for path in paths], dtype=np.int64),
        folder=part.folder,
    )
