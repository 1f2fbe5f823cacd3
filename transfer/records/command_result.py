"""What a command leaves for the sweep that started it: the names of its runs. Imports no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backbones.runtime.files import write_atomic
from transfer.records.store import Record


@dataclass(frozen=True)
class Receipt:
    """The runs with a record that a command has made or found, and its exit status."""

    runs: tuple[str, ...]
    status: int


def write(path: Path | None, records: Sequence[Record], status: int) -> None:
    """Leaves a receipt, where one is asked for and there are runs to name; of a job's ranks the first has them.

    Raises:
        UserError: the file cannot be written.
    """
    if path is not None and records:
        content = {"runs": [record.run_id for record in records], "status": status}
        write_atomic(path, json.dumps(content).encode(), flag="--receipt")


def read(path: Path) -> Receipt | None:
    """The receipt in a file, None where there is none or it is damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Receipt(tuple(map(str, content["runs"])), int(content["status"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
