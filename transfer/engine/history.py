"""`history.jsonl` of a run: statistics of steps and validations. Imports no torch."""

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from transfer.core.files import parse_json, write_atomic, write_error

STATE, PREVIOUS, HISTORY = "state.pt", "state.previous.pt", "history.jsonl"  # in a run's folder
FLUSH_SECONDS = 5.0
"""Seconds after which lines are written, so that training can be followed; checkpoints are written less often."""


class History:
    """`history.jsonl`: one line per step and per validation.

    Args:
        folder: of the run; None writes nothing.
        kept: lines that stay, those that were there when the state was saved; None: all.

    Attributes:
        count: number of lines on the disk.
    """

    def __init__(self, folder: Path | None, kept: int | None = 0):
        self.path = folder / HISTORY if folder else None
        self.lines: list[str] = []
        self.flushed = time.monotonic()
        self.count = 0
        if self.path:
            before = self.path.read_bytes().splitlines(keepends=True) if kept != 0 and self.path.exists() else []
            before = [line for line in before[:kept] if line.endswith(b"\n")]
            write_atomic(self.path, b"".join(before))
            self.count = len(before)

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
            with self.path.open("ab") as file:
                file.write("".join(self.lines).encode())
        except OSError as error:
            raise write_error(self.path, error) from error
        self.count += len(self.lines)
        self.lines.clear()


def _replace_not_finite(value: Any) -> Any:
    """Return the value with None for nan and infinities, which JSON does not have; the outcome names the first."""
    if isinstance(value, dict):
        return {key: _replace_not_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_not_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
        if not key or f'"{key}"' in line:
            with suppress(ValueError):  # a line that a killed process left incomplete
                entries.append(parse_json(line))
    return [entry for entry in entries if not key or key in entry]
