"""Whether the jobs of a sweep can run, and how long they take, as `--dry-run` reports."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from transfer.core.errors import UsageError
from transfer.core.process import usable_cores
from transfer.core.settings import config_names
from transfer.engine.cost import remember_speed
from transfer.engine.device import device_name
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import TIERS, SweepFile, read_sweep
from transfer.sweep.__main__ import main
from transfer.sweep.cost_estimate import START_SECONDS, STEP_SECONDS, Devices, Prediction, measured_speed
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


def said_of(hours: list[float], *, gpus: int, times: int = 1, of_first: int = 1, **options: int) -> str:
    """Return what is said of jobs that take these hours on a GPU: a pretraining and a task, and those of a variant.

    Args:
        times: how often the first job counts.
        of_first: the GPUs of the first job.
    """
    prediction, steps = Prediction([]), 100
    prediction.jobs = jobs_of(read_sweep("bench", "smoke", tasks=["reid"]))
    for job, of_job in zip(prediction.jobs, hours, strict=True):
        prediction.work[job.name] = ((of_job * 3600 - START_SECONDS - steps * STEP_SECONDS) * 1e12, steps)
    first = prediction.jobs[0].name
    of_job = dict.fromkeys(prediction.work, 1) | {first: of_first}
    devices = Devices("GPU", gpus, 1.0, "--speed", options.pop("slots", len(hours)), of_job, **options)
    return prediction.text(devices, {first: times})


@pytest.mark.parametrize(
    ("gpus", "options", "gpu_time", "wall_time"),
    [
        (1, {}, "14.0 h", "14.0 h"),
        (2, {}, "14.0 h", "9.0 h"),  # 2 + 3 h beside 4 + 5 h
        (8, {}, "14.0 h", "9.0 h"),  # a task waits for its pretraining
        (8, {"slots": 1}, "14.0 h", "14.0 h"),
        (8, {"times": 6}, "24.0 h", "15.0 h"),  # the first job is of a search, whose jobs follow each other
        (8, {"times": 6, "of_first": 4}, "24.1 h", "9.0 h"),  # of a start all four are kept
        (1, {"shared_by": 2, "hours": [2, 2, 2, 2]}, "8.0 h", "8.0 h"),  # no more of it than one after the other
    ],
)
def test_the_expected_time_is_that_of_devices_and_by_the_clock(
    gpus: int, options: dict[str, Any], gpu_time: str, wall_time: str
) -> None:
    with_gpus = f"with {gpus} GPU{'s' * (gpus > 1)} at 1 TFLOP/s each (--speed)\n"
    expected = f"expected time: about {gpu_time} of GPU time, {wall_time} of wall time {with_gpus}"
    assert said_of(**{"hours": [2, 3, 4, 5], "gpus": gpus, **options}).startswith(expected)


def test_the_expected_time_of_steps_and_of_variants_adds_up() -> None:
    text = said_of([2, 3, 4, 5], gpus=8)
    rows = re.findall(r"^\| (step|variant) (.+?) +\| (.+?) +\| (.+?) +\|$", text, re.MULTILINE)
    assert rows == [
        ("step", "pretrain", "6.0 h", "4.0 h"),
        ("step", "reid", "8.0 h", "5.0 h"),
        ("variant", "tiny, relu, qk_norm", "5.0 h", "5.0 h"),
        ("variant", "tiny, softmax, qk_norm", "9.0 h", "9.0 h"),
    ]


def test_of_many_variants_the_last_are_one_row() -> None:
    jobs = jobs_of(read_sweep("pointwise_figure2", "smoke"))
    prediction = Prediction([])
    prediction.jobs, prediction.work = jobs, {job.name: (3.6e15, 0.0) for job in jobs}
    text = prediction.text(Devices("GPU", 1, 1.0, "--speed", 1, dict.fromkeys(prediction.work, 1)), {})
    hours = re.findall(r"^\| (?:variant .+?|.+ more) +\| (.+?) h ", text, re.MULTILINE)
    assert len(hours) == 8
    assert sum(map(float, hours)) == pytest.approx(len(jobs), abs=0.5)
    assert re.search(r"^\| 8 more +\|", text, re.MULTILINE)


def test_jobs_on_data_of_unknown_size_are_named() -> None:
    prediction = Prediction(jobs_of(read_sweep("claims_dino_large", None)))
    text = prediction.text(Devices("core", 2, 1.0, "--speed", 1, {}), {})
    assert text == "expected time: unknown\n  It lacks dino on cifar10_heldout: no `counts` of the data."


def test_a_dry_run_plans_for_the_gpus_that_are_named_and_says_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing was measured
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = ["bench", "--tier", "smoke", "--attention", "relu", "--tasks", "reid", "--dry-run"]
    form, said = r"expected time: (?:about|at least) (.+) of (?:GPU|core) time, (.+) of wall time with (.+) at (.+)", []
    for more in (["--gpus", "1"], ["--gpus", "8"], [], ["--gpus", "8", "--speed", "2"]):
        assert main([*command, *more]) == 0
        said += re.findall(form, capsys.readouterr().out)
    one, eight, here, given = said
    assert one[0] == one[1]
    assert eight[0] != eight[1]
    assert (one[2], eight[2], here[2].split()[1].rstrip("s")) == ("1 GPU", "8 GPUs", "core")
    assert eight[3].startswith("50 TFLOP/s each (assumed; ")
    assert here[3].startswith("0.02 TFLOP/s each (assumed; `python -m transfer.doctor speed ")
    assert given[3] == "2 TFLOP/s each (--speed)"


def test_a_measured_processor_is_shared_by_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert measured_speed()[1].startswith("assumed; ")
    remember_speed(device_name(torch.device("cpu")), "vit", 1000.0, 4.0)
    speed, source = measured_speed()
    assert speed == pytest.approx(12.0 / usable_cores())
    assert source.startswith("measured by `transfer.doctor speed` with vit on this ")
