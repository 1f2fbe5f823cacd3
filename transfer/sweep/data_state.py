"""Whether the files of a data set may have changed since a cell ended, from their sizes, times and inodes alone."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from backbones.data.array_index import stamp_of
from backbones.data.spec import candidate_folders, resolve_dataset


def data_state(dataset: str, data: Path | None) -> str:
    """Return what changes when a file of a data set changes; empty for sets without files of the user's.

    It covers whole folders and reads no file. Where it has changed, a cell's own command decides, which knows the
    contents of the files that it uses.

    Args:
        dataset: a shipped name or a YAML file, see `resolve_dataset`.
        data: the `--data` option.

    Raises:
        UsageError: there is no such data set.
    """
    spec = resolve_dataset(dataset)
    if "generator" in spec.options:
        return ""  # drawn images lie in a folder of the cache that is never written again
    named, under = candidate_folders(spec, data, itself=False)
    folders = [folder for folder in (*named, *under) if folder.is_dir()]
    if not folders:
        folders = [folder for folder in candidate_folders(spec, data, itself=True)[0] if folder.is_dir()]
    digest = hashlib.sha256()
    for folder in folders:
        digest.update(os.fsencode(folder.resolve()) + b"\n")
        for line in _lines(folder):
            digest.update(line)
    return digest.hexdigest() if folders else ""


def _lines(folder: Path) -> Iterator[bytes]:
    for parent, inner, files in os.walk(folder, followlinks=True):
        inner.sort()
        for name in sorted(files):
            path = f"{parent}/{name}"
            try:
                yield os.fsencode(f"{path}\0{stamp_of(os.stat(path))}\n")  # noqa: PTH116 (called a million times)
            except OSError:
                yield os.fsencode(f"{path}\0missing\n")
