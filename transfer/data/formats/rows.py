"""Rows of tables -> splits: images and labels in the forms in which people keep them. Shapes: M images, C classes."""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened, unusable
from transfer.core.files import listed_path, with_home
from transfer.data.formats import folders
from transfer.data.formats.folders import FoundLayout
from transfer.data.spec import DatasetSpec, text_option
from transfer.data.splits.integrity import check_present, read_once
from transfer.data.splits.manifest import PackedNames, stacked
from transfer.data.splits.split import FileSplit, Split

if TYPE_CHECKING:
    from datasets import Dataset

Part = TypeVar("Part", bound=Hashable)


@dataclass(frozen=True)
class Source:
    """The origin of rows, for messages: files with their numbers of rows, or one name for all."""

    files: tuple[str, ...]
    rows: tuple[int, ...]
    stamp: str

    def place(self, row: int) -> str:
        """Return "FILE, row N" with N counted from 0 in that file."""
        ends = np.cumsum(self.rows)
        at = int(np.searchsorted(ends, row, side="right"))
        return f"{self.files[at]}, row {row - ends[at] + self.rows[at]}"


@dataclass(eq=False)
class SourceSplit(Split):
    """A split of which several images lie in one file."""

    OF_IMAGES: ClassVar[Sequence[str]] = ("rows",)
    rows: NDArray[Any]
    """int64 [M]: the place of each image in the files of `source`."""
    source: Source

    @classmethod
    def of(cls, name: str, labels: NDArray[Any], sizes: NDArray[Any], source: Source, **more: Any) -> Self:
        """Return the images of all rows of a source, which are named by their numbers; `more` are fields."""
        rows, names = np.arange(len(labels)), PackedNames.of(f"{name}/{row:06d}" for row in range(len(labels)))
        labels, sizes = labels.astype(np.int64), sizes.astype(np.int64)
        return cls(name=name, labels=labels, names=names, sizes=sizes, rows=rows, source=source, **more)

    def place(self, index: int) -> str:
        """Return file and row."""
        return self.source.place(int(self.rows[index]))

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return the files' stamp and the row."""
        return [f"{self.source.stamp}\0{self.rows[index]}" for index in indices]


