"""Epochs of equal FLOPs in pretraining, against operations counted by hand, and what is refused."""

from pathlib import Path

import pytest

from transfer.core.errors import UsageError
from transfer.core.settings import write_yaml
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.sweep_file import SweepFile, read_sweep
from transfer.sweep.__main__ import main
from transfer.sweep.cost_estimate import parsed_command
from transfer.sweep.equal_flops import with_equal_flops

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
def test_all_variants_train_with_the_operations_of_the_first_of_against(
    tmp_path: Path, stem: str, recipe: str, given: dict[str, int]
) -> None:
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


def test_a_dry_run_prints_the_epochs_of_each_variant(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
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
