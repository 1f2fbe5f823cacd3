"""Classification sets as Parquet files, as `datasets` saves them, or in the cache of the Hugging Face hub.

The published sets may be such, too (`read_stored`): their YAML maps `hub` to where the hub has them:
`id`, `revision` (null: none is pinned), `config`, `train`, `val`, `image`, `label`, as format `hf` means them.

Rows are converted once to Arrow files, which give random access and are shared by all processes. They are as large as
the data, so they lie where the user's other ones do (`HF_DATASETS_CACHE`, `HF_HOME`), not in this suite's cache folder.
Images stay encoded until they are read. Nothing is downloaded: a run never touches the network.
Shapes: M images, C classes.
"""

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any

from transfer.core.cache import file_stamp
from transfer.core.errors import MissingInput, UsageError, UserError, first_line, shortened, unusable
from transfer.core.options import check_keys
from transfer.data.formats.folders import FoundLayout
from transfer.data.formats.published import divide_by_tfds_order
from transfer.data.formats.rows import Rows, Source, layout_from_rows
from transfer.data.layouts import PARQUET, SPLITS, wanted_splits
from transfer.data.spec import DatasetNotFound, DatasetSpec, candidate_folders, choose_folder, find_root, text_option


def parquet(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read Parquet files, or what `save_to_disk` of `datasets` wrote; keys `train`, `val` (a file, a pattern or a
    folder), `image`, `label` (columns).

    Raises:
        UserError: a file is missing or corrupt, or its columns or labels do not serve.
    """
    root = find_root(spec, data)
    return layout_from_rows(spec, f"{root} (Parquet files)", lambda name: files_of(root, name), read_files)


def files_of(root: Path, name: str, forms: Sequence[str] = PARQUET) -> tuple[Path, ...] | None:
    """Return the sorted files of a split by its name, itself a file or a pattern, too; None if there are none."""
    single = ("state.json",) if name in SPLITS["train"] else ()
    for pattern in (name, *(form.format(name) for form in forms), *single):
        place = Path(pattern).anchor  # of an absolute pattern
        entries = (Path(place) if place else root).glob(pattern.removeprefix(place))
        if files := tuple(sorted(entry for entry in entries if entry.is_file() and entry.name[0] != ".")):
            if pattern != name:
                _check_shards(files)
            return files
    return None


def _check_shards(files: Sequence[Path]) -> None:
    """Raise UserError unless files named train-00001-of-00004.parquet and so on are all shards of one split."""
    shards = list(filter(None, (re.fullmatch(r"(.*)-\d+-of-(\d+)\.parquet", file.name) for file in files)))
    wholes = {(shard[1], int(shard[2])) for shard in shards}
    if shards and (len(wholes) > 1 or len(files) != max(number for _, number in wholes)):
        names = shortened([file.name for file in files], 4)
        raise UserError(f"{files[0].parent}: shards are missing or of several sets ({names}); complete or remove them")


def read_files(paths: Sequence[Path]) -> Rows:
    """Return the rows of Parquet files, one after the other, or those that a `state.json` belongs to.

    Raises:
        UserError: a file is corrupt, or there are no rows.
    """
    import pyarrow
    from datasets import Dataset, config
    from pyarrow.parquet import ParquetFile

    folders = (paths[0].parent, paths[0].parent.parent)
    if paths[0].name == "state.json":
        with quiet_datasets(str(folders[0])):
            table = Dataset.load_from_disk(str(folders[0])).with_format(None)
            if table._indices is not None:  # this writes a copy into the folder
                table = table.flatten_indices()
        stamps = [file_stamp(path) for path in sorted(folders[0].iterdir()) if path.is_file()]
        return Rows(table, Source((str(folders[0]),), (len(table),), f"{folders[0]}\0{' '.join(stamps)}"), folders)
    rows, stamps = [], []
    for path in paths:
        with unusable(f"{path}: cannot be read as Parquet", OSError, pyarrow.ArrowException):
            with ParquetFile(path) as file:
                rows.append(file.metadata.num_rows)
            stamps.append(f"{path.resolve()}\0{file_stamp(path)}")
    source = Source(tuple(map(str, paths)), tuple(rows), "\n".join(stamps))
    if not sum(rows):
        raise UserError(f"{shortened(source.files)}: there are no rows")
    # a folder for each state of the files: `datasets` takes those of equal names and times for equal
    digest = hashlib.sha256(source.stamp.encode()).hexdigest()[:16]
    converted = Path(config.HF_DATASETS_CACHE) / f"vit-transfer-{digest}"
    with quiet_datasets(shortened(source.files)):
        table = Dataset.from_parquet([escape(str(path)) for path in paths], cache_dir=str(converted))
    return Rows(table, source, folders)


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


def hf(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read the snapshot of one revision in the hub's cache (`HF_HUB_CACHE`, `HF_HOME`).

    Keys: `hub` (its id), `revision` (a commit, 40 hex digits), `config`, `train`, `val` (names of splits), `image`,
    `label` (columns).

    Args:
        spec: its facts.
        data: unused; every reader takes it.

    Raises:
        UsageError: `hub` or `revision` is missing or malformed.
        UserError: it is not in the cache, or its splits, columns or labels do not serve.
    """
    from datasets import load_dataset_builder

    hub, revision = text_option(spec, "hub"), text_option(spec, "revision")
    if not hub or not revision or not re.fullmatch("[0-9a-f]{40}", revision):
        raise UsageError(
            f"{spec.name}: `hub` is {hub!r} and `revision` {revision!r}; they must be the id of a dataset, as in "
            "OWNER/NAME, and a commit of it (40 hex digits): branches move; your own folder needs `format: parquet`"
        )
    with quiet_datasets(f"{spec.name} ({hub}@{revision})"):
        builder = load_dataset_builder(str(_snapshot(spec.name, hub, revision)), text_option(spec, "config"))
        builder.download_and_prepare()
        tables = {split: builder.as_dataset(split=split) for split in builder.info.splits}
    origin = f"{hub}@{revision}"
    parts = {
        name: Rows(table, Source((f"{hub} {name}",), (len(table),), f"{origin}\0{name}"))
        for name, table in tables.items()
    }
    return layout_from_rows(spec, origin, parts.get, lambda rows: rows, origin)


def _snapshot(name: str, hub: str, revision: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub, repo_type="dataset", revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise MissingInput(
            f"{name}: {hub} at {revision} is not in the cache of the Hugging Face hub; where there is a network, fetch "
            f"it with\n  `hf download --repo-type dataset {hub} --revision {revision}`"
        ) from None


def cache_of(hub: str) -> Path:
    """Return the folder of the hub's cache for one dataset; it need not exist."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub, repo_type="dataset")


def cached_revisions(hub: str) -> list[str]:
    """Return the commits of a dataset whose Parquet files are in the hub's cache, sorted."""
    return sorted(path.name for path in cache_of(hub).glob("snapshots/*") if any(path.rglob("*.parquet")))


Reader = Callable[[DatasetSpec, Path | None], FoundLayout]
HUB_KEYS = ("id", "revision", "config", "train", "val", "image", "label")


def read_stored(read: Reader, spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Look for the published layout, which `read` reads, then for Parquet files, then into the hub's cache.

    The first form that is found is used, and no other when it turns out to be damaged; a folder that lacks a part of
    the published layout does not count as found. Without `hub` in the YAML file there is only the published layout.
    A set with the key `train_images` has one split, which is divided, see `divide_by_tfds_order`.
    """
    try:
        return read(spec, data)
    except DatasetNotFound as error:
        if spec.options.get("hub") is None:
            raise
        absent = str(error)
    check_keys(spec.options["hub"], HUB_KEYS, f"{spec.name}: `hub`")
    hub = dict.fromkeys(HUB_KEYS) | spec.options["hub"]
    layout = _published_parquet(spec, hub, data) or _published_on_hub(spec, hub)
    if layout is None:
        pin = f" --revision {hub['revision']}" if hub["revision"] else ""
        raise DatasetNotFound(
            f"{absent}\nor as Parquet files ({', '.join(form.format('train') for form in PARQUET)}) in one of "
            f"these folders\nor in the cache of the Hugging Face hub ({cache_of(hub['id'])}): where there is a "
            f"network, fetch it with\n  `hf download --repo-type dataset {hub['id']}{pin}`"
        )
    divided = "train_images" in spec.options and layout.train is not None
    return divide_by_tfds_order(spec, layout) if divided else layout


def _published_parquet(spec: DatasetSpec, hub: dict[str, Any], data: Path | None) -> FoundLayout | None:
    parts = ("train",) if "train_images" in spec.options else ("train", "val")
    names = wanted_splits(hub, parts)
    config = hub["config"]
    forms = (*PARQUET, f"{config}/{{}}-*.parquet", f"{config}/{{}}/*.parquet") if config else PARQUET

    def find(folder: Path, name: str) -> tuple[Path, ...] | None:
        return files_of(folder, name, forms) if name in names and folder.is_dir() else None

    roots, below = candidate_folders(spec, data, itself=True)
    folder = choose_folder(spec, roots, below, lambda path: any(find(path, name) for name in names))
    if folder is None:
        return None
    features = read_files(next(filter(None, (find(folder, name) for name in names)))).table.features
    keys = {name: hub[name] for name in ("train", "val") if hub[name] in names}
    keys |= {name: hub[name] for name in ("image", "label") if hub[name] in features}
    return layout_from_rows(replace(spec, options=keys), folder, lambda name: find(folder, name), read_files)


def _published_on_hub(spec: DatasetSpec, hub: dict[str, Any]) -> FoundLayout | None:
    """Return the pinned revision in the hub's cache; where none is pinned, the only one that is there."""
    there = cached_revisions(hub["id"])
    if not hub["revision"] and len(there) > 1:
        fault = f"{cache_of(hub['id'])} has {shortened(there)}, but no revision is pinned"
        raise UserError(f"{spec.name}: {fault}: set `revision` in your own YAML file")
    keys = {**hub, "hub": hub["id"], "revision": hub["revision"] or there[0]} if there else {}
    return hf(replace(spec, options=keys), None) if there else None
