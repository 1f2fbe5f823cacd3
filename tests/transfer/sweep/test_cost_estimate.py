"""Whether the jobs of a sweep can run, and how long they take, as `--dry-run` reports."""

from itertools import product
from pathlib import Path

import pytest

from transfer.core.errors import UsageError
from transfer.core.settings import config_names
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import TIERS, SweepFile, read_sweep
from transfer.sweep.__main__ import main
from transfer.sweep.cost_estimate import Prediction
from transfer.sweep.lr_search import Searches

PLANNED = ["--dry-run", "--speed", "1"]
USERS = """
import torch

def fixed(q, k, v):
    return (q @ k.transpose(-2, -1)).tanh() @ v

def scaled(q, k, v, scale=None):
    return (q @ k.transpose(-2, -1) * (1 if scale is None else scale)).tanh() @ v
"""


def jobs_of(sweep: SweepFile) -> list[SweepJob]:
    sweep = sweep.comparing([{"attention": "relu"}, {}]) if sweep.vary else sweep
    return Searches(sweep).start() if sweep.search else expand(sweep)


@pytest.mark.nightly
def test_every_job_of_every_shipped_sweep_can_run() -> None:
    """But for `cross` in its larger tiers, whose larger models have the parts of its smoke tier."""
    jobs: list[SweepJob] = []
    for name, tier in product(config_names("sweeps"), TIERS):
        if name == "cross" and tier != "smoke":
            continue
        try:
            sweep = read_sweep(name, tier)
        except UsageError as error:
            assert "unknown tier" in str(error)  # noqa: PT017
            continue
        of_sweep = jobs_of(sweep)
        assert of_sweep, (name, tier)
        jobs += of_sweep
    assert len(jobs) > 2500
    assert Prediction(jobs, builds=True).failed == {}


@pytest.fixture
def detecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A sweep of pretraining and detection with relative positions over users' attentions."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(USERS)
    Path("mine.yaml").write_text(
        "about: mine\nvary: pretrain\nsteps:\n"
        "  pretrain: {pretrain: cifar_deit, backbone: tiny, dataset: toy_digits, options: {smoke: true}}\n"
        "  detect: {run: detect, after: pretrain, dataset: toy_coco, options: {smoke: true, relative: true}}\n"
    )
    return ["mine.yaml", *PLANNED]


@pytest.mark.nightly
def test_what_cannot_be_built_is_reported_once_with_its_jobs(
    detecting: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*detecting, "--attention", "mine.py:fixed", "--against", "relu", "mine.py:scaled"]) == 2
    said = capsys.readouterr()
    assert "6 jobs (3 pretraining, 3 on tasks)" in said.out
    assert "1 jobs cannot run:\n" in said.err
    assert said.err.count("mine.py:fixed cannot have relative positions") == 1
    assert "(detect on toy_coco, fixed, " in said.err
    assert main([*detecting, "--attention", "mine.py:scaled", "--against", "relu"]) == 0


def test_the_expected_time_counts_searched_jobs_and_devices() -> None:
    prediction = Prediction([])
    prediction.work = {"once": (4e13, 0.0), "searched": (6e13, 100.0)}
    # 40 / 2 + 8 / 2, and twice 60 / 2 + (8 + 100 * 0.02) / 2
    assert "about 1.6 min at 1 TFLOP/s (--speed)" in prediction.text(1.0, "--speed", 2, 2, {"searched": 2})
    assert prediction.text(None, "measure it", 0, 1, {}) == "expected time: unknown; measure it"
