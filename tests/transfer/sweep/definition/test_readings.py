"""Both readings of a printed rate: what a sweep runs, and what is matched."""

from pathlib import Path

import pytest

from backbones.errors import UsageError
from transfer.sweep.definition.grid import expand
from transfer.sweep.definition.sweep_file import read_sweep


def test_a_file_says_which_readings(tmp_path: Path) -> None:
    text = """
paper: scaled_relu
table: "3"
readings: both
steps:
  deit: {pretrain: deit, backbone: deit_s16, dataset: imagenet1k, seeds: [0]}
"""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert len(expand(read_sweep(str(path), "full"))) == 16
    assert len(expand(read_sweep(str(path), "full", readings="one"))) == 8
    path.write_text(text.replace("both", "boht"))
    with pytest.raises(UsageError, match="`readings` is one or both, not 'boht'; did you mean 'both'"):
        read_sweep(str(path), "full")
