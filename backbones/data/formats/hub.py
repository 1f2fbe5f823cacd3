"""Classification sets of the Hugging Face hub, from the local cache alone: a run never touches the network."""

import re
from pathlib import Path

from backbones.data.formats.folders import FoundLayout
from backbones.data.formats.parquet import layout_from_rows, quiet_datasets
from backbones.data.formats.rows import Rows
from backbones.data.spec import DatasetSpec, text_option
from backbones.data.splits.arrow_split import Source
from backbones.errors import MissingInput, UsageError


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
    return layout_from_rows(spec, origin, parts.get, lambda rows: rows, storage="hub", origin=origin)


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
