"""What a sweep says of cells that fail, whose commands are real."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.transfer.sweep.test_replaced_inputs import ended
from tests.transfer.sweep.test_runner import PRETRAIN, QUICK, Ended, InThisProcess, jobs_of
from transfer.launch.base import ProcessSpec
from transfer.sweep.definition.cell_states import read_states
from transfer.sweep.definition.grid import SweepJob

STEM = """from torch import Tensor, nn


class Stem(nn.Module):
    def __init__(self, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.proj(x)
        if self.training and x.device.type != "meta":
            raise ValueError(f"no such width: {tokens.shape[1]}")
        return tokens
"""


@dataclass
class SilentAfterTheFirst(InThisProcess):
    """Later attempts die at once and print nothing, as where a process is not permitted."""

    def _run(self, work: ProcessSpec) -> Ended:
        if not self.words:
            return super()._run(work)
        self.words.append(work.arguments)
        return Ended(7)


def failing(folder: Path) -> list[SweepJob]:
    """Return the only cell of a sweep, which trains with a stem that fails in line 12."""
    (folder / "my_stem.py").write_text(STEM)
    options: dict[str, Any] = {**QUICK, "epochs": 1, "stem": f"{folder / 'my_stem.py'}:Stem"}
    return jobs_of(folder, pretrain=PRETRAIN | {"options": options})


def test_a_bug_in_a_users_stem_is_named_with_its_line(tmp_path: Path) -> None:
    launcher = InThisProcess()
    progress = ended(tmp_path / "out", failing(tmp_path), launcher)
    assert (progress.status, len(launcher.words)) == ("failed", 2)
    assert "my_stem.py at line 12: ValueError: no such width: 64" in progress.reason
    (cell,) = read_states(tmp_path / "out")
    assert cell.reason == progress.reason


def test_a_later_attempt_is_not_blamed_for_the_error_of_the_first(tmp_path: Path) -> None:
    progress = ended(tmp_path / "out", failing(tmp_path), SilentAfterTheFirst())
    (log,) = (tmp_path / "out" / "cells").glob("*.log")
    assert "no such width" in log.read_text()
    assert progress.reason == f"exit status 7: its log is empty; see {log}"
