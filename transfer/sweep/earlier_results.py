"""Results of jobs that an earlier start of a sweep left, found without starting their commands."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transfer.core import exports
from transfer.core.cache import stamp_of
from transfer.core.errors import UserError
from transfer.core.files import parse_json, write_atomic
from transfer.data.spec import DatasetSpec, candidate_folders, resolve_dataset
from transfer.experiments.grid import SweepJob
from transfer.experiments.step import as_list
from transfer.records.store import Record, Store


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


@dataclass
class EarlierResults:
    """The finished jobs of the sweep in a folder, each with a digest of all that its command reads.

    Args:
        out: the folder of the sweep.
        extra: arguments that every job's command gets besides its own.
    """

    out: Path
    extra: tuple[str, ...] = ()
    _states: dict[tuple[str, ...], str] = field(default_factory=dict)
    """The states of datasets, and of files and folders that options name, when their first job was checked."""

    def key(self, job: SweepJob, parent: Record | None) -> str:
        """Return a digest of a job's command and of all files that it reads; its name covers users' files.

        Args:
            job: a job.
            parent: the record of the job that trains its weights.
        """
        weights = parent.export if parent else weights_state(job)
        parts = [job.portable_argv(), self.extra, self._file_states(job), weights]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def find(self, job: SweepJob, parent: Record | None) -> Record | None:
        """Return the record of a job whose `key` is still the same; None if there is none."""
        try:
            content = parse_json(self._file(job).read_text(encoding="utf-8"))
            runs, key = content["runs"], content["key"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        record = read_record(self.out, runs) if key == self.key(job, parent) else None
        return record if record is not None and self._has_weights(job, record) else None

    def keep(self, job: SweepJob, record: Record, key: str) -> None:
        """Keep the record of a job that has ended, with its `key` at its start, to be found by the next sweep."""
        write_atomic(self._file(job), json.dumps({"runs": [record.run_id], "key": key}).encode())

    def _file(self, job: SweepJob) -> Path:
        return self.out / "jobs" / f"{job.name}.done.json"

    def _has_weights(self, job: SweepJob, record: Record) -> bool:
        """Return whether the weights that a pretraining exported for later jobs still exist."""
        folder = self.out / "weights" / job.name
        run_key = exports.pretraining_facts(folder).get("identity") if (folder / exports.WEIGHTS).is_file() else None
        return record.export is None or job.step.kind != "pretrain" or run_key == record.run_key

    def _file_states(self, job: SweepJob) -> list[str]:
        """Return the states of a job's datasets, and of files that its options name, such as that of token labels."""
        given = self.extra[self.extra.index("--data") + 1] if "--data" in self.extra else None
        folder = str(job.options.get("data", given) or "")
        names = map(str, (job.dataset, *as_list(job.options.get("test_dataset"))))
        values = (value for name, value in job.options.items() if name not in ("weights", "data"))
        paths = (value for value in values if isinstance(value, str) and "/" in value)
        keys: list[tuple[str, ...]] = [*((name, folder) for name in names), *((path,) for path in paths)]
        for key in keys:
            if key not in self._states:
                data = Path(folder) if folder else None
                self._states[key] = data_state(key[0], data) if len(key) > 1 else path_state(Path(key[0]))
        return [self._states[key] for key in keys]


def read_record(out: Path, runs: Sequence[str]) -> Record | None:
    """Return the record of the first of these runs that can be read; None if there is none."""
    store = Store(out / "runs")
    for name in runs:
        with contextlib.suppress(UserError):
            return Record.read(store.folder(name) / "record.json")
    return None
