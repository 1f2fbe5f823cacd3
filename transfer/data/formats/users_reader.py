"""Readers of datasets in users' files: `format: path/to/file.py:NAME` in the YAML of a dataset.

Such a function is called with the folder of the dataset and the further keys of the YAML. It returns lists by split,
and what a list holds depends on what the dataset is for.
"""

import hashlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transfer.core.errors import UsageError, UserError, did_you_mean, shortened, unusable
from transfer.core.files import listed_path, numbered_lines, with_home
from transfer.core.user_code import digest, load_part
from transfer.data.formats.folders import FoundLayout, in_order, in_short, missing_numbers
from transfer.data.spec import DatasetSpec, find_root
from transfer.data.splits.integrity import check_present
from transfer.data.splits.split import FileSplit, Split

if TYPE_CHECKING:
    from torch import Tensor

Listed = tuple[Path, Path, list[tuple[str, int]]]
"""A list of images, for messages; their folder; and of each image its path below the folder and the number of its
class.
"""


def listed_fields(path: Path, form: str) -> Iterator[list[str]]:
    """Yield the fields of every line that is neither blank nor a comment.

    Args:
        path: the list.
        form: the names of the fields; those called N and CLASS are whole numbers.

    Raises:
        UserError: a line is not of this form.
    """
    names = form.split()
    for number, line in numbered_lines(path).items():
        fields = line.replace("\\", "/").split()
        if fields[0].startswith("#"):
            continue
        numbers = [field for name, field in zip(names, fields) if name in ("N", "CLASS")]
        if len(fields) != len(names) or not all(field.isdecimal() for field in numbers):
            raise UserError(f"{path}:{number}: {line.strip()!r} is not of the form `{form}`")
        yield fields


def layout_from_lists(
    spec: DatasetSpec, names: Mapping[int, str], lists: Mapping[str, Listed], make: Callable[..., Split] = FileSplit.of
) -> FoundLayout:
    """Return the listed splits, "train", "val" or both, which `make` makes as `FileSplit.of` does.

    Labels are 0..C-1 in the order of the numbers that have names, and a note says which numbers between them have none.

    Raises:
        UserError: an image is missing, or its class has no name.
    """
    numbers = sorted(names)
    label_of = {number: label for label, number in enumerate(numbers)}
    gaps = missing_numbers(numbers)
    notes = [f"classes {in_short([*map(str, numbers)])} are numbered 0 to {len(numbers) - 1}{gaps}"] if gaps else []
    layout = FoundLayout(classes=tuple(names[number] for number in numbers), notes=notes)
    for name, (source, folder, rows) in lists.items():
        images = [listed_path(folder, image) for image, _ in rows]
        check_present([f"{folder}/{image}" for image in images], name=spec.name, listed_in=source)
        if unnamed := [f"{image} {number}" for image, number in rows if number not in label_of]:
            raise UserError(f"{source}: {len(unnamed)} images of a class without a name: {shortened(unnamed, 3)}")
        layout = layout.with_split(make(name, folder, images, [label_of[number] for _, number in rows]))
    return layout


class WrongReader(UsageError):
    """A user's function reads a dataset for something else."""


def read_by_user(spec: DatasetSpec, data: Path | None) -> tuple[Path, Any]:
    """Return the folder of a dataset, and what the user's function returns for it.

    Args:
        spec: its facts; `spec.reader` names the function.
        data: the `--data` option.

    Raises:
        DatasetNotFound: the folder is missing.
        UsageError: the function does not take the keys of the YAML.
    """
    root, function = find_root(spec, data), load_part(spec.reader)
    signature = inspect.signature(function)
    options = {key: value for key, value in spec.options.items() if key != "exif"}  # the key of who reads the images
    try:
        signature.bind(root, **options)
    except TypeError as error:
        known = [*list(signature.parameters)[1:], *(item.name for item in fields(spec))]
        near = "".join(did_you_mean(key, known) for key in options if key not in known)
        raise UsageError(f"{spec.name}: the keys of its YAML do not fit {spec.reader}: {error}{near}") from None
    return root, function(root, **options)


