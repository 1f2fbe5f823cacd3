"""Runs commands one after the other, each in a folder of its own, and keeps what must be said of them."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.interactions.commands import Command, Ran, command_of, run
from tests.interactions.covering import Row
from tests.interactions.invariants import broken, lines_of
from tests.interactions.places import Places
from tests.interactions.ranks import RankPair
from transfer.records.store import OUTCOMES


@dataclass(frozen=True)
class Finding:
    """A command, and what must not be so."""

    what: str
    line: str

    def __str__(self) -> str:
        return f"{self.what}\n    {self.line}"


@dataclass
class Bench:
    """Where commands run. A context manager, for the two ranks that it may start."""

    root: Path
    places: Places
    ranks: RankPair = field(default_factory=RankPair)
    seconds: Counter[str] = field(default_factory=Counter)
    commands: int = 0

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *about: object) -> None:
        self.ranks.stop()

    def run(self, command: Command, out: Path | None = None) -> Ran:
        """Runs a command, below a new folder unless one is given."""
        self.commands += 1
        place = out or self.root / f"{self.commands:04d}"
        ran = self.ranks.run(command, place) if command.ranks == 2 else run(command, place)
        self.seconds[command.words[0] + " by two ranks" * (command.ranks == 2)] += ran.seconds
        return ran

    def of_row(self, row: Row, *words: str) -> Ran:
        """Runs the command that a row stands for, with more words."""
        return self.run(command_of(row, self.places).with_words(*words))

    def tried(self, row: Row, *, anew: bool) -> list[Finding]:
        """What is wrong with the command of a row by itself; see `broken`."""
        ran = self.of_row(row)
        found = [Finding(text, ran.line) for text in broken(ran, anew=anew)]
        if not found:
            self.clear(ran)
        return found

    def clear(self, *done: Ran) -> None:
        """Removes what commands have written that nobody needs to look at."""
        for ran in done:
            shutil.rmtree(ran.out, ignore_errors=True)


def outcomes_of(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a run; none of a training that broke down."""
    if not (folder / OUTCOMES).exists():
        return {}
    with np.load(folder / OUTCOMES) as file:
        return dict(file)


def result(folder: Path) -> dict[str, Any]:
    """All that a run came to, for comparison: what each step said, outcomes, weights."""
    from transfer.records.record import Record

    record = Record.read(folder / "record.json")
    steps = [tuple(sorted(line.items())) for line in lines_of(folder) if "loss" in line]
    arrays = {name: (values.shape, values.tobytes()) for name, values in outcomes_of(folder).items()}
    return {"outcome": record.outcome, "steps": steps, "outcomes": arrays, "weights": record.export}


def differing(one: Path, two: Path, besides: Sequence[str] = ()) -> list[str]:
    """In which parts two runs came to different results, to the bit.

    Args:
        besides: outcomes that may differ.
    """
    a, b = result(one), result(two)
    for side in (a, b):
        side["outcomes"] = {name: values for name, values in side["outcomes"].items() if name not in besides}
    return [name for name in a if a[name] != b[name]]
