"""The state of an unfinished training, and its history."""

import json
import math
import time
from pathlib import Path
from typing import Any

import torch

from backbones.errors import UserError
from backbones.runtime.files import atomic_replacement, write_atomic, write_error
from backbones.runtime.machine_errors import machine_error
from backbones.settings import differences

STATE, HISTORY = "state.pt", "history.jsonl"


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of a training, atomically. Its entry `identity` names the run it belongs to."""
    with atomic_replacement(folder / STATE) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:
            if machine_error(error):  # such as a loader process that was killed: its signal comes at any line
                raise
            # torch's writer says a full disk in words of its own.
            raise OSError(f"is the disk full? {str(error).splitlines()[0]}") from error


def load_state(folder: Path, run_key: str, options: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the state of an unfinished training; None when there is none.

    Args:
        identity: the identity of the run that asks for it.
        options: the options of that run; a state with other options is refused, and the error names the differences.

    Raises:
        UserError: the file is damaged, or belongs to a run with other options.
    """
    path = folder / STATE
    if not path.exists():
        return None
    hint = "delete it to train from the start"
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        owner = str(state["run_key"])
        missing = {"stepper", "watch", "progress", "done", "outcome", "cost", "world"} - set(state)
        if owner == run_key and missing:
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: not a readable training state ({reason}); {hint}") from error
    if owner != run_key:
        differing = differences(dict(state.get("options", {})), options or {})
        reason = f": {differing}" if differing else ""
        raise UserError(f"{path}: belongs to another run ({owner[:12]}, not {run_key[:12]}){reason}; {hint}")
    return state


FLUSH_SECONDS = 5.0
"""Seconds after which lines are written, for those who watch a training; its state is saved more seldom."""


class History:
    """`history.jsonl`: one line per step and per validation. Resuming drops what came after the saved state."""

    def __init__(self, folder: Path | None, step: int):
        self.path = folder / HISTORY if folder else None
        self.lines: list[str] = []
        self.flushed = time.monotonic()
        if self.path:
            kept = _lines_until(self.path, step) if step else []
            write_atomic(self.path, "".join(kept).encode())

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
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(self.lines))
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


def _lines_until(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []:
        if not line.endswith("\n") or json.loads(line)["step"] > step:
            break
        kept.append(line)
    return kept
