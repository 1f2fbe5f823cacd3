"""Commands on the pretended GPU for tests: forked from one process, which has imported torch and the product."""

import atexit
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.gpu.__main__ import SKIP


@dataclass
class Done:
    """What a command returned and printed, and what was counted (`tests.gpu.ledger.Ledger`)."""

    status: int
    log: str
    syncs: list[tuple[str, str, str, int]]
    launches: dict[str, int]
    mixes: dict[str, int]
    kernels: int
    steps: int
    phase: str

    def in_steps(self) -> str:
        """Return the synchronisations in training steps, a line each."""
        return "\n".join(f"{number} {kind} {line}" for phase, kind, line, number in self.syncs if phase != "else")

    def number(self, *phases: str) -> int:
        """Return how many synchronisations phases have."""
        return sum(number for phase, *_, number in self.syncs if phase in phases)

    def per_step(self) -> float:
        """Return their number in a step."""
        return self.number("train", "backward") / self.steps


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen([sys.executable, "-m", "tests.gpu", "--serve"], stdin=-1, stdout=-1, stderr=-1, text=True)
    atexit.register(server.kill)
    assert server.stdout is not None
    assert server.stderr is not None
    if not server.stdout.readline():
        reason = server.stderr.read()
        assert server.wait() == SKIP, reason
        pytest.skip(reason)
    return server


def run(folder: Path, *words: str) -> Done:
    """Run `python -m tests.gpu WORDS` in a folder; skip the test where the GPU cannot be pretended."""
    server = _server()
    log, counts = folder / "log.txt", folder / "counts.json"
    print(json.dumps([str(folder), str(log), ["--counts", str(counts), *words]]), file=server.stdin, flush=True)
    status = int(server.stdout.readline())  # type: ignore[union-attr]
    text = log.read_text(encoding="utf-8")
    assert counts.exists(), text
    return Done(status, text, **json.loads(counts.read_text(encoding="utf-8")))
