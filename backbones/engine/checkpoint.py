"""The state of an unfinished training, and its history."""

import hashlib
import json
import math
import pickle
import shutil
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from backbones.errors import UserError, reason_of
from backbones.runtime.files import atomic_replacement, parse_json, write_atomic, write_error
from backbones.runtime.machine_errors import machine_error
from backbones.settings import differences

STATE, PREVIOUS, HISTORY = "state.pt", "state.previous.pt", "history.jsonl"
CHUNK = 2**24  # bytes that are read at a time
PARTS = {"stepper", "watch", "progress", "done", "outcome", "cost"}
SCHEMA, VERSION = "schema", 1
"""Entry with the version of a state's form; states of before it had one are of version 1."""


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of a training, atomically; the one before it is kept as `state.previous.pt`.

    Its entry `run_key` names the run it belongs to. The file is a zip archive, which has a checksum of every tensor's
    bytes; `load_state` checks them.
    """
    with atomic_replacement(folder / STATE, keep=folder / PREVIOUS) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:
            if machine_error(error):  # such as a loader process that was killed: its signal comes at any line
                raise
            # torch's writer does not say why: a full disk is told by "unexpected pos"
            free = shutil.disk_usage(folder).free // 2**20
            raise OSError(f"is the disk full? {free} MiB are free there") from error


def load_state(folder: Path, run_key: str, options: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the state of an unfinished training; None when there is none.

    Without `state.pt`, deleted by a user or missing after a crash between two renames, the state before it counts.

    Args:
        folder: of the run.
        run_key: key of the run that asks for it.
        options: the options of that run; a state with other options is refused, and the error names the differences.

    Raises:
        UserError: the file is damaged, of another version, or belongs to a run with other options.
    """
    path, hint = _path_and_hint(folder)
    if not path.exists():
        return None
    try:
        _check_archive(path)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        owner = str(state["run_key"])
        missing = PARTS - set(state)
        if owner == run_key and missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        version = state.get(SCHEMA, VERSION)
        if owner == run_key and version != VERSION:
            raise ValueError(f"`{SCHEMA}` is {version!r:.40}, and this version of the code knows {VERSION}")
    except pickle.UnpicklingError as error:  # torch's advice is to run what it holds
        raise UserError(f"{path}: not a training state: it holds Python objects, which are not run; {hint}") from error
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: not a readable training state ({reason}); {hint}") from error
    if owner != run_key:
        theirs = state.get("options")
        differing = differences(theirs if isinstance(theirs, dict) else {}, options or {})
        reason = f": {differing}" if differing else ""
        raise UserError(f"{path}: belongs to another run ({owner[:12]}, not {run_key[:12]}){reason}; {hint}")
    return state


def _path_and_hint(folder: Path) -> tuple[Path, str]:
    """Return the file of the state that counts, and what a user can do if it is refused."""
    path = folder / STATE if (folder / STATE).exists() else folder / PREVIOUS
    has_previous = path.name == STATE and (folder / PREVIOUS).exists()
    return path, "delete it to go on from the state before it" if has_previous else "delete it to train from the start"


