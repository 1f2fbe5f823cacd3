"""The state of an unfinished training."""

import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch

from transfer.core.errors import UserError, first_line
from transfer.core.files import atomic_replacement
from transfer.core.machine_errors import machine_error
from transfer.core.options import differences
from transfer.engine.history import PREVIOUS, STATE

CHUNK = 2**24  # bytes that are read at a time
SCHEMA, VERSION = "schema", 1
"""Entry with the version of a state's form."""


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically; the previous one is kept as `state.previous.pt`.

    Its entry `run_key` names the run it belongs to. The file is a zip archive, which has a checksum of every tensor's
    bytes; `load_state` checks them.
    """
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
    path, hint = _path_and_hint(folder)
    if not path.exists():
        return None
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
        differing = differences(state.get("options", {}), options or {})
        reason = f": {differing}" if differing else ""
        raise UserError(f"{path}: belongs to another run ({owner[:12]}, not {run_key[:12]}){reason}; {hint}")
    return state


def _path_and_hint(folder: Path) -> tuple[Path, str]:
    """Return the file of the current checkpoint, and the fix if it is rejected."""
    path = folder / STATE if (folder / STATE).exists() else folder / PREVIOUS
    has_previous = path.name == STATE and (folder / PREVIOUS).exists()
    return path, "delete it to resume from the previous checkpoint" if has_previous else "delete it to restart training"


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
