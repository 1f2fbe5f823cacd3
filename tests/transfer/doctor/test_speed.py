"""`python -m transfer.doctor speed`: it measures by the real training, and its advice follows from the rates."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transfer.doctor.__main__ import main
from transfer.doctor.speed_advice import Rates, advice
from transfer.doctor.speed_memory import recall_speed, remember_speed
from transfer.sweep.cost_estimate import _sustained

RATES = Rates(
    decoding={"pil": 1000.0, "fast": 1300.0},
    views={"pil": 200.0, "fast": 400.0},
    feed={"pil": 1600.0, "fast": 3200.0},
    copy=20_000.0,
    model=2500.0,
    step=1500.0,
    waiting=0.4,
    workers=8,
)


def said(rates: Rates, image_ops: str = "pil", compile: bool = False) -> str:
    command: Any = SimpleNamespace(options=SimpleNamespace(image_ops=image_ops, compile=compile))
    return "\n".join(advice(rates, 1_281_167, 300, command))


def test_a_slow_feed_is_named_with_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transfer.doctor.speed_advice.usable_cores", lambda: 16)
    text = said(RATES)
    assert "slowest: the loader; it makes 0.64 of what the model takes" in text
    assert "set: --image-ops fast, 2.0 times as many images" in text
    assert "set: --workers 16, one for each core" in text
    assert "decoding alone" not in text
    assert "300 epochs of 1,281,167 images at this rate: 71.2 hours" in text
    assert "decoding alone allows 1,300 images/s" in said(replace(RATES, workers=1))


def test_a_slow_model_is_named() -> None:
    fast = replace(RATES, model=1000.0)
    assert "slowest: the model; the loader makes 1.6 times what it takes\nset: --compile" in said(fast)
    assert "set:" not in said(fast, compile=True)
    assert "set:" not in said(replace(fast, copy=None))
    assert "set: --workers 0; " in said(replace(fast, copy=None, model=19.0))
    assert "set:" not in said(replace(fast, copy=None, model=19.0, workers=0))


def test_a_slow_copy_is_named() -> None:
    assert "slowest: copying to the GPU" in said(replace(RATES, copy=2000.0))


@pytest.mark.parametrize("recipe", ["cifar_deit", "dino"])
def test_it_measures_and_sweeps_know_it(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    words = ["speed", "--backbone", "tiny", "--recipe", recipe, "--batch", "4", "--workers", "0", "--device", "cpu"]
    assert main([*words, "--seconds", "0.05"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"tiny by {recipe} on ")
    assert ("pil " in out, "fast " in out) == (True, True)
    assert "whole step" in out
    assert "slowest: " in out
    speed, source = _sustained()
    assert ("`transfer.doctor speed` with tiny" in source) == (recipe == "cifar_deit")
    assert speed > 0
    assert not [path for path in tmp_path.iterdir() if path.name != "vit-transfer"]


def test_without_a_measured_speed_the_assumed_one_is_of_the_precision_of_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("backbones.runtime.precision.cpu_has_bf16", lambda: False)
    speed, source = _sustained()
    assert "30% of a matrix product in fp32" in source
    assert 0.001 < speed < 100


def test_a_measured_speed_counts_three_forward_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert recall_speed("GPU") is None
    remember_speed("GPU", "vit", 1000.0, 4.6)
    measured = recall_speed("GPU")
    assert measured is not None
    assert (measured.device, measured.backbone, measured.tflops) == ("GPU", "vit", pytest.approx(13.8))
    assert recall_speed("other") is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--backbone is missing"),
        (["--backbone", "tinny"], "unknown backbone 'tinny'; did you mean 'tiny'"),
        (["--backbone", "tiny", "--recipe", "diet"], "deit"),
        (["--backbone", "tiny", "--seconds", "0"], "--seconds 0.0: must be above 0"),
        (["--backbone", "tiny", "--workers", "-1"], "--workers -1: must be at least 0"),
        (["--backbone", "tiny", "--dataset", "imagenet1k", "--data", "nowhere"], "nowhere"),
    ],
)
def test_bad_words(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speed", *words]) in (1, 2)
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
