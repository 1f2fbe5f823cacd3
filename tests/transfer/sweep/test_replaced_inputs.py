"""What a cell reads is replaced between the start of its process and its end: its record stands for nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.transfer.sweep.test_runner import QUICK, STEM, Ended, InThisProcess, jobs_of, swept
from transfer.launch.base import ProcessSpec
from transfer.sweep.definition.grid import SweepJob
from transfer.sweep.runner import Progress, Sweeper

PROBE = {"run": "knn", "backbone": "tiny", "dataset": "toy_digits"}
PROBED = {**QUICK, "k": 4, "other_k": [2]}


@dataclass
class Replacing(InThisProcess):
    """Something is replaced before the process of a cell reads it, or after."""

    before: Callable[[], object] = str
    after: Callable[[], object] = str

    def start(self, works: Sequence[ProcessSpec]) -> list[Ended]:
        self.before()
        ended = super().start(works)
        self.after()
        return ended


def ended(out: Path, jobs: list[SweepJob], launcher: InThisProcess) -> Progress:
    """Return how the only cell of a sweep ended."""
    sweeper = Sweeper(out, launcher)
    sweeper.add(jobs)
    sweeper.run()
    (progress,) = sweeper.jobs.values()
    return progress


@pytest.mark.nightly
def test_a_stem_replaced_while_its_cell_starts_and_put_back(tmp_path: Path) -> None:
    stem, out = tmp_path / "my_stem.py", tmp_path / "out"
    old, new = STEM.replace("BIAS", "True"), STEM.replace("BIAS", "False")
    stem.write_text(old)
    options = {**PROBED, "weights": "random", "stem": f"{stem}:Stem"}
    jobs = jobs_of(tmp_path, probe=PROBE | {"options": options})
    first = ended(out, jobs, Replacing(before=lambda: stem.write_text(new)))
    assert (first.status, first.record) == ("failed", None)
    assert first.reason == f"{stem}:Stem changed since the sweep began; start the sweep again"
    stem.write_text(old)
    second, launcher = swept(out, jobs)
    (record,) = (progress.record for progress in second.jobs.values())
    assert len(launcher.words) == 1
    assert record is not None
    assert record.backbone["files"]["stem"] == jobs[0].contents[0][1]
