"""`python -m transfer.doctor pack NAME --data FOLDER --to FOLDER`: a classification set as a few large Parquet files.

Shared disks serve a few large files much faster than a million small ones. Rows keep the order of the images, so that a
seed's batches, and support sets, which contents decide, are those of the folder.
"""

import io
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pyarrow.parquet import ParquetWriter
from tqdm import tqdm

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.formats.packed import Pack, Shard, read_pack
from backbones.data.spec import DatasetSpec, resolve_dataset
from backbones.data.splits.split import Split
from backbones.errors import UsageError, UserError, tell
from backbones.runtime.files import (
    atomic_replacement,
    check_writable,
    file_sha256,
    remove,
    scraps_in,
    write_atomic,
)
from backbones.runtime.threads import usable_cores
from backbones.settings import Positional, parse, write_yaml

MIB = 2**20
ROWS = 128
"""Images in a row group, which is read at once."""
QUALITY = 95
"""JPEG quality of resized images."""


@dataclass(kw_only=True)
class PackOptions:
    """Write a classification data set as Parquet files, which `--dataset TO/NAME.yaml` opens."""

    names: Positional[tuple[str, ...]] = ()
    """The data set: a name in configs/datasets or a YAML file."""
    data: Path | None = None
    """The folder with the data sets; by default $TRANSFER_DATA."""
    to: Path | None = None
    """The folder to write to; a pack that was interrupted goes on there."""
    shorter_side: int | None = None
    """Resize larger images to this shorter side in pixels; the result is another version of the data set."""
    shard_mib: int = 512
    """Size of a file in MiB."""

    def __post_init__(self) -> None:
        for name in ("shorter_side", "shard_mib"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} {value}: must be 1 or more")


def pack(argv: list[str]) -> int:
    """Pack a data set, or go on with it.

    Raises:
        UsageError: no data set, several, or none for classification. UserError: it is not complete, `--to` holds
            something else, or the disk is full.
    """
    options = parse(PackOptions, argv, prog="python -m transfer.doctor pack")
    if len(options.names) != 1:
        raise UsageError(f"`pack` takes one data set, not {len(options.names)}: a name or a YAML file")
    if options.to is None:
        raise UsageError("--to is missing: the folder to write to")
    spec = resolve_dataset(options.names[0])
    data = open_classification(spec, options.data)
    check_writable(options.to, "--to")
    wanted = Pack(
        dataset=options.names[0],
        source_digest=data.digest,
        shorter_side=options.shorter_side,
        shard_mib=options.shard_mib,
    )
    current = _current(options.to, wanted)
    for split in filter(None, (data.train, data.val)):
        for name, rows in _shards(split, options.shard_mib):
            if name not in current.shards:
                current = replace(current, shards=current.shards | {name: _write(split, rows, data, options, name)})
                current.write(options.to)
    path = _describe(spec, data, options)
    replace(current, complete=True).write(options.to)
    total = sum(shard.bytes for shard in current.shards.values())
    tell(f"{len(current.shards)} files, {total / 2**30:.2f} GiB: --dataset {path}")
    return 0


def _current(folder: Path, wanted: Pack) -> Pack:
    """Return the pack in a folder without shards that are gone or damaged, or a new one. Raises UserError."""
    found = read_pack(folder)
    if found is None:
        if {*folder.iterdir()} - {*scraps_in(folder)}:
            raise UserError(f"--to {folder}: is not empty, and holds no pack; name an empty folder")
        _remove_scraps(folder)
        wanted.write(folder)
        return wanted
    if not wanted.same_work(found):
        raise UserError(
            f"--to {folder}: holds a pack of {found.dataset} made of other images or by other options "
            f"(shorter side {found.shorter_side}, {found.shard_mib} MiB); name another folder"
        )
    _remove_scraps(folder)
    whole = {name: shard for name, shard in found.shards.items() if _is_whole(folder / name, shard)}
    if len(whole) < len(found.shards) or not found.complete:
        tell(f"{folder}: {len(whole)} files are there; going on", file=sys.stderr)
    current = replace(found, shards=whole, complete=False)
    current.write(folder)
    return current


def _remove_scraps(folder: Path) -> None:
    """Remove what a process that was killed has left."""
    for left in scraps_in(folder):
        remove(left)


def _is_whole(path: Path, shard: Shard) -> bool:
    return path.is_file() and path.stat().st_size == shard.bytes and file_sha256(path) == shard.sha256


def _shards(split: Split, mib: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the file names of a split and the indices of their images; both are functions of the images' sizes."""
    number = (np.cumsum(split.sizes) - split.sizes) // (mib * MIB)
    parts = np.split(np.arange(len(split)), np.flatnonzero(np.diff(number)) + 1)
    for place, rows in enumerate(parts):
        yield f"{split.name}-{place:05d}-of-{len(parts):05d}.parquet", rows


def _write(split: Split, rows: NDArray[Any], data: ClassificationData, options: PackOptions, name: str) -> Shard:
    """Write one file, complete or not at all."""
    from datasets import ClassLabel, Features
    from datasets import Image as ImageFeature

    assert options.to is not None
    path = options.to / name
    schema = Features({"image": ImageFeature(), "label": ClassLabel(names=list(data.classes))}).arrow_schema
    with (
        atomic_replacement(path, "--to") as temporary,
        ParquetWriter(temporary, schema, compression="none") as writer,
        ThreadPoolExecutor(usable_cores()) as pool,
        tqdm(total=len(rows), desc=name, unit=" images", delay=2, leave=False, disable=None) as bar,
    ):
        for start in range(0, len(rows), ROWS):
            chosen = rows[start : start + ROWS].tolist()
            contents = list(pool.map(lambda index: _content(split, index, options.shorter_side), chosen))
            images = [{"bytes": content, "path": split.names[index]} for content, index in zip(contents, chosen)]
            columns: dict[str, list[Any]] = {"image": images, "label": split.labels[chosen].tolist()}
            table: pa.Table = pa.Table.from_pydict(columns, schema=schema)
            writer.write_table(table, row_group_size=ROWS)
            bar.update(len(chosen))
    return Shard(len(rows), path.stat().st_size, file_sha256(path))


def _content(split: Split, index: int, shorter_side: int | None) -> bytes:
    """Return the bytes of an image, resized by PIL (bicubic) if it is larger than asked for."""
    content = split.encoded(index)
    if shorter_side is None:
        return content
    image = split.decoded(index)
    if min(image.size) <= shorter_side:
        return content
    scale = shorter_side / min(image.size)
    size = [shorter_side if side == min(image.size) else round(side * scale) for side in image.size]
    stream = io.BytesIO()
    image.resize((size[0], size[1]), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()


def _describe(spec: DatasetSpec, data: ClassificationData, options: PackOptions) -> Path:
    """Write the YAML file that opens the pack, and return its path."""
    assert options.to is not None
    version = spec.version
    if options.shorter_side is not None:
        version = f"{version or 'published'}, shorter side {options.shorter_side}, JPEG quality {QUALITY}"
    content: dict[str, Any] = {"name": spec.name, "format": "parquet", "root": "."}
    content |= {"version": version} if version else {}
    splits = {split.name: split for split in (data.train, data.val) if split is not None}
    content |= {name: f"{name}-*.parquet" for name in splits}
    content["counts"] = {name: {"images": len(split)} for name, split in splits.items()}
    content |= {key: getattr(spec, key) for key in ("license", "citation") if getattr(spec, key)}
    path = options.to / f"{spec.name}.yaml"
    write_atomic(path, write_yaml(content).encode(), flag="--to")
    return path
