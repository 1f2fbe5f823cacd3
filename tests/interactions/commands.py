"""A command, run in this process or by two ranks, and what it came to."""

import io
import random
import shlex
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.interactions.generator import base_words, drawn, program, values_of, with_words
from tests.interactions.places import Places
from tests.processes import run_by_ranks
from tests.runs import record
from transfer.cli.options import BACKBONE_OPTIONS
from transfer.core.settings import as_words
from transfer.engine.checkpoint import history
from transfer.records.per_sample import OUTCOMES
from transfer.records.record import Record
from transfer.records.store import RECORD

TRIES = 6
"""How often a refused command is given again with an option less."""


@dataclass
class Ran:
    """What a command came to."""

    words: list[str]
    out: Path
    status: int
    stdout: str = ""
    stderr: str = ""

    @property
    def runs(self) -> list[Path]:
        """Folders of the runs with a record."""
        return sorted(path.parent for path in self.out.glob(f"runs/*/{RECORD}"))

    @property
    def record(self) -> Record:
        """The only record."""
        return record(self.out / "runs")

    @property
    def line(self) -> str:
        """What repeats it in a shell."""
        return f"python -m transfer.{_program(self.words)} {shlex.join([*self.words, *_places(self.words, self.out)])}"


def _program(words: list[str]) -> str:
    return "pretrain" if words[0].endswith(".yaml") else program(words[0])


def _places(words: list[str], out: Path) -> list[str]:
    given = ["--out", str(out / "runs"), "--feature-cache", str(out / "features")]
    return given + (["--export-dir", str(out / "weights")] if _program(words) == "pretrain" else [])


@dataclass
class Bench:
    """Where commands run, each in a folder of its own."""

    root: Path
    places: Places
    commands: int = 0

    def folder(self) -> Path:
        """A new folder."""
        self.commands += 1
        return self.root / f"{self.commands:04d}"

    def run(self, words: list[str], out: Path | None = None) -> Ran:
        """Run a command here, below a new folder unless one is given."""
        main, out = import_module(f"transfer.{_program(words)}").main, out or self.folder()
        stdout, stderr = io.StringIO(), io.StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr), warnings.catch_warnings(action="ignore"):
            status = main([*words, *_places(words, out)])
        return Ran(words, out, status, stdout.getvalue(), stderr.getvalue())

    def by_two_ranks(self, words: list[str]) -> Ran:
        """Run a command by two ranks."""
        out = self.folder()
        out.mkdir(parents=True)
        run_by_ranks(f"transfer.{_program(words)}", [*words, *_places(words, out)], out / "log")
        return Ran(words, out, 0)

    def with_options(self, work: str, names: list[str], rng: random.Random) -> tuple[Ran, list[str]]:
        """Run a command with other values of these options, and return those that were left: of refused ones fewer."""
        plain, left = base_words(work, self.places), list(names)
        values = values_of(work, plain)
        for number in range(TRIES):
            changed: dict[str, Any] = {}
            for name in left:
                changed = drawn(work, name, values | changed, rng, self.places) | changed
            ran = self.run(with_words(plain, as_words(changed, BACKBONE_OPTIONS)))
            if ran.status not in (1, 2):
                break
            named = [name for name in left if f"--{name.replace('_', '-')}" in ran.stderr or f"`{name}`" in ran.stderr]
            if number % 2 and len(left) > 1:  # another value may do, or else the pair cannot stand together
                left.remove(rng.choice(named or left))
        return ran, left


def result(folder: Path) -> dict[str, Any]:
    """All that a run came to, for comparison: what each step said, outcomes, weights."""
    ran = Record.read(folder / RECORD)
    steps = [tuple(sorted(line.items())) for line in history(folder, "loss")]
    arrays = {name: (values.shape, values.tobytes()) for name, values in outcomes_of(folder).items()}
    return {"outcome": ran.outcome, "steps": steps, "outcomes": arrays, "weights": ran.export}


def outcomes_of(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a run; none of a training that broke down."""
    if not (folder / OUTCOMES).exists():
        return {}
    with np.load(folder / OUTCOMES) as file:
        return dict(file)