def rows_by_split(
    spec: DatasetSpec, result: Any, splits: Collection[str], wanted: str, fits: Callable[[Any], bool]
) -> dict[str, list[Any]]:
    """Return what a user's function returned, once it is known to be lists of rows by split.

    Args:
        splits: the names of the splits, of which some may be missing.
        wanted: what is wanted, for messages.
        fits: tells whether a row is right.

    Raises:
        WrongReader: it is something else.
    """
    what = ""
    if not isinstance(result, dict) or not result or not set(result) <= set(splits):
        what = f"a dict of {', '.join(map(repr, result)) or 'nothing'}" if isinstance(result, dict) else repr(result)
    rows = {} if what else {name: list(part) for name, part in result.items()}
    for name, part in rows.items():
        wrong = [row for row in part if not fits(row)][:1]
        if wrong or not part:
            what = f"{f'the row {wrong[0]!r}' if part else 'no rows'} in {name!r}"
    if what:
        raise WrongReader(f"{spec.reader} returned {what[:200]}; wanted: {wanted}")
    return rows


def file_below(root: Path, path: Any) -> str:
    """Return a path of a user's function relative to the folder of the dataset. Raises UserError."""
    try:
        below = (root / with_home(str(path))).relative_to(root).as_posix()
    except ValueError:
        raise UserError(f"{path}: lies outside {root}, the `root` of the dataset") from None
    return listed_path(root, below)


@dataclass(eq=False)
class ArraySplit(FileSplit):
    """Files of any number of channels, which go to the model as tensors, without PIL."""

    gives_arrays = True
    decode: Callable[[str], Any]
    """Path -> [H, W, C], uint8, or float32 in [0, 1]."""
    source: str
    """The sha256 of the function's file."""

    def decoded(self, index: int) -> Any:
        """Return the array. Raises UserError that names its file."""
        path = self.path(index)
        with unusable(f"{path}: `decode` of the dataset's reader fails", Exception):
            array = np.asarray(self.decode(path))
        if array.ndim != 3 or array.dtype not in (np.uint8, np.float32):
            wanted = "wanted: [H, W, C], uint8, or float32 in [0, 1]"
            raise UserError(f"{path}: `decode` gives {array.dtype} {list(array.shape)}; {wanted}")
        return array

    def read_pixels(self, index: int) -> "Tensor":
        """Return the array as [C, H, W]. Raises UserError for other channels than the backbone's."""
        from transfer.data.loading.images import to_pixels

        pixels = to_pixels(self.decoded(index))
        if (count := len(pixels)) != self.channels:
            fault = f"{count} channels, for a backbone of {self.channels}"
            raise UserError(f"{self.path(index)}: {fault}: set --in-chans {count}")
        return pixels

    def read_channels(self, channels: int) -> None:
        """Have images read with so many channels."""
        self.channels = channels

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return those of the files, with that of the function."""
        return [f"{stamp}\0{self.source}" for stamp in super().stamps(indices)]

    def content_digest(self, index: int) -> str:
        """Return the digest of the file's bytes."""
        return hashlib.sha256(self.encoded(index)).hexdigest()

    def preload(self, limit: int) -> None:
        """Do nothing: arrays are read when they are wanted."""


def split_maker(spec: DatasetSpec, result: Any) -> Callable[..., FileSplit]:
    """Return what makes a split of files: of arrays where `decode` is taken out of what the user's function returned,
    else of images.
    """
    decode = result.pop("decode", None) if isinstance(result, dict) else None
    return FileSplit.of if decode is None else partial(ArraySplit.of, decode=decode, source=digest(spec.reader))


def classification_by_user(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Return the splits that a user's function lists as (path, class name), sorted by class and path.

    It may return a `FoundLayout` itself, with splits of a class of its own.

    Raises:
        UserError: the function returns something else, or an image is missing.
    """
    root, result = read_by_user(spec, data)
    if isinstance(result, FoundLayout):
        return result
    make = split_maker(spec, result)
    rows = rows_by_split(
        spec,
        result,
        ("train", "val"),
        "a dict with 'train', 'val' or both, each a list of (path, class name), and `decode` for arrays",
        lambda row: isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[1], str),
    )
    classes = in_order({name for _, name in chain(*rows.values())})
    labels = {name: label for label, name in enumerate(classes)}
    file = Path(spec.reader.rpartition(":")[0])
    lists: dict[str, Listed] = {}
    for split, part in rows.items():
        files = sorted((labels[name], file_below(root, path)) for path, name in part)
        lists[split] = (file, root, [(path, label) for label, path in files])
    return layout_from_lists(spec, dict(enumerate(classes)), lists, make)
