"""Files that are whole or absent: the state of an unfinished training, and its history."""

import json
import os
from pathlib import Path
from typing import Any

import torch

from backbones.errors import UserError

STATE, HISTORY = "state.pt", "history.jsonl"


def write_atomic(path: Path, content: bytes) -> None:
    """Writes a file by way of a neighbour and a rename, so that readers and a power cut see the old file or the new one.

    Raises:
        UserError: the disk is full or not writable; the old file is as it was.
    """
    with replaced(path) as temporary:
        temporary.write_bytes(content)


class replaced:
    """Context: a temporary neighbour of `path` that takes its place when the block ends well, and is removed when not."""

    def __init__(self, path: Path):
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> Path:
        return self.temporary

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                _to_disk(self.temporary)
                self.temporary.replace(self.path)
                _to_disk(self.path.parent)
                return
        except OSError as full:
            error = full
        finally:
            self.temporary.unlink(missing_ok=True)
        # torch.save reports a full disk as RuntimeError.
        if isinstance(error, OSError) or (isinstance(error, RuntimeError) and "write" in str(error).lower()):
            raise UserError(
                f"{self.path}: cannot be written ({error}); free space or choose another folder with --out, "
                "then give the same command again: it goes on from the last saved state"
            ) from error


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Writes the state of a training, atomically. It names the run it belongs to under `identity`."""
    with replaced(folder / STATE) as temporary, temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()


def load_state(folder: Path, identity: str) -> dict[str, Any] | None:
    """The state of an unfinished training, None when there is none.

    Raises:
        UserError: the file is damaged, or belongs to a run with other options.
    """
    path = folder / STATE
    if not path.exists():
        return None
    mend = "delete it to train from the start"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        owner = state["identity"]
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: not a readable training state ({reason}); {mend}") from error
    if owner != identity:
        raise UserError(f"{path}: belongs to another run ({owner[:12]}, not {identity[:12]}); {mend}")
    return state


class History:
    """`history.jsonl`: one line per step and per validation. Resuming drops what came after the saved state."""

    def __init__(self, folder: Path | None, step: int):
        self.path = folder / HISTORY if folder else None
        self.lines: list[str] = []
        if self.path:
            kept = _lines_until(self.path, step) if step else []
            write_atomic(self.path, "".join(kept).encode())

    def add(self, line: dict[str, Any]) -> None:
        """Adds one line; it reaches the disk with the next `flush`."""
        self.lines.append(json.dumps(line) + "\n")

    def flush(self) -> None:
        """Appends the new lines to the file."""
        if not self.path or not self.lines:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(self.lines))
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written ({error}); free space, then give the command again"
            ) from error
        self.lines.clear()


def _lines_until(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []:
        if not line.endswith("\n") or json.loads(line)["step"] > step:
            break
        kept.append(line)
    return kept
