"""Read splits whose images are named by a list file, and check that the files are on disk."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from backbones.data.formats.folders import FoundLayout
from backbones.data.spec import DatasetSpec
from backbones.data.splits.integrity import check_present
from backbones.data.splits.split import FileSplit
from backbones.errors import UserError, shortened
from backbones.runtime.files import listed_path, read_lines


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


def listed_fields(path: Path, form: str) -> Iterator[list[str]]:
    """Yield the fields of every line that is neither blank nor a comment.

    Args:
        path: the list.
        form: the names of the fields; those called N and CLASS are whole numbers.

    Raises:
        UserError: a line is not of this form.
    """
    names = form.split()
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.replace("\\", "/").split()
        if not fields or fields[0].startswith("#"):
            continue
        numbers = [field for name, field in zip(names, fields) if name in ("N", "CLASS")]
        if len(fields) != len(names) or not all(field.isdecimal() for field in numbers):
            raise UserError(f"{path}:{number}: {line.strip()!r} is not of the form `{form}`")
        yield fields


def layout_from_lists(
    spec: DatasetSpec, classes: Sequence[str], train: ListedSplit | None, val: ListedSplit | None
) -> FoundLayout:
    """Return the splits, of which one may be None, once every image they name is known to exist.

    Raises:
        UserError: an image is listed twice or missing.
    """
    parts = {
        name: replace(part, images=[listed_path(part.folder, image) for image in part.images])
        for name, part in (("train", train), ("val", val))
        if part is not None
    }
    paths = [f"{part.folder}/{image}" for part in parts.values() for image in part.images]
    twice = [path for path, count in Counter(paths).items() if count > 1]
    if twice:
        sources = " and ".join(dict.fromkeys(str(part.source) for part in parts.values()))
        raise UserError(f"{sources}: {len(twice)} image(s) listed more than once: {shortened(twice)}")
    splits = {name: _split(spec, name, part) for name, part in parts.items()}
    return FoundLayout(classes=tuple(classes), train=splits.get("train"), val=splits.get("val"))


def _split(spec: DatasetSpec, name: str, part: ListedSplit) -> FileSplit:
    paths = [f"{part.folder}/{image}" for image in part.images]
    check_present(paths, name=spec.name, listed_in=part.source)
    split = FileSplit.unlabelled(name, part.folder, part.images)
    return replace(split, labels=np.array(part.labels, dtype=np.int64))
