"""Classification sets as Parquet files, read with Hugging Face `datasets`; see `hub` for those in the hub's cache.

Rows are converted once to Arrow files, which give random access and are shared by all processes. They are as large as
the data, so they lie where the user's other ones do (`HF_DATASETS_CACHE`, `HF_HOME`), not in this suite's cache folder.
Images stay encoded until they are read. Nothing is downloaded. Letters: M images, C classes.
"""

import contextlib
import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from backbones.data.array_index import file_stamp
from backbones.data.formats.folders import FoundLayout, StorageVariant, class_difference
from backbones.data.spec import DatasetSpec, find_root, text_option
from backbones.data.splits.arrow_split import RowSplit, Source
from backbones.data.splits.packed_names import PackedNames
from backbones.errors import MissingInput, UserError, first_line, shortened

if TYPE_CHECKING:
    from datasets import Dataset

TRAIN = ("train",)
VALIDATION = ("validation", "val", "test")
PATTERNS = ("{}.parquet", "{}-*.parquet", "data/{}-*.parquet")


def parquet(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Parquet files; keys `train`, `val` (a file or a pattern), `image`, `label` (columns).

    Raises:
        UserError: a file is missing or damaged, or its columns or labels do not serve.
    """
    root = find_root(spec, data)
    files = {"train": _named_files(spec, root, "train", TRAIN), "val": _named_files(spec, root, "val", VALIDATION)}
    if not any(files.values()):
        raise MissingInput(f"{spec.name}: {root} holds no train.parquet; name the files by the keys `train` and `val`")
    return layout_from_tables(
        spec, {split: read_files(paths) for split, paths in files.items() if paths}, storage="parquet"
    )


def _named_files(spec: DatasetSpec, root: Path, key: str, usual: Sequence[str]) -> list[Path]:
    named = text_option(spec, key)
    patterns = [named] if named else [pattern.format(name) for name in usual for pattern in PATTERNS]
    for pattern in patterns:
        place = Path(pattern).anchor  # of an absolute pattern
        files = sorted((Path(place) if place else root).glob(pattern.removeprefix(place)))
        if files:
            return files
    if named:
        raise MissingInput(f"{spec.name}: {root / named}: there is no such file (key `{key}`)")
    return []


def read_files(paths: Sequence[Path]) -> tuple["Dataset", Source]:
    """Return the rows of Parquet files, one after the other.

    Raises:
        UserError: a file is damaged, or there are no rows.
    """
    import pyarrow
    from datasets import Dataset
    from pyarrow.parquet import ParquetFile

    rows, stamps = [], []
    for path in paths:
        try:
            with ParquetFile(path) as file:
                rows.append(file.metadata.num_rows)
            stamps.append(f"{path.resolve()}\0{file_stamp(path)}")
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path}: cannot be read as Parquet: {first_line(error)}") from None
    source = Source(tuple(map(str, paths)), tuple(rows), "\n".join(stamps))
    if not sum(rows):
        raise UserError(f"{shortened(source.files)}: there are no rows")
    with quiet_datasets(shortened(source.files)):
        table = Dataset.from_parquet([str(path) for path in paths], cache_dir=str(_converted(source)))
    return table, source


def _converted(source: Source) -> Path:
    """Return the folder of the rows converted from files: one for each state of these.

    `datasets` takes files of equal names and times for equal, and would give the rows of files that were replaced.
    """
    import datasets

    digest = hashlib.sha256(source.stamp.encode()).hexdigest()[:16]
    return Path(datasets.config.HF_DATASETS_CACHE) / f"vit-transfer-{digest}"


@contextlib.contextmanager
def quiet_datasets(what: str) -> Iterator[None]:
    """Keep the progress bars and notes of `datasets` off the screen, and name `what` in its errors."""
    import datasets

    bars, level = datasets.utils.are_progress_bars_disabled(), datasets.utils.logging.get_verbosity()
    datasets.utils.disable_progress_bars()
    datasets.utils.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = error.__cause__ or error
        raise UserError(f"{what}: cannot be read by `datasets`: {first_line(reason)}") from error
    finally:
        datasets.utils.logging.set_verbosity(level)
        if not bars:
            datasets.utils.enable_progress_bars()


def layout_from_tables(
    spec: DatasetSpec, tables: dict[str, tuple["Dataset", Source]], *, storage: StorageVariant, origin: str = ""
) -> FoundLayout:
    """Return splits from tables ("train", "val"). Raises UserError for unusable columns or labels, or different
    classes.
    """
    classes: dict[str, list[str] | None] = {}
    splits = {}
    for name, (table, source) in tables.items():
        image, label = _columns(spec, table, source)
        classes[name] = getattr(table.features[label], "names", None)
        splits[name] = _split(name, table, source, image, label)
    named = list(classes.values())
    if any(names != named[0] for names in named):
        raise UserError(f"{spec.name}: {class_difference(*(names or [] for names in named))}")
    names = named[0] or map(str, range(1 + max(int(split.labels.max()) for split in splits.values())))
    return FoundLayout(
        classes=tuple(names),
        train=splits.get("train"),
        val=splits.get("val"),
        storage=storage,
        origin=origin,
    )


def _columns(spec: DatasetSpec, table: "Dataset", source: Source) -> tuple[str, str]:
    """Return the names of the image column and of the label column."""
    from datasets import ClassLabel, Image

    chosen = []
    for key, kind in (("image", Image), ("label", ClassLabel)):
        named = text_option(spec, key)
        fitting = [name for name, feature in table.features.items() if isinstance(feature, kind)]
        if named is not None and named not in table.features:
            raise UserError(f"{source.files[0]}: no column {named!r} (key `{key}`); {_describe_columns(table)}")
        if named is None and len(fitting) != 1:
            raise UserError(
                f"{source.files[0]}: {len(fitting) or 'no'} columns of type {kind.__name__}: name the one to use by "
                f"the key `{key}`; {_describe_columns(table)}"
            )
        chosen.append(named or fitting[0])
    return chosen[0], chosen[1]


def _describe_columns(table: "Dataset") -> str:
    kinds = (f"{name} ({getattr(kind, 'dtype', None) or type(kind).__name__})" for name, kind in table.features.items())
    return "columns: " + ", ".join(kinds)


def _split(name: str, table: "Dataset", source: Source, image: str, label: str) -> RowSplit:
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Image

    try:
        table = table.select_columns([image, label]).cast_column(image, Image(decode=False))
        content = pc.struct_field(table.data.column(image), "bytes")
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(f"{source.files[0]}: column {image!r} holds no images: {first_line(error)}") from None
    labels = table.data.column(label)
    if not pa.types.is_integer(labels.type):
        raise UserError(
            f"{source.files[0]}: column {label!r} holds {labels.type}, not class numbers; {_describe_columns(table)}"
        )
    for column, values in ((label, labels), (image, content)):
        if values.null_count:
            row = int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise UserError(f"{source.place(row)}: no value in column {column!r} ({values.null_count} rows like this)")
    count = len(labels)
    return RowSplit(
        name=name,
        labels=labels.to_numpy().astype(np.int64),
        names=PackedNames(f"{name}/{row:06d}" for row in range(count)),
        sizes=pc.binary_length(content).to_numpy().astype(np.int64),
        table=table.select_columns([image]),
        column=image,
        rows=np.arange(count),
        source=source,
    )
