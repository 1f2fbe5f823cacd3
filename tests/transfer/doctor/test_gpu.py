"""`python -m transfer.doctor gpu`: a part that fails is a row, and the next ones run. With a GPU: `tests/gpu`."""

import pytest
import torch

from transfer.doctor import gpu
from transfer.doctor.__main__ import main


def test_without_a_gpu_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: --device cuda: ")
    assert printed.err.count("\n") == 1


def test_a_part_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "choose_device", lambda name, ranks: torch.device("cpu"))
    monkeypatch.setattr(gpu, "HEAD_DIMS", (32,))  # float16 is slow on CPUs
    assert main(["gpu"]) == 1
    rows = dict(line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:])
    assert rows["software"].startswith("FAILED: ")
    assert rows["kernels"].startswith("differ from float64 by fp32 ")
