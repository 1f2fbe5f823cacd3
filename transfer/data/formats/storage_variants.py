"""Published sets in their other forms: Parquet files, and the cache of the Hugging Face hub.

The YAML file of a set maps `hub` to where the hub has it: `id`, `revision` (null: none is pinned), `config`, `train`,
`val` (splits), `image`, `label` (columns), as the keys of format `hf` mean them.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from transfer.core.errors import UserError, print_safe, shortened
from transfer.core.options import check_keys
from transfer.data.formats.folders import FoundLayout
from transfer.data.formats.parquet import cache_of, cached_revisions, files_of, hf, layout_from_rows, read_files
from transfer.data.formats.unofficial_split import KeyRule, divide_by_tfds_order
from transfer.data.layouts import PARQUET, SPLITS
from transfer.data.spec import DatasetNotFound, DatasetSpec, candidate_folders, choose_folder
from transfer.data.splits.in_memory import RowSplit

Reader = Callable[[DatasetSpec, Path | None], FoundLayout]
KEYS = ("id", "revision", "config", "train", "val", "image", "label")


def with_storage_variants(read: Reader, key: KeyRule | None = None) -> Reader:
    """Return a reader that looks for the published layout with `read`, then for Parquet files, then into the hub's
    cache.

    The first form that is found is used, and no other when it turns out to be damaged; a folder that lacks a part of
    the published layout does not count as found. Without `hub` in the YAML file, or for a bundled set, there is only
    the published layout.

    Args:
        read: reads the published layout.
        key: for a set with one split on the hub, which is divided by the file names of its rows (see
            `divide_by_tfds_order`).
    """

    def reader(spec: DatasetSpec, data: Path | None) -> FoundLayout:
        hub = _hub_keys(spec)
        try:
            return read(spec, data)
        except DatasetNotFound as error:
            if hub is None:
                raise
            absent = str(error)
        layout = _read_parquet(spec, hub, data, key) or _read_hub_cache(spec, hub)
        if layout is None:
            raise DatasetNotFound(_not_found_message(hub, absent, key))
        return _check_and_divide(spec, hub, layout, key)

    return reader


def _hub_keys(spec: DatasetSpec) -> dict[str, str | None] | None:
    """Return the mapping `hub` with all its keys; None for sets without it. Raises UsageError."""
    keys = spec.options.get("hub")
    if keys is None or "generator" in spec.options:
        return None
    check_keys(keys, KEYS, f"{spec.name}: `hub`")
    return {key: keys.get(key) for key in KEYS}


def _read_parquet(
    spec: DatasetSpec, hub: dict[str, str | None], data: Path | None, key: KeyRule | None
) -> FoundLayout | None:
    named, under = candidate_folders(spec, data, itself=True)
    names, forms = _names(hub, key), _forms(hub)
    folder = choose_folder(
        spec, named, under, lambda path: path.is_dir() and any(files_of(path, name, forms) for name in names)
    )
    if folder is None:
        return None
    found = next(filter(None, (files_of(folder, name, forms) for name in names)))
    features = read_files(found).table.features
    keys = {name: hub[name] for name in ("train", "val") if hub[name] in names}
    keys |= {name: hub[name] for name in ("image", "label") if hub[name] in features}
    find = lambda name: files_of(folder, name, forms) if name in names else None  # noqa: E731
    return layout_from_rows(replace(spec, options=keys), folder, find, read_files, storage="parquet")


def _names(hub: dict[str, str | None], key: KeyRule | None) -> list[str]:
    """Return the names of the splits that are wanted, of which those to score may be several in turn."""
    parts = ("train",) if key else ("train", "val")
    return [name for part in parts for name in ([hub[part] or ""] if hub[part] else SPLITS[part])]


def _forms(hub: dict[str, str | None]) -> tuple[str, ...]:
    """Return patterns of the files of a split, the likelier first."""
    config = hub["config"]
    return (*PARQUET, f"{config}/{{}}-*.parquet", f"{config}/{{}}/*.parquet") if config else PARQUET


def _read_hub_cache(spec: DatasetSpec, hub: dict[str, str | None]) -> FoundLayout | None:
    """Return the pinned revision in the hub's cache; where none is pinned, the only one that is there."""
    name, pinned = str(hub["id"]), hub["revision"]
    there = cached_revisions(name)
    if not there:
        return None
    if pinned not in there if pinned else len(there) > 1:
        raise UserError(
            f"{spec.name}: {cache_of(name)} has {shortened(there)}, but {pinned or 'no revision'} is pinned: "
            f"fetch it where there is a network:\n  `{_download(hub)}`\n"
            "or set `revision` in your own YAML file"
        )
    if not pinned:
        print_safe(
            f"{spec.name}: no revision of {name} is pinned: using {there[0]}, which is in the cache", file=sys.stderr
        )
    return hf(replace(spec, options={**hub, "hub": name, "revision": pinned or there[0]}), None)


def _check_and_divide(
    spec: DatasetSpec, hub: dict[str, str | None], layout: FoundLayout, key: KeyRule | None
) -> FoundLayout:
    """Check the splits that were found; divide a set with one split by the file names."""
    lacking = [name for name, split in (("train", layout.train), ("val", layout.val)) if split is None]
    if lacking and not (key and lacking == ["val"]):
        absent = ", ".join(repr(hub[name] or SPLITS[name][0]) for name in lacking)
        raise UserError(f"{spec.name}: no split {absent} in {hub['id']} (keys of `hub`)")
    if key is None or layout.train is None:
        return layout
    names = layout.train.file_names() if isinstance(layout.train, RowSplit) else list(layout.train.names)
    return divide_by_tfds_order(spec, layout, names, key)


def _download(hub: dict[str, str | None]) -> str:
    pin = f" --revision {hub['revision']}" if hub["revision"] else ""
    return f"hf download --repo-type dataset {hub['id']}{pin}"


def _not_found_message(hub: dict[str, str | None], absent: str, key: KeyRule | None) -> str:
    """Return the message that lists the three places in the order in which they were searched."""
    files = [form.format(name) for name in _names(hub, key) for form in _forms(hub)]
    return (
        f"{absent}\nother accepted forms:\n"
        f"  Parquet files in one of these folders: looked for {', '.join(files)}\n"
        f"  the cache of the Hugging Face hub: {cache_of(str(hub['id']))} does not hold it;\n"
        f"    where there is a network, fetch it with `{_download(hub)}`"
    )
