"""The file in which a command leaves the names of its runs for the sweep that started it. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transfer.core.files import parse_json, write_atomic
from transfer.records.record import Record


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


def read(path: Path) -> CommandResult | None:
    """Return the result in a file, or None if the file is missing or damaged."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        return CommandResult(tuple(map(str, content["runs"])), int(content["status"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
