"""`check_backbone`: every planted fault is found by its check, sound models pass, in Python, pytest and the doctor."""

import unittest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backbones.spec import resolve
from tests.transfer.testing import faulty
from transfer.core.errors import UsageError, UserError
from transfer.core.settings import config_names
from transfer.doctor.__main__ import main
from transfer.testing import CheckFailed, Report, backbone_checks, check_backbone

FILE = Path(faulty.__file__)
CORE = "class Part:\n    def __init__"

# Planted fault -> the checks that find it, and a part of the reason.
STEMS = {
    "HardCodedGrid": ({"builds"}, "invalid for input of size"),
    "DropsGradient": ({"gradients_reach_parameters"}, "conv.weight"),
    "ViewOfNonContiguous": ({"memory_formats"}, "view size is not compatible"),
    "BatchNormInEval": ({"batch_independence"}, "each alone"),
    "RandomInEval": ({"eval_is_deterministic"}, "twice in evaluation mode"),
    "WritesIntoInput": ({"input_is_kept"}, "written to"),
    "TransposedGrid": ({"token_grid"}, "changes most around"),
    "SharedParameters": ({"own_parameters"}, "conv.bias"),
    "SharedByAllModels": ({"own_parameters"}, "gain"),
    "CountsInEval": ({"eval_keeps_state"}, "passes"),
    "ForgetsBuffer": ({"state_dict_round_trip"}, "another seed"),
    "OtherInTraining": ({"train_equals_eval"}, "training mode without noise"),
    "RefusesBf16": ({"bf16_autocast"}, "RuntimeError"),
    "IgnoresSeed": ({"other_seed"}, "same seed"),
    **dict.fromkeys(
        ("TensorAttribute", "ArangeOnCpu", "GoesToCpu", "GradientOnCpu"), ({"another_device"}, "faulty.py at line ")
    ),
}
MODELS = {
    "Squeezes": ({"single_image"}, "[1, 16]"),
    "UnusedLayer": ({"gradients_reach_parameters"}, "spare.weight"),
    "FixedSize": ({"other_sizes", "one_model_all_sizes"}, "48 x 80"),
}


def failures(report: Report) -> dict[str, str]:
    """Return the reasons of the failures by the name of the check."""
    return {result.name: result.reason for result in report.failed}


@pytest.mark.parametrize("fault", [*STEMS, *MODELS])
def test_finds_the_fault_of_a_stem_or_model(fault: str) -> None:
    checks, reason = (STEMS | MODELS)[fault]
    options = {"stem": f"{FILE}:{fault}"} if fault in STEMS else {"size": 64}
    report = check_backbone("tiny" if fault in STEMS else getattr(faulty, fault), only=checks, **options)
    found = failures(report)
    assert found.keys() == checks, report
    assert any(reason in found[name] for name in checks), report
    assert all(result.hint for result in report.failed)


@pytest.mark.parametrize("factory", [faulty.Sound, faulty.Sound(), lambda: faulty.Sound(), f"{FILE}:Sound"], ids=type)
def test_a_sound_model_passes_however_it_is_given(factory: object) -> None:
    report = check_backbone(factory, size=64)
    assert report.ok, report
    skipped = {result.name for result in report.results if result.state == "skipped"}
    assert skipped == {"maps", "token_grid"} | ({"other_seed"} if isinstance(factory, nn.Module) else set())


def test_what_is_decided_by_values_is_not_checked_on_another_device() -> None:
    (result,) = check_backbone("tiny", stem=f"{FILE}:AsksForValues", only=["another_device"]).results
    assert (result.state, "not checked" in result.reason) == ("skipped", True), result


def test_a_live_module_and_the_process_stay_as_they_are() -> None:
    module = faulty.Sound().train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    check_backbone(module, size=64)
    assert torch.equal(state, torch.get_rng_state())
    assert module.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_what_does_not_build_says_so_once() -> None:
    report = check_backbone(faulty.Fails, size=64)
    assert failures(report).keys() == {"builds"}
    builds, *others = report.results
    assert "out of ideas" in builds.reason
    assert all(result.reason == "the model does not build" for result in others)
    with pytest.raises(CheckFailed, match=r"(?s)1 of 20 checks failed.*out of ideas.*hint: "):
        report.raise_if_failed()


