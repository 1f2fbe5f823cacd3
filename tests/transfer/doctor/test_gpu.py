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


@pytest.mark.parametrize(
    ("name", "peak"),
    [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100 80GB PCIe", 312e12), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None)],
)
def test_a_card_has_the_peak_of_its_datasheet(name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert gpu.card_peak(torch.device("cuda")) == peak
