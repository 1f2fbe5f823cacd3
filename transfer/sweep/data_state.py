"""Whether data, weights and other files of a job may have changed, from their sizes, times and inodes alone."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from backbones.checkpoints import exports
from backbones.data.cache import stamp_of
from backbones.data.spec import DatasetSpec, candidate_folders, resolve_dataset
from transfer.sweep.definition.grid import SweepJob


def data_state(dataset: str, data: Path | None) -> str:
    """Return a digest that changes when a file of a dataset changes; empty for datasets without the user's files.

    It covers whole folders and reads no file. When it has changed, the job's command runs again, and decides from the
    contents of the files that it uses.

    Args:
        dataset: a shipped name or a YAML file, see `resolve_dataset`.
        data: the `--data` option.

    Raises:
        UsageError: the dataset is unknown.
    """
    spec = resolve_dataset(dataset)
    if "generator" in spec.options:
        return ""  # generated images are in a folder of the cache that is never written again
    named, under = candidate_folders(spec, data, itself=False)
    folders = [folder for folder in (*named, *under) if folder.is_dir()]
    if not folders:
        folders = [folder for folder in candidate_folders(spec, data, itself=True)[0] if folder.is_dir()]
    states = [state for path in (*folders, *_named_files(spec)) if (state := path_state(path))]
    return hashlib.sha256("\n".join(states).encode()).hexdigest() if states else ""


def path_state(path: Path) -> str:
    """Return a digest that changes when a file, or any file of a folder, changes; empty if neither exists."""
    if not path.exists():
        return ""
    digest = hashlib.sha256(os.fsencode(path.resolve()) + b"\n")
    for line in _lines(path) if path.is_dir() else (stamp_of(path.stat()).encode(),):
        digest.update(line)
    return digest.hexdigest()


def _named_files(spec: DatasetSpec) -> Iterator[Path]:
    """Yield the files that a dataset names by absolute paths or patterns, which may lie outside its folder."""
    for value in spec.options.values():
        if isinstance(value, str) and Path(value).is_absolute():
            place = Path(value).anchor
            yield from sorted(Path(place).glob(value.removeprefix(place)))


def _lines(folder: Path) -> Iterator[bytes]:
    for parent, inner, files in os.walk(folder, followlinks=True):
        inner.sort()
        for name in sorted(files):
            path = f"{parent}/{name}"
            try:
                yield os.fsencode(f"{path}\0{stamp_of(os.stat(path))}\n")  # noqa: PTH116 (called a million times)
            except OSError:
                yield os.fsencode(f"{path}\0missing\n")


def weights_state(job: SweepJob) -> str:
    """Return a digest that changes with the weights of a job without a parent, found by path or backbone's name."""
    weights = Path(str(job.options.get("weights", f"weights/{Path(job.backbone).stem}")))
    return path_state(exports.inside_run(weights))
