"""Classification sets of the Hugging Face hub, from the local cache alone: a run never touches the network."""

import re
from pathlib import Path

from backbones.data.formats.folders import FoundLayout
from backbones.data.formats.parquet import VALIDATION, layout_from_tables, quiet_datasets
from backbones.data.spec import DatasetSpec, text_option
from backbones.data.splits.arrow_split import Source
from backbones.errors import MissingInput, UsageError, UserError


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
            f"{spec.name}: `hub` is {hub!r} and `revision` {revision!r}; they must be the id of a data set, as in "
            "OWNER/NAME, and a commit of it (40 hex digits): branches move"
        )
    with quiet_datasets(f"{spec.name} ({hub}@{revision})"):
        builder = load_dataset_builder(str(_snapshot(spec.name, hub, revision)), text_option(spec, "config"))
        builder.download_and_prepare()
        tables = {split: builder.as_dataset(split=split) for split in builder.info.splits}
    chosen = {"train": _split(spec, "train", ("train",), tables), "val": _split(spec, "val", VALIDATION, tables)}
    return layout_from_tables(
        spec,
        {
            split: (tables[name], Source((f"{hub} {name}",), (len(tables[name]),), f"{hub}@{revision}\0{name}"))
            for split, name in chosen.items()
            if name
        },
        storage="hub",
        origin=f"{hub}@{revision}",
    )


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
    """Return the folder of the hub's cache for one data set; it need not exist."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=hub, repo_type="dataset")


def cached_revisions(hub: str) -> list[str]:
    """Return the commits of a data set whose Parquet files are in the hub's cache, sorted."""
    return sorted(path.name for path in cache_of(hub).glob("snapshots/*") if any(path.rglob("*.parquet")))


def _split(spec: DatasetSpec, key: str, usual: tuple[str, ...], tables: dict[str, object]) -> str | None:
    named = text_option(spec, key)
    if named is None:
        return next((name for name in usual if name in tables), None)
    if named not in tables:
        raise UserError(f"{spec.name}: no split {named!r} (key `{key}`); there are: {', '.join(tables)}")
    return named
