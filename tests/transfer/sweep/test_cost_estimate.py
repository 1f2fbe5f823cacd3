"""Whether the jobs of a sweep can run, how long they take, and epochs of equal FLOPs, against counts by hand."""

import re
from itertools import product
from pathlib import Path

import pytest
import torch

from tests.transfer.data.layouts import rows, write_parquet
from transfer.core.errors import UsageError
from transfer.core.process import usable_cores
from transfer.core.settings import config_names, write_yaml
from transfer.engine.cost import remember_speed
from transfer.engine.device import device_name
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import TIERS, SweepFile, read_sweep
from transfer.sweep import cost_estimate
from transfer.sweep.__main__ import main
from transfer.sweep.copies import planned_copies
from transfer.sweep.cost_estimate import Devices, WorkEstimate, measured_speed
from transfer.sweep.equal_flops import with_equal_flops
from transfer.sweep.inputs import JobData, missing_inputs, parsed_command
from transfer.sweep.lr_search import Searches

Captured = pytest.CaptureFixture[str]

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
    assert missing_inputs(jobs, JobData(), opens=False)  # raises for a wrong option
    assert WorkEstimate(jobs, builds=True).failed == {}


def test_jobs_that_lack_packages_are_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("tasks.detect.mmlab.MMLAB_PACKAGES", ("mmlab_that_is_missing",))
    assert main(["demo", "--tasks", "detect", "--dry-run"]) == 1
    said = capsys.readouterr()
    assert "detect: 2 x detect on toy_coco" in said.out
    error = said.err.partition("error: ")[2]
    assert re.fullmatch(r"not run: detect on [^:]+: detection needs mmlab_that_is_missing: pip install .+\n", error)


@pytest.fixture
def detecting(here: Path) -> list[str]:
    """A sweep of pretraining and detection with relative positions over users' attentions."""
    Path("mine.py").write_text(USERS)
    Path("mine.yaml").write_text(
        "about: mine\nvary: pretrain\nsteps:\n"
        "  pretrain: {pretrain: cifar_deit, backbone: tiny, dataset: toy_digits, options: {smoke: true}}\n"
        "  detect: {run: detect, after: pretrain, dataset: toy_coco, options: {smoke: true, relative: true}}\n"
    )
    return ["mine.yaml", *PLANNED]


@pytest.mark.nightly
def test_what_cannot_be_built_is_reported_once_with_its_jobs(detecting: list[str], capsys: Captured) -> None:
    assert main([*detecting, "--attention", "mine.py:fixed", "--against", "relu", "mine.py:scaled"]) == 2
    said = capsys.readouterr()
    assert "6 jobs (3 pretraining, 3 on tasks)" in said.out
    assert "1 jobs cannot run:\n" in said.err
    assert said.err.count("mine.py:fixed cannot have relative positions") == 1
    assert "(detect on toy_coco, fixed, " in said.err
    assert main([*detecting, "--attention", "mine.py:scaled", "--against", "relu"]) == 0


def test_the_expected_time_of_steps_and_of_variants_adds_up() -> None:
    estimate, steps = WorkEstimate([]), 1000
    estimate.jobs = jobs_of(read_sweep("bench", "smoke", tasks=["reid"]))
    for job, hours in zip(estimate.jobs, [2, 3, 4, 5], strict=True):
        seconds = hours * 3600 - cost_estimate.START_SECONDS - steps * cost_estimate.STEP_SECONDS
        estimate.work[job.name] = (seconds * 1e12, steps)
    devices = Devices("GPU", 8, 1.0, "--speed")
    text = estimate.text(devices, {})
    said = "expected time: about 14.0 h of GPU time, 1.8 h with 8 GPUs always busy at 1 TFLOP/s each (--speed)\n"
    assert text.startswith(said)
    assert re.findall(r"^\| (step|variant) (.+?) +\| (.+?) +\|$", text, re.MULTILINE) == [
        ("step", "pretrain", "6.0 h"),
        ("step", "reid", "8.0 h"),
        ("variant", "tiny, relu, qk_norm", "5.0 h"),
        ("variant", "tiny, softmax, qk_norm", "9.0 h"),
    ]
    assert estimate.text(devices, {estimate.jobs[0].name: 6}).startswith("expected time: about 24.0 h ")