def test_a_parameter_of_pytest_fails_with_reason_and_hint() -> None:
    checks = {check.__name__: check for check in backbone_checks(faulty.Squeezes, size=64)}
    checks["builds"]()
    with pytest.raises(CheckFailed, match=r"(?s)single_image: images \[1, 3, 64, 64\] give .*\[16\].*hint: name"):
        checks["single_image"]()
    with pytest.raises(unittest.SkipTest, match="pooled features only"):
        checks["maps"]()


def test_wrong_names_are_told_before_anything_is_built() -> None:
    with pytest.raises(UsageError, match="single_image"):
        check_backbone("tiny", only=["single_imag"])
    with pytest.raises(UsageError, match="no check to run"):
        check_backbone("tiny", only=["maps"], skip=["maps"])
    with pytest.raises(UserError, match="missing 2 required positional arguments: 'dim' and 'patch'"):
        check_backbone(faulty.SoundStem)
    with pytest.raises(UsageError, match=r"SoundStem needs dim, patch.*--stem"):
        check_backbone(f"{FILE}:SoundStem")


UNFIT = [
    ("stem", "def Part(dim): ...", "images [B, 3, H, W] to maps [B, dim, H / patch, W / patch]; got (dim)"),
    ("attention", "class Part:\n    def __init__(self, dim): ...\n    def forward(self, x): ...", "and map tokens"),
    ("attention", f"{CORE}(self, dim, heads): ...\n    def forward(self, q, k, v): ...", "got (dim, heads)"),
    ("attention", f"{CORE}(self, heads, head_dim): ...\n    def forward(self, q, k): ...", "got forward(self, q, k)"),
    ("attention", "def Part(q, k): ...", "(q, k, v) and map q, k, v [B, heads, N, head_dim]"),
    ("attention", "def Part(q, k, v): return v[..., :1]", "got [2, 2, 17, 1] for [2, 2, 17, 32]"),
    ("ffn", "from torch import nn\ndef Part(dim, hidden): return nn.Linear(dim, 1)", "got [2, 17, 1] for"),
]


@pytest.mark.parametrize(("part", "code", "said"), UNFIT)
def test_a_part_that_does_not_fit_its_contract(part: str, code: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    (result,) = check_backbone("tiny", only=["builds"], **{part: f"{tmp_path}/mine.py:Part"}).results
    assert result.reason.startswith(f"{tmp_path}/mine.py:Part (line ")
    assert said in result.reason


def test_the_doctor_checks_a_backbone(capsys: pytest.CaptureFixture[str]) -> None:
    stem = ["--stem", f"{FILE}:RandomInEval", "--only", "builds", "eval_is_deterministic"]
    assert main(["backbone", "tiny", *stem]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  passed  builds: 64 x 64 pixels")
    assert lines[1].startswith("  FAILED  eval_is_deterministic: the same images twice")
    assert lines[2].strip().startswith("hint: ")
    assert lines[3] == "tiny: 1 passed, 1 failed"
    assert main(["backbone", f"{FILE}:Sound", "--size", "64", "--only", "builds"]) == 0
    assert capsys.readouterr().out.endswith("Sound: 1 passed\n")


TIMM = ("deit_tiny_distilled_patch16_224", "pvt_v2_b0", "convnextv2_atto", "resnet10t")
"""Models of timm of four families, those that are checked soonest."""


def different_backbones() -> list[str]:
    """Return one of the shipped backbones for each combination of parts, whatever their sizes."""
    by_parts: dict[tuple[str | bool | None, ...], str] = {}
    for name in config_names("backbones"):
        spec = resolve(name, weights="random")
        by_parts.setdefault((spec.stem, spec.attention, spec.ffn, spec.arch.startswith("volo")), name)
    return [*by_parts.values()]


@pytest.mark.nightly
def test_every_shipped_configuration_passes() -> None:
    small: dict[str, Any] = {name: {} if "volo" in name else {"depth": 2} for name in different_backbones()}
    assert len(small) >= 10
    reports = [check_backbone(name, **options, size=32) for name, options in small.items()]
    assert not [str(report) for report in reports if not report.ok]


@pytest.mark.nightly
def test_models_of_timm_pass() -> None:
    reports = [check_backbone(name, size=64, divisor=32) for name in TIMM]
    assert not [str(report) for report in reports if not report.ok]
