"""The file in which a command leaves the names of its runs for the sweep that started it. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transfer.core.files import parse_json, write_atomic
from transfer.records.store import Record


@dataclass(frozen=True)
class CommandResult:
    """The runs with a record that a command has made or found, and its exit status."""

    runs: tuple[str, ...]
    status: int


def write(path: Path | None, records: Sequence[Record], status: int) -> None:
    """Write the names of a command's runs and its exit status to `path`, if one is given and there are runs to name.

    Of several ranks only the first one has records, and so writes.

    Raises:
        UserError: the file cannot be written.
    """
    if path is not None and records:
        content = {"runs": [record.run_id for record in records], "status": status}
        write_atomic(path, json.dumps(content).encode(), flag="--result-file")


def announce(path: Path | None, run_id: str) -> None:
    """Write beside `path`, if one is given, which run the command has begun, so that a sweep can follow it.

    Raises:
        UserError: the file cannot be written.
    """
    if path is not None:
        write_atomic(_begun_file(path), run_id.encode(), flag="--result-file")


def begun(path: Path) -> str:
    """Return the run that the command with this result file has begun last; empty if it has begun none."""
    try:
        return _begun_file(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def forget(path: Path) -> None:
    """Remove what an earlier command left in and beside a result file."""
    for file in (path, _begun_file(path)):
        file.unlink(missing_ok=True)


def _begun_file(path: Path) -> Path:
    return path.with_suffix(".begun")


def read(path: Path) -> CommandResult | None:
    """Return the result in a file, or None if the file is missing or damaged."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        return CommandResult(tuple(map(str, content["runs"])), int(content["status"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
