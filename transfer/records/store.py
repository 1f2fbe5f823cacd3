"""The folder of runs: finds, locks, writes and reads the records of runs. Imports no torch."""

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from transfer.core import files
from transfer.core.errors import MissingInput, UserError, shortened
from transfer.core.exports import EXPORT, why_not_exported
from transfer.core.grouped import grouped_by
from transfer.engine.checkpoint import HISTORY, PREVIOUS, STATE
from transfer.records.per_sample import OUTCOMES
from transfer.records.record import Record, RunKey, with_checksum

RECORD, OPTIONS, ERROR, LOCK = "record.json", "options.yaml", "error.txt", "lock"
ORIGIN = "copied_from.txt"
"""Names the folder from which a run was copied; see `transfer.records.baselines`."""
_EVENTS = "events.out."  # of TensorBoard, which may still write to it
NOT_LISTED = (RECORD, ERROR, LOCK, ORIGIN, STATE, PREVIOUS)
TRACES = (OPTIONS, HISTORY, ERROR, LOCK, STATE, PREVIOUS, OUTCOMES)


@dataclass(frozen=True)
class StoredRun:
    """A finished run, whose `folder` holds `record.json`, `outcomes.npz` and its other files."""

    folder: Path
    record: Record


def file_checksums(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the sha256 (hex) and size (bytes) of each file of a run and its export by its name, sorted."""
    paths = [path for path in folder.iterdir() if path.name not in NOT_LISTED]
    paths += (folder / EXPORT).iterdir() if (folder / EXPORT).is_dir() else ()
    final = (path for path in paths if not path.name.startswith((".", _EVENTS)))
    return {
        path.relative_to(folder).as_posix(): {"sha256": files.file_sha256(path), "size": path.stat().st_size}
        for path in sorted(final)
        if path.is_file()
    }


def without_weights(run: StoredRun) -> str:
    """Say that a run has no weights, and why."""
    failed = f"its training failed ({run.record.status})" if run.record.training_failed else ""
    why = failed or why_not_exported(run.record.options, run.record.export)
    return f"{run.record.run_id}: there are no weights in {run.folder / EXPORT}; {why}"


def missing_files(run: StoredRun) -> list[str]:
    """Return the files that a run wrote and that are not there."""
    return [name for name in run.record.files if not (run.folder / name).exists()]


def damaged_files(run: StoredRun) -> list[str]:
    """Return the files that have another size than the run wrote, and those that its export lacks."""
    missing, damaged = missing_files(run), list[str]()
    if (run.folder / EXPORT).exists():
        damaged += [name for name in missing if name.startswith(f"{EXPORT}/")]
    for name, recorded in run.record.files.items():
        if name not in missing and (run.folder / name).stat().st_size != recorded["size"]:
            damaged.append(name)
    return damaged


@dataclass(frozen=True)
class Unfinished:
    """A run's folder without a record."""

    folder: Path
    state: Literal["under way", "interrupted", "failed"]
    """Whether the run is executing, was stopped, or failed."""
    reason: str = ""
    """The error of a failed run, or how an interrupted one resumes."""

    def __str__(self) -> str:
        return f"{self.folder}: {self.state}{f' ({self.reason})' if self.reason else ''}"


@dataclass(frozen=True)
class Store:
    """A folder of runs, one folder each."""

    root: Path

    def folder(self, run_id: str) -> Path:
        """Return the folder of a run, which need not exist."""
        return self.root / run_id

    def find(self, run_id: str, run_key: RunKey) -> Record | None:
        """Return the record of a finished run; None if there is none.

        Raises:
            UserError: the folder's record is damaged or belongs to another run, or a file has not the recorded size.
        """
        path = self.folder(run_id) / RECORD
        if not path.exists():
            return None
        record = Record.read(path)
        if record.run_key != run_key.digest:
            raise UserError(f"{path}: belongs to another run ({record.run_key[:16]}); move the folder away")
        if damaged := damaged_files(StoredRun(path.parent, record)):
            raise UserError(
                f"{path.parent}: {shortened(damaged)}: not of the size that the run wrote; put the file back, or "
                "delete the folder to run it again"
            )
        return record

    @contextmanager
    def lock(self, run_id: str, waiting: Callable[[], None]) -> Iterator[Path]:
        """Lock a run's folder; call `waiting` first if another process holds it. POSIX locks end with their process."""
        folder = self.folder(run_id)
        with files.writing(folder / LOCK):
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("a")
        with file:
            if not files.lock(file, folder / LOCK):
                waiting()
                files.lock(file, folder / LOCK, wait=True)
            for scrap in files.scraps_in(folder):
                files.remove(scrap)
            yield folder

    def write(self, record: Record, options: str, outcomes: dict[str, NDArray[Any]]) -> Record:
        """Write a finished run, the record last, so that a folder with a record is complete.

        Args:
            record: the record without its `files`.
            options: the content of options.yaml.
            outcomes: the results for each sample.

        Returns:
            The record with the checksums of the run's files.
        """
        folder = self.folder(record.run_id)
        files.write_atomic(folder / OPTIONS, options.encode())
        if outcomes:
            files.write_arrays(folder / OUTCOMES, outcomes)
        else:
            (folder / OUTCOMES).unlink(missing_ok=True)
        complete = replace(record, files=file_checksums(folder))
        files.write_atomic(folder / RECORD, with_checksum(asdict(complete)))
        for name in (STATE, PREVIOUS, ERROR, LOCK):
            (folder / name).unlink(missing_ok=True)
        return complete

    def runs(self) -> tuple[list[StoredRun], list[str]]:
        """Return all finished runs sorted by their folders' names, and messages on unreadable and disputed records."""
        return _finished_in(self.folders())

    def unfinished(self) -> list[Unfinished]:
        """Return the runs without a record, sorted by their folders' names. Nothing is written, and no lock is held."""
        return [*filter(None, map(unfinished_in, self.folders()))]

    def folders(self) -> list[Path]:
        """Return the folders of runs, finished or not, sorted. Raises UserError when they cannot be read."""
        try:
            with os.scandir(self.root) as entries:
                folders = [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.root}: cannot be read ({error.strerror}); it should be a folder of runs") from None
        return [self.root / name for name in sorted(folders) if not name.startswith(".")]


def _finished_in(folders: Iterable[Path]) -> tuple[list[StoredRun], list[str]]:
    """Return what `Store.runs` does, of the folders of some runs."""
    runs, problems = [], []
    for folder in folders:
        try:
            if has_record(folder):
                runs.append(StoredRun(folder, Record.read(folder / RECORD)))
        except UserError as error:
            problems.append(str(error))
    distinct_runs, disputes = merged(runs)
    return distinct_runs, problems + disputes


def has_record(folder: Path) -> bool:
    """Return whether a folder has a record, or keeps this user from seeing whether it has: reading it says why."""
    try:
        (folder / RECORD).stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def merged(runs: Sequence[StoredRun]) -> tuple[list[StoredRun], list[str]]:
    """Return one run for each run key, and a message for each further copy with another result.

    A run of committed code takes precedence over one of modified code, which nobody has any more; then the run that
    started first, so that repeating a run until the result is good changes nothing; then a run made here over a shared
    copy.
    """

    def precedence(run: StoredRun) -> tuple[bool, str, bool]:
        return run.record.dirty, str(run.record.environment.get("started")), run.record.shared is not None

    taken, disputes = [], []
    fix = "`python -m transfer.verify` tells whether one was changed; delete the wrong one"
    for copies in grouped_by(runs, lambda run: run.record.run_key).values():
        first, *others = sorted(copies, key=precedence)
        taken.append(first)
        texts = (difference_text(first, run) for run in others)
        disputes += [f"{text}; the first is taken; {fix}" for text in texts if text]
    return taken, disputes


def difference_text(first: StoredRun, second: StoredRun) -> str:
    """Return a sentence on two records of one run key with different results.

    It is empty if they have the same outcome and, to the bit, the same scores, of those that both have: an earlier
    version had fewer.
    """
    ours, theirs = ({"outcome": run.record.status, **run.record.scores} for run in (first, second))
    pairs = {name: (ours[name], theirs[name]) for name in ours if name in theirs}
    differing = [f"{name} {one} and {other}" for name, (one, other) in pairs.items() if one != other]
    if not differing:
        return ""
    return f"{first.folder} and {second.folder}: two records of one run, with {', '.join(differing)}"


def has_state(folder: Path) -> bool:
    """Return whether a run's folder holds a saved state, or the one before it, as after a kill between two renames."""
    return (folder / STATE).exists() or (folder / PREVIOUS).exists()


def unfinished_in(folder: Path) -> Unfinished | None:
    """Return the run in a folder without a record; None if there is a record, or no trace of a run."""
    if has_record(folder) or not any((folder / name).exists() for name in TRACES):
        return None
    if is_locked(folder / LOCK):
        return Unfinished(folder, "under way")
    try:
        error = (folder / ERROR).read_bytes().decode("utf-8", errors="replace").strip()
        return Unfinished(folder, "failed", error.splitlines()[-1] if error else "")
    except OSError:
        saved = "resumes from its last checkpoint" if has_state(folder) else "restarts: nothing was saved"
        return Unfinished(folder, "interrupted", f"the same command {saved}")


def is_locked(path: Path) -> bool:
    """Return whether another process holds a run's lock. This works on a read-only disk; own locks are not seen."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except (FileNotFoundError, PermissionError):
        return False
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)  # else the file system keeps no locks


def store_in(folder: Path) -> Store:
    """Return the store in a folder of runs or in the folder of a sweep."""
    return Store(folder / "runs" if os.path.isdir(folder / "runs") else folder)  # noqa: PTH112 (False where forbidden)


def runs_in(folders: Iterable[Path]) -> tuple[list[StoredRun], list[str]]:
    """Return the finished runs in folders of runs, of sweeps or of single runs, and messages on unreadable records.

    Raises:
        MissingInput: a folder does not exist.
    """
    finished, problems = list[StoredRun](), list[str]()
    for folder in folders:
        if not folder.is_dir():
            raise MissingInput(f"{folder}: directory not found; name a folder of runs, as runs or sweeps/NAME")
        single = has_record(folder)
        runs, unreadable = _finished_in([folder.resolve()]) if single else store_in(folder).runs()
        finished += runs
        problems += unreadable
        if left := unfinished_in(folder):
            problems.append(str(left))
    runs, disputes = merged(finished)
    return runs, problems + disputes


@dataclass(frozen=True)
class CommandResult:
    """The runs with a record that a command has made or found, and its exit status, for the sweep that started it."""

    runs: tuple[str, ...]
    status: int


def write_result(path: Path | None, records: Sequence[Record], status: int) -> None:
    """Write the names of a command's runs and its exit status to `path`, if one is given and there are runs to name.

    Of several ranks only the first one has records, and so writes.

    Raises:
        UserError: the file cannot be written.
    """
    if path is not None and records:
        content = {"runs": [record.run_id for record in records], "status": status}
        files.write_atomic(path, json.dumps(content).encode(), flag="--result-file")


def read_result(path: Path) -> CommandResult | None:
    """Return the result in a file, or None if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return CommandResult(tuple(map(str, content["runs"])), int(content["status"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
