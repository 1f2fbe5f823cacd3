"""Records of runs, what identifies a run, and the folder of runs. Imports no torch."""

import fcntl
import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError
from backbones.runtime.files import atomic_replacement, check_writable, write_atomic, write_error
from transfer.records.checksums import listed, with_checksum
from transfer.records.per_sample import OUTCOMES
from transfer.records.record import SCHEMA, Record, RunKey, unreadable

__all__ = ["SCHEMA", "Record", "Run", "RunKey", "Store", "Unfinished", "is_locked", "merged", "same_result", "unlike"]

RECORD, OPTIONS, ERROR, LOCK, STATE = "record.json", "options.yaml", "error.txt", "lock", "state.pt"
HISTORY = "history.jsonl"
NOT_LISTED = (RECORD, ERROR, LOCK, STATE)
TRACES = (OPTIONS, HISTORY, ERROR, LOCK, STATE)


@dataclass(frozen=True)
class Run:
    """A finished run where it lies: `folder` holds `record.json`, `outcomes.npz` and the other files of it."""

    folder: Path
    record: Record


@dataclass(frozen=True)
class Unfinished:
    """A run's folder without a record. `state` says whether it can go on, and `reason` what is known of its end."""

    folder: Path
    state: Literal["under way", "interrupted", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class Store:
    """A folder of runs, one folder each."""

    root: Path

    def prepare(self) -> None:
        """Makes the folder and checks that it can be written.

        Raises:
            UserError: it cannot.
        """
        check_writable(self.root, "--out")

    def folder(self, run_id: str) -> Path:
        """The folder of a run; it need not exist."""
        return self.root / run_id

    def find(self, run_id: str, run_key: RunKey) -> Record | None:
        """The finished record of a run, None when there is none.

        Raises:
            UserError: the folder's record is damaged or belongs to another run.
        """
        path = self.folder(run_id) / RECORD
        if not path.exists():
            return None
        record = Record.read(path)
        if record.run_key != run_key.digest:
            raise UserError(f"{path}: belongs to another run ({record.run_key[:16]}); move the folder away")
        return record

    def of_older_names(self, run_id: str, run_key: RunKey) -> Record | None:
        """Return the finished run that older names of options gave another key, None if there is none.

        Its folder has the name of `run_id` up to the digest. What cannot be read is left to the reports.
        """
        begin = run_id.rpartition("-")[0] + "-"
        for folder in self._folders():
            if folder.name.startswith(begin) and (folder / RECORD).exists() and folder.name != run_id:
                try:
                    record = Record.read(folder / RECORD)
                except UserError:
                    continue
                if record.schema != SCHEMA and record.current_run_key == run_key.digest:
                    return record
        return None

    @contextmanager
    def lock(self, run_id: str, waiting: Callable[[], None]) -> Iterator[Path]:
        """Holds a run's folder, after `waiting()` where another process has it. POSIX locks die with their process."""
        folder = self.folder(run_id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("a")
        except OSError as error:
            raise write_error(folder / LOCK, error) from None
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                waiting()
                fcntl.lockf(file, fcntl.LOCK_EX)
            for scrap in folder.glob(".*.tmp"):
                scrap.unlink()  # of a process that was killed while it wrote
            yield folder

    def write(self, record: Record, options: str, outcomes: dict[str, NDArray[Any]]) -> Record:
        """Writes a finished run; the record comes last, so a folder with one is complete. Returns it with its files."""
        folder = self.folder(record.run_id)
        write_atomic(folder / OPTIONS, options.encode())
        if outcomes:
            with atomic_replacement(folder / OUTCOMES) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **outcomes)
        else:
            (folder / OUTCOMES).unlink(missing_ok=True)
        whole = replace(record, files=listed(folder, besides=NOT_LISTED, export=record.export is not None))
        write_atomic(folder / RECORD, with_checksum(asdict(whole)))
        for name in (STATE, ERROR, LOCK):
            (folder / name).unlink(missing_ok=True)
        return whole

    def runs(self) -> tuple[list[Run], list[str]]:
        """All finished runs in order of their folders' names, and what could not be read or is there twice."""
        found, problems = [], []
        with _collector_at_rest():
            for folder in self._folders():
                path = folder / RECORD
                try:
                    found.append(Run(folder, Record.parse(path.read_bytes(), path)))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    problems.append(str(unreadable(path, error)))
                except UserError as error:
                    problems.append(str(error))
        kept, disputes = merged(found)
        return kept, problems + disputes

    def records(self) -> tuple[list[Record], list[str]]:
        """The records of `runs`."""
        runs, problems = self.runs()
        return [run.record for run in runs], problems

    def unfinished(self) -> list[Unfinished]:
        """The runs without a record, in order of their folders' names. Nothing is written, and no lock is held."""
        folders = (folder for folder in self._folders() if not (folder / RECORD).exists())
        return [_unfinished(folder) for folder in folders if any((folder / name).exists() for name in TRACES)]

    def _folders(self) -> list[Path]:
        try:
            with os.scandir(self.root) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"{self.root}: cannot be read ({error.strerror}); it should be a folder of runs") from None
        return [self.root / name for name in names]