def test_data_of_unknown_size_is_counted_where_it_is(tmp_path: Path) -> None:
    jobs = jobs_of(read_sweep("claims_dino_large", None))
    text = WorkEstimate(jobs, JobData(("--data", str(tmp_path)))).text(Devices("core", 2, 1.0, "--speed"), {})
    assert text == "expected time: unknown\n  It lacks dino on cifar10_heldout: no `counts` of the data."
    write_parquet(tmp_path / "cifar10" / "train.parquet", rows(train=20))
    write_parquet(tmp_path / "cifar10" / "test.parquet", rows(train=5, key=100))
    planned_copies(jobs, data := JobData(("--data", str(tmp_path))), [tmp_path])
    work = WorkEstimate(jobs, data).work
    assert len(data.opened) == 1, "copies and time are planned with the same data"
    assert {steps for _, steps in work.values()} == {4 * 54 / 128}  # a tenth of the 60 images is held out
    shares = WorkEstimate(jobs_of(read_sweep("claims_labels", None)), JobData(("--data", str(tmp_path)))).work
    steps = {round(steps, 6) for _, steps in shares.values()}
    assert steps == {round(5 * share * 54 / 128, 6) for share in (0.5, 0.25, 0.1)}


def test_a_subset_takes_its_part_of_the_counts() -> None:
    subsets = ["pretrain.subset=5", "reid.subset=75", "detect.subset=200"]
    sweeps = [read_sweep("bench", "full", settings, tasks=["reid", "detect"]) for settings in (subsets, ())]
    subset, whole = (WorkEstimate(jobs_of(sweep)).work for sweep in sweeps)
    pairs = zip(subset.items(), whole.values(), strict=True)
    shares = {name.partition("-")[0]: steps / of_whole for (name, (_, steps)), (_, of_whole) in pairs}
    assert shares == pytest.approx({"pretrain": 5000 / 1281167, "reid": 75 / 1041, "detect": 200 / 118287})


def test_a_dry_run_plans_for_named_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # nothing was measured
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    command = ["bench", "--tier", "smoke", "--attention", "relu", "--tasks", "reid", "--dry-run"]
    form, said = r"expected time: (?:about|at least) .+ of (GPU|core) time, .+ with (.+) always busy at (.+)", []
    for more in (["--gpus", "1"], ["--gpus", "8"], [], ["--gpus", "8", "--speed", "2"]):
        assert main([*command, *more]) == 0
        said += re.findall(form, capsys.readouterr().out)
    one, eight, here, given = said
    assert [devices[0] for devices in said] == ["GPU", "GPU", "core", "GPU"]
    assert (one[1], eight[1]) == ("1 GPU", "8 GPUs")
    assert eight[2].startswith("50 TFLOP/s each (assumed; ")
    assert re.match(r"0\.[01]5 TFLOP/s each \(assumed; `python -m transfer\.doctor speed ", here[2])
    assert given[2] == "2 TFLOP/s each (--speed)"


def test_a_measured_processor_is_shared_by_its_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert measured_speed()[1].startswith("assumed; ")
    remember_speed(device_name(torch.device("cpu")), "vit", 1000.0, 4.0)
    speed, source = measured_speed()
    assert speed == pytest.approx(12.0 / usable_cores())
    assert source.startswith("measured by `transfer.doctor speed` with vit on this ")


STEM = """
from torch import nn

def Wide(dim, patch):
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, dim, patch, patch))

def Broken(dim, patch):
    raise ValueError("no such width")
"""


