"""What the report of a sweep says of arms that broke down."""

from dataclasses import replace
from pathlib import Path

import pytest

from backbones.settings import write_yaml
from tests.transfer.records.recorded import made
from tests.transfer.sweep.test_runner import CLASSIFY, PRETRAIN, swept
from transfer.sweep.definition.grid import expand
from transfer.sweep.definition.sweep_file import SweepFile, read_sweep
from transfer.sweep.report import SweepReport, broken_arms
from transfer.sweep.runner import Progress

STEM = """
from torch import nn

class Stem(nn.Conv2d):
    def __init__(self, dim, patch):
        super().__init__(3, dim, patch, patch)

    def forward(self, x):
        return super().forward(x) * float("nan")
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFile:
    """A user's stem against patchify, as the command reads it."""
    monkeypatch.chdir(tmp_path)
    Path("my_stem.py").write_text(STEM)
    reid = {"run": "reid", "after": "pretrain", "dataset": ["toy_market"], "options": {"smoke": True}}
    steps = {"pretrain": PRETRAIN, "reid": reid, "classify": CLASSIFY | {"dataset": ["toy_digits", "toy_pets"]}}
    Path("mine.yaml").write_text(write_yaml({"vary": "pretrain", "steps": steps}))
    return read_sweep("mine.yaml", "full", ("pretrain.seeds=[0, 1]",)).comparing(
        "stem", "my_stem.py:Stem", ["patchify"]
    )


def test_each_arm_is_named_with_its_task_and_step(bench: SweepFile) -> None:
    ends = [Progress(job, "completed", record=made(seed=job.seed)) for job in expand(bench)]
    assert broken_arms(bench, ends) == []
    outcome = {"status": "at_chance", "reason": "", "step": 84}
    for end in ends:
        mine = "my_stem" in str(end.job.options["stem"])
        if mine and (end.job.step.name, end.job.seed) in {("reid", 0), ("classify", 1)}:
            end.status, end.record = "at_chance", replace(made(seed=end.job.seed), outcome=outcome)
    assert broken_arms(bench, ends) == [
        "my_stem broke down in reid: at_chance at step 84 (seed 0); 1 of 2 runs",
        "my_stem broke down in classify on toy_digits: at_chance at step 84 (seed 1); 1 of 2 runs",
        "my_stem broke down in classify on toy_pets: at_chance at step 84 (seed 1); 1 of 2 runs",
    ]
    alone = [end for end in ends if end.job.seed == 0]
    assert broken_arms(bench, alone) == ["my_stem broke down in reid: at_chance at step 84"]


def test_the_report_of_a_sweep_names_the_arm(bench: SweepFile, tmp_path: Path) -> None:
    """From a real training, whose stem gives what is not finite."""
    jobs = [job for job in expand(bench) if job.step.kind == "pretrain" and job.seed == 0]
    sweeper, _ = swept(tmp_path / "out", jobs)
    report = SweepReport(bench, sweeper, None)
    (mine,) = (end for end in sweeper.jobs.values() if end.training_failed)
    assert mine.record is not None
    said = f"my_stem broke down in pretraining: nonfinite at step {mine.record.outcome['step']}"
    assert said in report.text()
    assert said in report.write_page().read_text()