@contextmanager
def refused_if_unfit(folder: Path) -> Iterator[None]:
    """Refuse the state in a folder by name when taking it up fails, as one of another version of the code does.

    Raises:
        UserError: it does not fit the training.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if machine_error(error):
            raise
        path, hint = _path_and_hint(folder)
        reason = " ".join(line.strip() for line in reason_of(error).splitlines()[:2])
        raise UserError(f"{path}: does not fit this training ({reason}); {hint}") from error


def check_form(part: str, saved: Any, present: Any) -> None:
    """Raise TypeError unless a part of a state is of the type that it has in this version, and so are its entries.

    Args:
        part: its name, for the error.
        saved: that of the state; it may lack entries.
        present: the same part of a training that has not begun.
    """
    if _form(saved) is not _form(present):
        raise TypeError(f"{part} is of another type")
    for name in saved if isinstance(saved, dict) else ():
        if name not in present or _form(saved[name]) is not _form(present[name]):
            raise TypeError(f"{part}: {name!r:.40} is unknown or of another type")


def _form(value: Any) -> type:
    """Return the type of a value; numbers, flags and None count as one, as None stands for no number."""
    return next((kind for kind in (str, dict, list) if isinstance(value, kind)), float if _is_number(value) else object)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _check_archive(path: Path) -> None:
    """Read a state through the checksums of its archive, which torch does not look at.

    Raises:
        ValueError, zipfile.BadZipFile: a bit of it is not as it was written.
    """
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed, which torch never does")
            if entry.external_attr or entry.is_dir():  # torch reads nothing of a folder, and leaves its memory as it is
                raise ValueError(f"{entry.filename} is marked as a folder, which torch never writes")
            with archive.open(entry) as file:
                while file.read(CHUNK):
                    pass


FLUSH_SECONDS = 5.0
"""Seconds after which lines are written, for those who watch a training; its state is saved more seldom."""


class History:
    """`history.jsonl`: one line per step and per validation. Resuming drops what came after the saved state.

    Args:
        folder: of the run; None writes nothing.
        step: of the saved state; 0 begins a new history.
        saved: `position` when the state was saved; None without a state.

    Attributes:
        lost: sentence on lines that were there when the state was saved and are no more; empty if none are lost.

    Raises:
        UserError: the file cannot be read or written, as it is a folder.
    """

    def __init__(self, folder: Path | None, step: int, saved: dict[str, Any] | None = None):
        self.path = folder / HISTORY if folder else None
        self.lines: list[str] = []
        self.flushed = time.monotonic()
        self.lost = ""
        self._count, self._digest = 0, hashlib.sha256()
        if self.path:
            kept = self._kept(self.path, step, saved) if step else []
            write_atomic(self.path, b"".join(kept))
            self._note(kept)

    @property
    def position(self) -> dict[str, Any]:
        """Number of lines on the disk and the sha256 of their bytes, which a saved state keeps."""
        return {"lines": self._count, "sha256": self._digest.hexdigest()}

    def _kept(self, path: Path, step: int, saved: dict[str, Any] | None) -> list[bytes]:
        """Return the lines up to a step as they were when the state was saved, or those that are left of them."""
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({error.strerror}); move it away, then give the command again"
            ) from None
        if saved is not None:
            of_state = lines[: saved["lines"]]
            if hashlib.sha256(b"".join(of_state)).hexdigest() == saved["sha256"]:
                return of_state
        kept = [line for line in lines if _is_line(line, step)]
        expected = len(kept) if saved is None else saved["lines"]
        missing = max(expected - len(kept), 0)
        if saved is not None or (len(kept) < len(lines) and not _is_later(lines[len(kept)], step)):
            self.lost = (
                f"{path.name} was changed or cut before step {step}, where the training was resumed: "
                f"{missing} of its {expected} lines are lost"
            )
        return kept

    def _note(self, lines: Sequence[bytes]) -> None:
        self._count += len(lines)
        for line in lines:
            self._digest.update(line)

    def add(self, line: dict[str, Any]) -> None:
        """Add one line of plain values; it reaches the disk within some seconds, or with the next `flush`."""
        self.lines.append(json.dumps(_replace_not_finite(line), allow_nan=False) + "\n")
        if time.monotonic() - self.flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Append the new lines to the file."""
        self.flushed = time.monotonic()
        if not self.path or not self.lines:
            return
        try:
            content = [line.encode() for line in self.lines]
            with self.path.open("ab") as file:
                file.write(b"".join(content))
            self._note(content)
        except OSError as error:
            raise write_error(self.path, error) from error
        self.lines.clear()


def _replace_not_finite(value: Any) -> Any:
    """Return the value with None for nan and infinities, which JSON lacks; the outcome names the one that matters."""
    if isinstance(value, dict):
        return {key: _replace_not_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_not_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_line(line: bytes, step: int) -> bool:
    """Return whether a line is whole, and of a step up to `step`."""
    number = _step_of(line)
    return number is not None and number <= step


def _is_later(line: bytes, step: int) -> bool:
    """Return whether a line is of a step after `step`, or the last one that a killed process has not ended."""
    number = _step_of(line)
    return not line.endswith(b"\n") or (number is not None and number > step)


def _step_of(line: bytes) -> int | None:
    """Return the step of a line of a history; None if it is damaged or not ended."""
    if not line.endswith(b"\n"):
        return None
    try:
        entry = parse_json(line)
        return entry["step"] if type(entry["step"]) is int else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