@pytest.fixture
def stem(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(STEM)
    return f"{tmp_path}/mine.py:Wide"


def pretraining(sweep: SweepFile) -> list[SweepJob]:
    return [job for job in expand(sweep) if job.step.kind == "pretrain"]


def by_hand(size: int, *, wide: bool) -> int:
    """Operations of `tiny`: 2 blocks 64 wide, patches of 16 pixels and a class token."""
    patches, dim = (size // 16) ** 2, 64
    tokens = patches + 1
    blocks = 2 * (tokens * dim * dim * (4 + 8) + 2 * tokens * tokens * dim)
    stem = size * size * 27 * 8 + patches * 8 * 256 * dim if wide else patches * 3 * 256 * dim
    return 2 * (blocks + stem)


@pytest.mark.parametrize(("recipe", "given"), [("cifar_deit", {}), ("dino", {"warmup_teacher_temp_epochs": 20})])
def test_variants_train_with_equal_operations(tmp_path: Path, stem: str, recipe: str, given: dict[str, int]) -> None:
    step = {"pretrain": recipe, "backbone": "tiny", "dataset": "toy_digits", "seeds": [0, 1]}
    step["options"] = {"epochs": 40, **given}
    (tmp_path / "mine.yaml").write_text(write_yaml({"vary": "pretrain", "steps": {"pretrain": step}}))
    plain = read_sweep(str(tmp_path / "mine.yaml"), None).comparing([{"stem": stem}, {"stem": "patchify"}])
    wide, same, usual, again = pretraining(with_equal_flops(plain))
    assert [usual, again] == pretraining(plain)[2:], "finished jobs of the reference are found"
    assert wide.options == same.options
    options, reference = (parsed_command(job).options for job in (wide, usual))
    of_variant = []
    for one, is_wide in ((options, True), (reference, False)):
        image = 3 * by_hand(one.size, wide=is_wide)
        if recipe == "dino":
            image = (2 * 3 + 2) * by_hand(one.size, wide=is_wide)
            image += 3 * one.local_crops * by_hand(one.local_size, wide=is_wide)
        of_variant.append(one.epochs * image)
    assert of_variant[0] == pytest.approx(of_variant[1], rel=0.01)
    assert options.epochs < 0.8 * reference.epochs == 32.0
    share = options.epochs / 40
    assert options.warmup_epochs == pytest.approx(share * reference.warmup_epochs, rel=1e-3)
    assert reference.warmup_epochs > 0
    for name, epochs in given.items():
        assert getattr(options, name) == round(share * epochs), "whole epochs"


def test_a_schedule_that_is_held_per_epoch_moves_by_step_in_all_variants() -> None:
    sweep = read_sweep("bench", "full", seeds=[0], tasks=["reid"]).comparing([{"stem": "conv"}, {}, {"stem": "xiao"}])
    options = [parsed_command(job).options for job in pretraining(with_equal_flops(sweep))]
    assert [one.schedule for one in options] == ["step"] * 3
    assert [one.warmup_epochs / one.epochs for one in options] == pytest.approx([5 / 300] * 3, rel=1e-3)
    assert options[1].epochs == 300
    assert 200 < options[0].epochs < 290


def test_a_dry_run_prints_the_epochs_of_each_variant(stem: str, capsys: Captured) -> None:
    words = ["bench", "--tier", "smoke", "--stem", stem, "--against", "patchify", "--equal", "flops", "--tasks", "reid"]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    epochs = float(f"{12 * by_hand(32, wide=False) / by_hand(32, wide=True):.4g}")
    assert f"epochs of equal FLOPs in pretraining: stem={stem} {epochs:g}, stem=patchify 12" in said
    assert said.count(f" --epochs {epochs} ") == 1


def test_what_cannot_be_made_equal_is_one_line_before_anything_runs(tmp_path: Path, stem: str) -> None:
    def refused(message: str, *settings: str, stem: str = stem) -> None:
        sweep = read_sweep("bench", "smoke", settings, tasks=["reid"])
        with pytest.raises(UsageError, match=message) as error:
            with_equal_flops(sweep.comparing([{"stem": stem}, {"stem": "conv"}]))
        assert "\n" not in str(error.value)

    refused("must have one backbone, size and schedule", "pretrain.epochs=[2, 3]")
    refused("must have one backbone, size and schedule", "pretrain.backbone=[tiny, cifar_ti4]")
    refused("the operations of .* cannot be counted: .*no such width", stem=stem.replace("Wide", "Broken"))
    steps = {"reid": {"run": "reid", "backbone": "tiny", "dataset": "toy_market", "options": {"smoke": True}}}
    (tmp_path / "mine.yaml").write_text(write_yaml({"vary": "reid", "steps": steps}))
    sweep = read_sweep(str(tmp_path / "mine.yaml"), None).comparing([{"stem": stem}, {}])
    with pytest.raises(UsageError, match="step reid of mine is not a pretraining"):
        with_equal_flops(sweep)