@dataclass(eq=False)
class RowSplit(SourceSplit):
    """A split whose images are rows of an Arrow table."""

    table: "Dataset"
    column: str

    def encoded(self, index: int) -> bytes:
        """Return the row's bytes."""
        return self.table[int(self.rows[index])][self.column]["bytes"]

    def contents(self, what: str) -> NDArray[Any]:
        """Return the digests of the rows' bytes, kept under the stamps: each state of the files is read once."""
        listing = ["contents", *self.stamps(range(len(self)))]
        digests = read_once(lambda index: hashlib.sha256(self.encoded(index)).hexdigest(), listing, f"reading {what}")
        return stacked(map(bytes.fromhex, digests))

    def published_names(self) -> Sequence[str | None]:
        """Return the `path` that each row keeps beside its image."""
        import pyarrow.compute as pc

        paths = pc.struct_field(self.table.data.column(self.column), "path").to_pylist()
        return [paths[row] for row in self.rows.tolist()]


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a split and their origin."""

    table: "Dataset"
    source: Source
    folders: tuple[Path, ...] = ()
    """Folders from which relative paths in the rows may start."""

    def column(self, key: str, kind: str, column_name: str | None) -> str:
        """Return the column that is named, else the only one of a type of `datasets`, else that of the key's name.

        Raises:
            UserError: there is none, or several.
        """
        features = self.table.features
        fitting = [name for name, feature in features.items() if type(feature).__name__ == kind]
        if column_name or not fitting:
            fitting = [name for name in features if name == (column_name or key)]
        if len(fitting) == 1:
            return str(fitting[0])
        kinds = (f"{name} ({getattr(kind, 'dtype', None) or type(kind).__name__})" for name, kind in features.items())
        fault = f"no column {column_name!r}" if column_name else f"{len(fitting) or 'no'} columns of type {kind}"
        fix = f"set the key `{key}` to one of the columns: {', '.join(kinds)}"
        raise UserError(f"{self.source.files[0]}: {fault}: {fix}")

    def check_values(self, values: Any, column: str) -> None:
        """Raise UserError that names the first row without a value."""
        if values.null_count:
            place = self.source.place(int(np.flatnonzero(values.is_null().to_numpy())[0]))
            raise UserError(f"{place}: no value in column {column!r} ({values.null_count} rows like this)")


class RowLabels(NamedTuple):
    """The labels of rows as they stand there."""

    values: NDArray[Any]
    """[M], int64 or texts."""
    names: Sequence[str] | None
    """Of the classes, where the table has them."""
    absent: str = ""
    """Why there are none."""


def read_labels(rows: Rows, column_name: str | None) -> RowLabels:
    """Return whole numbers, of any type, or texts; -1 or an empty text in all rows means that there are no labels.

    Args:
        rows: the rows.
        column_name: the column; None: see `Rows.column`.

    Raises:
        UserError: a row has no label, or the column holds something else.
    """
    import pyarrow as pa

    try:
        column = rows.column("label", "ClassLabel", column_name)
    except UserError as error:
        return RowLabels(np.empty(0), None, f"no labels ({error})")
    values = rows.table.data.column(column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if values.null_count == len(values):
        return RowLabels(np.empty(0), None, "no labels (no value)")
    texts, numbers = ("is_string", "is_large_string"), ("is_integer", "is_floating", "is_boolean")
    if not any(getattr(pa.types, test)(values.type) for test in texts + numbers):
        raise UserError(f"{rows.source.files[0]}: column {column!r} holds {values.type}, not classes")
    rows.check_values(values, column)
    if any(getattr(pa.types, test)(values.type) for test in texts):
        words = np.array(values.to_pylist(), dtype=object)
        return RowLabels(words, None, f"no labels ({words[0] or 'empty texts'})" if {*words} <= {"", "-1"} else "")
    stored = values.to_numpy()
    labels = stored.astype(np.int64)
    if len(odd := np.flatnonzero(stored != labels)):
        first = int(odd[0])
        raise UserError(f"{rows.source.place(first)}: label {stored[first]} in column {column!r} is not an integer")
    names = getattr(rows.table.features[column], "names", None)
    return RowLabels(labels, names, "no labels (-1)" if (labels == -1).all() else "")


def shared_classes(
    name: str, labels: Mapping[str, RowLabels]
) -> tuple[tuple[str, ...], dict[str, NDArray[Any]], list[str]]:
    """Return the classes of all splits, the labels 0..C-1 of each split, and notes on how labels became numbers.

    Texts are the classes themselves, numbered `in_order`; numbers without names are classes: those that occur, or where
    nothing is trained on all from 0, or from 1 where no 0 is among them.

    Raises:
        UserError: the splits have different classes.
    """
    class_names = [part.names for part in labels.values() if part.names]
    if any(names != class_names[0] for names in class_names):
        raise UserError(f"{name}: {folders.class_difference(*(part.names or [] for part in labels.values()))}")
    if class_names:
        label_of = {text: label for label, text in enumerate(class_names[0])}
        named = [split for split, part in labels.items() if part.values.dtype == object]
        numbers_of = {split: np.array([label_of.get(text, -1) for text in labels[split].values]) for split in named}
        return tuple(class_names[0]), {split: part.values for split, part in labels.items()} | numbers_of, []
    gaps, texts = "", {split: list(map(str, part.values.tolist())) for split, part in labels.items()}
    if any(part.values.dtype == object for part in labels.values()):
        classes = folders.in_order({*next(iter(texts.values()))})
    else:
        present = np.unique(np.concatenate([part.values for part in labels.values()])).tolist()
        numbers = present if "train" in labels else range(int(present[0] > 0), present[-1] + 1)
        gaps = folders.missing_numbers(numbers)
        classes = [str(number) for number in numbers if number >= 0]
    if unknown := sorted({*chain(*texts.values())}.difference(classes)):
        raise UserError(f"{name}: {len(unknown)} label(s) are not classes of {next(iter(texts))}: {shortened(unknown)}")
    label_of = {text: label for label, text in enumerate(classes)}
    labels_of = {split: np.array([*map(label_of.get, part)]) for split, part in texts.items()}
    note = f"labels {folders.in_short(classes)} are numbered 0 to {len(classes) - 1}{gaps}"
    return tuple(classes), labels_of, [] if classes == [*map(str, range(len(classes)))] else [note]


def read_images(split: str, rows: Rows, labels: NDArray[Any], column_name: str | None) -> Split:
    """Return the images of rows: encoded, or files that the rows name.

    Args:
        split: the name of the split.
        rows: the rows.
        labels: [M].
        column_name: the column; None: see `Rows.column`.

    Raises:
        UserError: a row has no image, a file is missing, or the column holds something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Image

    column = rows.column("image", "Image", column_name)
    kinds = (pa.ArrowException, TypeError, ValueError)
    with unusable(f"{rows.source.files[0]}: column {column!r} holds no images", *kinds):
        table = rows.table.select_columns([column]).cast_column(column, Image(decode=False))
        stored = table.data.column(column)
        content, paths = (pc.struct_field(stored, field) for field in ("bytes", "path"))
    if content.null_count == len(labels):
        rows.check_values(paths, column)
        names = [with_home(path) for path in paths.to_pylist()]
        # relative paths start where the first of them is found
        holders = (folder for folder in rows.folders if (folder / listed_path(folder, names[0])).exists())
        folder = next(holders, rows.folders[0])
        full = [os.path.join(folder, listed_path(folder, name)) for name in names]  # noqa: PTH118 (absolute ones stay)
        check_present(full, name=shortened(rows.source.files), listed_in=Path(rows.source.files[0]))
        if any(map(os.path.isabs, names)):
            folder = Path(os.path.commonpath([os.path.dirname(path) for path in full]))  # noqa: PTH120
        return FileSplit.of(split, folder, (os.path.relpath(path, folder) for path in full), labels)
    rows.check_values(content, column)
    sizes = pc.binary_length(content).to_numpy()
    return RowSplit.of(split, labels, sizes, rows.source, table=table, column=column)


def layout_from_rows(
    spec: DatasetSpec, place: object, find: Callable[[str], Part | None], read: Callable[[Part], Rows], origin: str = ""
) -> FoundLayout:
    """Return the splits that `choose_splits` finds.

    Args:
        spec: with the keys `train`, `val`, `image`, `label`.
        place, find: see `choose_splits`.
        read: gives the rows of a part.
        origin: of rows in the hub's cache, see `FoundLayout`.

    Raises:
        UserError: columns or labels do not serve, or the classes of the splits differ.
    """
    read = cache(read)
    labels_of = cache(lambda part: read_labels(read(part), text_option(spec, "label")))
    parts, notes = folders.choose_splits(spec, place, find, lambda part, _: labels_of(part).absent)
    labels = {name: labels_of(part) for name, part in parts.items()}
    if "train" in labels and labels["train"].absent:
        raise UserError(f"{spec.name}: train has {labels['train'].absent}")
    classes, numbers, more = shared_classes(spec.name, labels)
    layout = FoundLayout(classes=classes, storage="hub" if origin else "parquet", origin=origin, notes=notes + more)
    for name, part in parts.items():
        layout = layout.with_split(read_images(name, read(part), numbers[name], text_option(spec, "image")))
    return layout
