"""Results of cells that an earlier start of a sweep left, found without starting their commands."""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backbones.checkpoints import exports
from backbones.errors import UserError
from backbones.runtime.files import parse_json, write_atomic
from transfer.records.store import Record, Store
from transfer.sweep.data_state import data_state, path_state, paths_of_options, weights_states
from transfer.sweep.definition.grid import SweepJob


@dataclass
class EarlierResults:
    """The finished cells of the sweep in a folder, each with a digest of all that its command reads.

    Args:
        out: the folder of the sweep.
        extra: arguments that every cell's command gets besides its own.
    """

    out: Path
    extra: tuple[str, ...] = ()
    _data: dict[tuple[str, str | None], str] = field(default_factory=dict)
    """The states of the data sets when their first cell was looked at."""
    _options: dict[str, str] = field(default_factory=dict)
    """The same of files and folders that options name."""

    def key(self, job: SweepJob, parent: Record | None) -> str:
        """Return a digest of a job's command and of all files that it reads; its name covers users' files.

        Args:
            job: a cell. parent: the record of the cell that trains its weights.
        """
        weights = parent.export if parent else weights_states(job)
        parts = [job.argv(Path()), self.extra, self._data_state(job), weights, self._option_states(job)]
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
        return self.out / "cells" / f"{job.name}.done.json"

    def _has_weights(self, job: SweepJob, record: Record) -> bool:
        """Return whether the weights that a pretraining left for later jobs are still in their place."""
        folder = self.out / "weights" / job.name
        run_key = exports.pretraining_facts(folder).get("identity") if (folder / exports.WEIGHTS).is_file() else None
        return record.export is None or job.step.kind != "pretrain" or run_key == record.run_key

    def _data_state(self, job: SweepJob) -> list[str]:
        """Return the states of the data set of a job, and of those on which it is scored besides."""
        named = job.options.get("data", _value_of("--data", self.extra))
        folder = None if named is None else str(named)
        others = job.options.get("test_dataset") or ()
        names = (job.dataset, *map(str, others if isinstance(others, list | tuple) else (others,)))
        for key in ((name, folder) for name in names):
            if key not in self._data:
                self._data[key] = data_state(key[0], None if folder is None else Path(folder))
        return [self._data[name, folder] for name in names]

    def _option_states(self, job: SweepJob) -> list[str]:
        """Return the states of files and folders that options of a job name, such as that of token labels."""
        named = paths_of_options(job)
        for path in named:
            if path not in self._options:
                self._options[path] = path_state(Path(path))
        return [self._options[path] for path in named]


def read_record(out: Path, runs: Sequence[str]) -> Record | None:
    """Return the record of the first of these runs that can be read; None if there is none."""
    store = Store(out / "runs")
    for name in runs:
        with contextlib.suppress(UserError):
            return Record.read(store.folder(name) / "record.json")
    return None


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    """Return the word after a flag, None without it."""
    return argv[argv.index(flag) + 1] if flag in argv else None
