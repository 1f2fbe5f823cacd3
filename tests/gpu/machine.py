"""Commands on the pretended GPU for tests: forked from one process, which has imported torch and the product."""

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


class Done(SimpleNamespace):
    """`status` and `log` of a command, and what was counted: the attributes of `tests.gpu.ledger.Ledger`."""

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
    if not (shutil.which("gcc") and torch.version.cuda):
        pytest.skip("a pretended GPU needs gcc and torch's CUDA build")
    server = subprocess.Popen([sys.executable, "-m", "tests.gpu", "--serve"], stdin=-1, stdout=-1, text=True)
    atexit.register(server.kill)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    return server


def run(folder: Path, *words: str) -> Done:
    """Run `python -m tests.gpu WORDS` in a folder; skip the test where the GPU cannot be pretended."""
    server = _server()
    log, counts = folder / "log.txt", folder / "counts.json"
    print(json.dumps([str(folder), str(log), ["--counts", str(counts), *words]]), file=server.stdin, flush=True)
    status = int(server.stdout.readline())  # type: ignore[union-attr]
    text = log.read_text(encoding="utf-8")
    assert counts.exists(), text
    return Done(status=status, log=text, **json.loads(counts.read_text(encoding="utf-8")))
