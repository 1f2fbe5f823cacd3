"""`python -m transfer.doctor speed`: it measures by the real training, and sweeps know the speed."""

from pathlib import Path

import pytest

from transfer.doctor.__main__ import main
from transfer.sweep.cost_estimate import measured_speed


@pytest.mark.parametrize("recipe", ["cifar_deit", pytest.param("dino", marks=pytest.mark.nightly)])
def test_it_measures_and_sweeps_know_it(recipe: str, here: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here))
    words = f"speed --backbone tiny --recipe {recipe} --batch-size 4 --workers 0 --device cpu --seconds 0.05"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"tiny by {recipe} on ")
    assert "whole step" in out
    _, source = measured_speed()
    assert ("`transfer.doctor speed` with tiny" in source) == (recipe == "cifar_deit")
    assert not [path for path in here.iterdir() if path.name != "vit-transfer"]
