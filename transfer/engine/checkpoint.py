"""What a training keeps in its run's folder: `history.jsonl`, and the state while it is unfinished.

Importing it imports no torch.
"""

import json
import pickle
import shutil
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from transfer.core.errors import UserError, first_line
from transfer.core.files import atomic_replacement, write_atomic, writing
from transfer.core.machine_errors import machine_error
from transfer.core.options import differences

STATE, PREVIOUS, HISTORY = "state.pt", "state.previous.pt", "history.jsonl"  # in a run's folder
SCHEMA, VERSION = "schema", 1
"""Entry with the version of a state's form."""
FLUSH_SECONDS = 5.0
"""Seconds after which lines are written, so that training can be followed; checkpoints are written less often."""


class History:
    """`history.jsonl`: one line per step and per validation.

    Args:
        folder: of the run; None writes nothing.
        saved: number of the lines that stay, those that were there when the state was saved; None: all.

    Attributes:
        count: number of lines on the disk.
    """

    def __init__(self, folder: Path | None, saved: int | None = 0):
        self.path = folder / HISTORY if folder else None
        self.lines: list[str] = []
        self.flushed = time.monotonic()
        self.count = 0
        if self.path:
            before = self.path.read_bytes().splitlines(keepends=True) if saved != 0 and self.path.exists() else []
            lines = [line for line in before[:saved] if line.endswith(b"\n")]
            write_atomic(self.path, b"".join(lines))
            self.count = len(lines)

    def add(self, line: dict[str, Any]) -> None:
        """Add one line of plain values; it reaches the disk within some seconds, or with the next `flush`.

        nan and infinities, which JSON does not have, become null; the outcome names the first.
        """
        self.lines.append(json.dumps(json.loads(json.dumps(line), parse_constant=lambda _: None)) + "\n")
        if time.monotonic() - self.flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Append the new lines to the file."""
        self.flushed = time.monotonic()
        if not self.path or not self.lines:
            return
        with writing(self.path), self.path.open("ab") as file:
            file.write("".join(self.lines).encode())
        self.count += len(self.lines)
        self.lines.clear()


def history(folder: Path, key: str = "") -> list[dict[str, Any]]:
    """Return the entries of a run's history: statistics of steps and validations. Empty without a file.

    Args:
        folder: the run's folder.
        key: a key that an entry must have; other lines are skipped without parsing.
    """
    try:
        lines = (folder / HISTORY).read_bytes().decode("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        if f'"{key}"' in line or not key:
            with suppress(ValueError):  # a line that a killed process left incomplete
                entries.append(json.loads(line))
    return [entry for entry in entries if key in entry] if key else entries


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically; the previous one is kept as `state.previous.pt`.

    Its entry `run_key` names the run it belongs to. The file is a zip archive, which has a checksum of every tensor's
    bytes; `load_state` checks them.
    """
    import torch

    with atomic_replacement(folder / STATE, keep=folder / PREVIOUS) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:
            if machine_error(error):  # such as a loader process that was killed: its signal comes at any line
                raise
            # torch's writer does not say why: a full disk appears as "unexpected pos"
            free = shutil.disk_usage(folder).free // 2**20
            raise OSError(f"is the disk full? {free} MiB are free there") from error


def load_state(folder: Path, run_key: str, options: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the state of an unfinished training; None when there is none.

    Without `state.pt`, deleted by a user or missing after a crash between two renames, the state before it counts.

    Args:
        folder: of the run.
        run_key: key of the run that asks for it.
        options: the options of that run; a checkpoint with other options is rejected with the differences.

    Raises:
        UserError: the file is damaged, of another version, or belongs to a run with other options.
    """
    import torch

    path = folder / STATE if (folder / STATE).exists() else folder / PREVIOUS
    if not path.exists():
        return None
    is_last = path.name == STATE and (folder / PREVIOUS).exists()
    hint = "delete it to resume from the previous checkpoint" if is_last else "delete it to restart training"
    try:
        _check_archive(path)
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        owner = str(state["run_key"])
        if owner == run_key and state[SCHEMA] != VERSION:
            raise ValueError(f"`{SCHEMA}` is {state[SCHEMA]}, and this version supports {VERSION}")
    except pickle.UnpicklingError as error:  # torch's advice is to run what it holds
        raise UserError(f"{path}: not a checkpoint: it holds Python objects, which are not run; {hint}") from error
    except Exception as error:
        raise UserError(f"{path}: not a readable training state ({first_line(error)}); {hint}") from error
    if owner != run_key:
        differing = "; ".join(differences(state.get("options", {}), options or {}))
        reason = f": {differing}" if differing else ""
        raise UserError(f"{path}: belongs to another run ({owner[:12]}, not {run_key[:12]}){reason}; {hint}")
    return state


def _check_archive(path: Path) -> None:
    """Raise ValueError or an error of its own unless a state's archive is as it was written: torch looks at no
    checksum, and reads nothing of what is marked as a folder, whose memory stays as it is.
    """
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) or any(entry.external_attr or entry.is_dir() for entry in archive.filelist):
            raise ValueError(f"{damaged or 'an entry'} is not as it was written")