def merged(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """One run for each run key, and what is there twice with different results.

    Of unlike ones a clean run stands before one of changed files, whose code nobody has any more; of equally clean ones
    the one that started first, so that repeating a run until it comes out well changes nothing. Every unlike one is
    named all the same. Of copies with equal outcome and scores one's own stands before a shared one.
    """
    by_run_key: dict[str, list[Run]] = {}
    for run in runs:
        by_run_key.setdefault(run.record.current_run_key, []).append(run)
    kept, disputes = [], []
    for copies in by_run_key.values():
        first, *others = sorted(copies, key=_precedence) if len(copies) > 1 else copies
        kept.append(first)
        disputes += [_dispute(first, run) for run in others if not same_result(first.record, run.record)]
    return kept, disputes


def _precedence(run: Run) -> tuple[bool, str, bool]:
    return run.record.dirty, str(run.record.environment.get("started")), run.record.shared is not None


def same_result(one: Record, other: Record) -> bool:
    """Whether two records of one run key ended alike, with the same scores to the bit."""
    return one.outcome["status"] == other.outcome["status"] and one.scores == other.scores


def unlike(first: Run, other: Run) -> str:
    """Two records of one run key, and in what they differ, in words."""
    one, two = ({"outcome": run.record.outcome["status"], **run.record.scores} for run in (first, other))
    differing = [
        f"{name} {one.get(name)} and {two.get(name)}" for name in {**one, **two} if one.get(name) != two.get(name)
    ]
    return f"{first.folder} and {other.folder}: two records of one run, with {', '.join(differing)}"


def _dispute(first: Run, other: Run) -> str:
    cleaner = other.record.dirty and not first.record.dirty
    why = "is of unchanged files while the other's were changed" if cleaner else "started earlier"
    return (
        f"{unlike(first, other)}; the first, which {why}, is taken. `python -m transfer.verify` tells whether one was "
        "changed; delete the wrong one"
    )


def _unfinished(folder: Path) -> Unfinished:
    if is_locked(folder / LOCK):
        return Unfinished(folder, "under way")
    try:
        said = (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip()
        return Unfinished(folder, "failed", said.splitlines()[-1] if said else "")
    except OSError:
        saved = "goes on from its last saved state" if (folder / STATE).exists() else "starts anew: nothing was saved"
        return Unfinished(folder, "interrupted", f"the same command {saved}")


def history(folder: Path, having: str = "") -> list[dict[str, Any]]:
    """The lines of a run's history: of steps, and of what was looked at after an epoch. None where there is no file.

    Args:
        having: only those with this key, of which there may be few among many.
    """
    try:
        lines = (folder / HISTORY).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        if having and f'"{having}"' not in line:
            continue
        try:
            found.append(json.loads(line))
        except ValueError:  # torn, as the process was killed
            continue
    return [line for line in found if isinstance(line, dict) and (not having or having in line)]


def is_locked(path: Path) -> bool:
    """Whether another process holds a run's lock. Works on a read-only disk; not for a lock of this process."""
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except (FileNotFoundError, PermissionError):
        return False
    except OSError:
        return True


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Records are trees that stay; looking for cycles among them, now or later, takes longer than reading them."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def store_in(folder: Path) -> Store:
    """The runs in a folder of runs, or in that of a sweep."""
    return Store(folder / "runs" if (folder / "runs").is_dir() else folder)
