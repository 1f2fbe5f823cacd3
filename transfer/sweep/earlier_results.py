"""Results of jobs that an earlier start of a sweep left, found without starting their commands."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from backbones.spec import resolve
from transfer.core import exports
from transfer.core.cache import file_stamp
from transfer.core.errors import UserError
from transfer.core.files import write_atomic
from transfer.core.options import as_list
from transfer.data.spec import candidate_folders, resolve_dataset
from transfer.experiments.grid import SweepJob, result_file
from transfer.records.record import Record
from transfer.records.store import RECORD, Store, StoredRun, damaged_files


def data_paths(dataset: str, data: Path | None) -> Iterator[Path]:
    """Yield the folders of a dataset, and the files outside them that its YAML names by absolute paths or patterns.

    Args:
        dataset: a shipped name or a YAML file, see `resolve_dataset`.
        data: the `--data` option.

    Raises:
        UsageError: the dataset is unknown.
    """
    spec = resolve_dataset(dataset)
    if "generator" in spec.options:
        return  # generated images are in a folder of the cache that is never written again
    candidates = chain.from_iterable(candidate_folders(spec, data, itself=False))
    folders = [folder for folder in candidates if folder.is_dir()]
    yield from folders or candidate_folders(spec, data, itself=True)[0]
    for value in spec.options.values():
        if isinstance(value, str) and Path(value).is_absolute():
            yield from sorted(Path("/").glob(value.lstrip("/")))


def path_state(path: Path) -> str:
    """Return a digest that changes when a file, or any file of a folder, changes; empty if neither exists.

    No file is read. When a dataset has changed, the job's command runs again, and decides from the contents of the
    files that it uses.
    """
    if not path.exists():
        return ""
    digest = hashlib.sha256(os.fsencode(path.resolve()))
    names = [""]
    if path.is_dir():
        names = [f"{parent}/{name}" for parent, _, files in os.walk(path, followlinks=True) for name in files]
    for name in sorted(names):
        try:
            stamp = file_stamp(name or path)
        except UserError:
            stamp = "missing"
        digest.update(os.fsencode(f"{name}\0{stamp}\n"))
    return digest.hexdigest()


@dataclass
class EarlierResults:
    """The finished jobs of the sweep in a folder, each with a digest of all that its command reads.

    Args:
        out: the folder of the sweep.
        extra: arguments that every job's command gets besides its own.
    """

    out: Path
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._state = cache(path_state)  # as it was when the first job was checked

    def key(self, job: SweepJob, parent: Record | None) -> str:
        """Return a digest of a job's command and of all files that it reads; its name covers users' files.

        Args:
            job: a job.
            parent: the record of the job that trains its weights.
        """
        paths = [*self._paths(job)]
        if parent is None:  # weights by path, or by the backbone's name
            with contextlib.suppress(UserError):  # which the job names
                weights = job.options.get("weights") or resolve(job.backbone).weights
                paths.append(exports.inside_run(Path(str(weights))))
        parts = [job.portable_argv(), self.extra, [*map(self._state, paths)], parent and parent.export]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def find(self, job: SweepJob, key: str) -> Record | None:
        """Return the record of a job whose `key` and exported weights are still the same; None if there is none."""
        try:
            run, its_key = done_file(self.out, job).read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            return None
        record = read_record(self.out, run) if its_key == key else None
        if record is None or damaged_files(StoredRun(self.out / "runs" / run, record)):
            return None  # of a damaged one its command says what is wrong
        if record.export is None or job.step.kind != "pretrain":
            return record
        exported = exports.pretraining_facts(self.out / "weights" / job.name).get("identity")
        return record if exported == record.run_key else None

    def keep(self, job: SweepJob, record: Record, key: str) -> None:
        """Keep the run of a job that has ended, with its `key` at its start, to be found by the next sweep."""
        write_atomic(done_file(self.out, job), f"{record.run_id} {key}".encode())

    def _paths(self, job: SweepJob) -> Iterator[Path]:
        """Yield the paths of a job's datasets, and of files that its options name, such as that of token labels."""
        data = job.options.get("data", dict(zip(self.extra, self.extra[1:])).get("--data"))
        for name in (job.dataset, *as_list(job.options.get("test_dataset"))):
            yield from data_paths(str(name), Path(data) if data else None)
        for name, value in job.options.items():
            if name not in ("weights", "data") and isinstance(value, str) and "/" in value:
                yield Path(value)


def done_file(out: Path, job: SweepJob) -> Path:
    """Return the file that says that a job has ended, and by which run."""
    return result_file(out, job.name).with_suffix(".done")


def read_record(out: Path, run: str) -> Record | None:
    """Return the record of a run of the sweep; None if it cannot be read."""
    with contextlib.suppress(UserError):
        return Record.read(Store(out / "runs").folder(run) / RECORD)
    return None
