import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from tests.support import context
from transfer.core.errors import MachineError, UserError
from transfer.core.process import ALONE, Ranks, usable_cores
from transfer.engine import device
from transfer.engine.context import Cost, Stopped, auto_workers, peak_mib
from transfer.engine.extract import extract

CPU = torch.device("cpu")


def test_ranks_on_one_machine_share_its_loader_processes() -> None:
    gpu = torch.device("cuda")
    assert auto_workers(gpu, Ranks(0, 8, 0, usable_cores())) == 1
    assert auto_workers(gpu, ALONE) == min(usable_cores(), 16)


@pytest.mark.parametrize(
    ("cuda", "driver", "said"),
    [
        (None, "", "built for CPUs alone, sees no GPU, .* no driver: install a build of torch for CUDA"),
        ("13.0", "", "built for CUDA 13.0, sees no GPU, .* no driver: install NVIDIA's driver"),
        (
            "13.0",
            "NVRM version: Kernel Module  550.54.15  Tue",
            r".* sees no GPU \(\w+: .* driver 550.54.15: see nvidia-smi",
        ),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_said(
    cuda: str | None, driver: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(device, "DRIVER", tmp_path / "version")
    if driver:
        (tmp_path / "version").write_text(driver)
    assert device.choose_device("auto", ALONE) == CPU
    with pytest.raises(UserError, match=f"^--device cuda: torch {re.escape(torch.__version__)}, {said}") as raised:
        device.choose_device("cuda", ALONE)
    assert "\n" not in str(raised.value)


def test_a_gpu_that_torch_has_no_code_for_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = RuntimeError(
        "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might"
    )
    monkeypatch.setattr(torch, "ones", Mock(side_effect=said))
    for name, value in {"is_available": True, "device_count": 1, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    with pytest.raises(MachineError, match="no code for this GPU: install one that has, or use --device cpu"):
        device.choose_device("auto", ALONE)


def test_the_first_signal_asks_and_the_second_leaves() -> None:
    here, before = context(), signal.getsignal(signal.SIGTERM)
    with here.signals():
        here.check_stop()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            here.check_stop()
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) == before


COMPUTES = """
import hashlib, os, signal, threading
from tests.support import context

with context().signals():
    for seconds in (0.1, 1.0):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # one long operation, in which no handler of Python runs
"""


def test_signals_are_answered_within_an_operation() -> None:
    done = subprocess.run([sys.executable, "-c", COMPUTES], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (
        Stopped.exit_status,
        "stopping after this step (signal again to stop now)\n",
    )


def test_rates_are_of_what_was_trained() -> None:
    assert Cost().summary()["images_per_second"] is None
    rates = Cost(train_seconds=4.0, wait_seconds=1.0, images=100).summary()
    assert (rates["images_per_second"], rates["data_wait_share"]) == (25.0, 0.25)
    assert peak_mib(CPU) > 10


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 0.02)])
def test_features_are_fp32_from_the_precision_of_scoring_not_of_training(precision: str, tolerance: float) -> None:
    images, weight = torch.rand(4, 3), torch.rand(3, 8)
    here = context(precision="bf16", eval_precision=precision)
    rows = extract(lambda part: part @ weight, images, here, batch_size=2, label="x")  # type: ignore[arg-type]
    assert rows.dtype == torch.float32
    assert torch.allclose(rows, images @ weight, rtol=tolerance)


def test_a_signal_ends_the_extraction() -> None:
    here = context(stop_signal=15)
    with pytest.raises(Stopped):
        extract(lambda images: images, torch.rand(11, 3), here, batch_size=4, label="x")
