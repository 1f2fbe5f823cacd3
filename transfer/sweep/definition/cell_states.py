"""The lock of a sweep, and the states of its cells in `OUT/cells/states.json`, which pages show. Imports no torch."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from backbones.errors import UserError
from backbones.runtime.files import closed_in_the_end, lock, parse_json, write_atomic, write_error

STATES = Path("cells") / "states.json"
LOCK = Path("cells") / "lock"


@dataclass(frozen=True)
class CellState:
    """A cell of a sweep.

    Attributes:
        name: of the cell.
        status: "waiting", "running", "completed", "failed", "blocked", or how its training broke down.
        reason: first line of the error of one that failed, or why it is blocked.
        run: id of its run; empty before that is known.
    """

    name: str
    status: str
    reason: str = ""
    run: str = ""


def write_states(out: Path, states: Sequence[CellState]) -> None:
    """Write the states of all cells. Raises UserError if the folder cannot be written."""
    write_atomic(out / STATES, json.dumps([asdict(state) for state in states], indent=1).encode())


def read_states(out: Path) -> list[CellState]:
    """Return the cells of the sweep in a folder; empty if it holds none, or its file is damaged."""
    try:
        content = parse_json((out / STATES).read_text(encoding="utf-8"))
        return [CellState(*(str(cell[name]) for name in ("name", "status", "reason", "run"))) for cell in content]
    except (OSError, ValueError, KeyError, TypeError):
        return []


@contextmanager
def locked(out: Path) -> Iterator[IO[str]]:
    """Keep a second process from running the same sweep. Raises UserError."""
    try:
        file = (out / LOCK).open("a")
    except OSError as error:
        raise write_error(out / LOCK, error) from None
    with closed_in_the_end(file):
        if not lock(file, out / LOCK):
            raise UserError(f"{out}: another process runs this sweep; wait for it, or give --out FOLDER")
        yield file
