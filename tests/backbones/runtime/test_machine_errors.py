"""Errors of the machine by the texts of torch 2.15, and what the message names and advises in each situation."""

import errno
import resource
from typing import Any

import pytest
import torch

from backbones.errors import MachineError, UsageError, UserError
from backbones.runtime.device import choose_device
from backbones.runtime.machine_errors import Situation, in_one_line, machine_error
from backbones.runtime.ranks import ALONE
from tests.faults.trial import no_hang

CPU_FULL = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "393216 bytes. Error code 12 (Cannot allocate memory)"
)
GPU_FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB")
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading"
)
TRAINED: dict[str, Any] = {"batch": 12, "grad_accum_steps": 2, "size": [256, 128], "checkpoint": False, "eval_batch": 8}


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (CPU_FULL, "out of memory on this machine: "),
        (MemoryError(), "out of memory on this machine: "),
        (RuntimeError("std::bad_alloc"), "out of memory on this machine: "),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory on this machine: "),
        (ImportError("libtorch_cuda.so: failed to map segment from shared object"), "out of memory on this machine: "),
        (GPU_FULL, "out of memory on the GPU: "),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), "out of memory on the GPU: "),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"), "out of memory on the GPU: "),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            "a loader process was killed, in most cases because the machine's memory ran out: set fewer --workers",
        ),
        (RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"), "a loader process was killed"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit."),
            "/dev/shm",
        ),
        (RuntimeError("unable to write to file </torch_7_8_0>: No space left on device (28)"), "/dev/shm"),
        (
            ImportError("libGL.so.1: cannot open shared object file: No such file or directory"),
            "the system library libGL.so.1 is missing: apt-get install libgl1, or pip install opencv-python-headless",
        ),
        (
            ImportError("libodd.so.2: cannot open shared object file: No such file or directory"),
            "the system library libodd.so.2 is missing: install the package of the system that has it",
        ),
        (RuntimeError(TOO_OLD), "the NVIDIA driver is too old for this build of torch: update the driver"),
        (
            RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors"),
            "this build of torch has no code for this GPU: install a build",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_one_line(error: Exception, start: str) -> None:
    reported = machine_error(error)
    assert type(reported) is MachineError
    assert str(reported).startswith(start)
    assert "\n" not in str(reported)
    assert reported.exit_status == 1


@pytest.mark.parametrize(
    "error",
    [RuntimeError("shape mismatch"), ValueError("can't allocate memory"), OSError(errno.ENOSPC, "full"),
     UserError("DataLoader worker (pid 7) is killed by signal: Killed."), KeyError("libGL.so.1")],
)  # fmt: skip
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    assert machine_error(error) is None
    with pytest.raises(type(error)) as raised, in_one_line():
        raise error
    assert raised.value is error


def test_the_cause_of_an_error_counts() -> None:
    wrapped = RuntimeError("the backend failed")
    wrapped.__cause__ = GPU_FULL
    assert "out of memory on the GPU" in str(machine_error(wrapped))
    with pytest.raises(MachineError) as raised, in_one_line():
        raise wrapped
    assert raised.value.__cause__ is wrapped


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"training": True},
            "out of memory on the GPU in training with --batch 12, --grad-accum-steps 2, --size 256 128, peak 4096 "
            "MiB: set --checkpoint, which computes activations again in the backward pass, or set --grad-accum-steps "
            "3, or more, or a smaller --size; the last saved state is kept, and the same command goes on from it",
        ),
        (
            {"training": True, "options": {"num_identities": 4, "num_instances": 8, "grad_accum_steps": 1, "size": 9}},
            "out of memory on the GPU in training with --num-identities 4, --num-instances 8, --grad-accum-steps 1, "
            "--size 9, peak 4096 MiB: set --grad-accum-steps 2, or more, or a smaller --size; the last saved state is "
            "kept, and the same command goes on from it",
        ),
        (
            {"state_saved": False},
            "out of memory on the GPU in evaluation with --eval-batch 8, --size 256 128, peak 4096 MiB: "
            "set --eval-batch 4",
        ),
        (
            {"training": True, "state_saved": False, "options": {"batch": 2, "grad_accum_steps": 2}},
            "out of memory on the GPU in training with --batch 2, --grad-accum-steps 2, peak 4096 MiB: take a machine "
            "with more memory",
        ),
    ],
)
def test_the_message_names_the_batch_and_what_to_set(given: dict[str, Any], text: str) -> None:
    situation = Situation(**{"options": TRAINED, "peak_mib": 4096.4, "state_saved": True, **given})
    assert str(machine_error(GPU_FULL, situation)) == text


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_driver_too_old_is_no_reason_to_train_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(MachineError, match=r"found version 11040.*") as raised:
        choose_device(name, ALONE)
    assert "--device cpu" in str(raised.value)
    assert choose_device("cpu", ALONE).type == "cpu"


def test_usage_errors_keep_their_exit_status() -> None:
    with pytest.raises(UsageError), in_one_line():
        raise UsageError("wrong") from MemoryError()


def test_a_limit_of_the_shell_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (3 * 2**30, 3 * 2**30))
    reported = machine_error(MemoryError())
    assert str(reported) == (
        "out of memory on this machine: raise the limit of the address space, 3.0 GiB here (`ulimit -v unlimited`)"
    )


def test_an_error_of_any_length_is_searched_to_its_end() -> None:
    """A name in a user's file may have a million characters, and the error of a path that is too long quotes it."""
    with no_hang():
        assert machine_error(OSError(36, "File name too long", "x" * 1_000_000)) is None
