"""The device of a rank, and whether torch can compute on a GPU."""

import platform
import warnings
from pathlib import Path

import torch

from backbones.errors import UserError
from backbones.runtime.machine_errors import machine_error
from backbones.runtime.ranks import Ranks


def choose_device(name: str, ranks: Ranks) -> torch.device:
    """Return the device that `auto`, `cpu` or `cuda` means; each local rank has a GPU of its own.

    Raises:
        UserError: cuda was asked for and there is none, or fewer GPUs than local ranks.
        MachineError: torch cannot use the GPU that is there.
    """
    if name == "cpu" or (name == "auto" and not _gpu_available()):
        return torch.device("cpu")
    if not _gpu_available():
        raise UserError("--device cuda: torch sees no GPU; `python -m transfer.doctor` tells why, or use --device cpu")
    if ranks.local_rank >= torch.cuda.device_count():
        raise UserError(f"local rank {ranks.local_rank} has no GPU of its own: there are {torch.cuda.device_count()}")
    device = torch.device("cuda", ranks.local_rank)
    torch.cuda.set_device(device)
    return device


def _gpu_available() -> bool:
    """Return whether torch sees a GPU.

    Raises:
        MachineError: there is a GPU, but its driver is too old for this build of torch.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error below says it in one line
        if torch.cuda.is_available():
            return True
    if torch.version.cuda:
        try:
            torch.cuda.init()
        except RuntimeError as error:
            if reported := machine_error(error):
                raise reported from None
    return False


def device_name(device: torch.device) -> str:
    """Return the name of the GPU or processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "cpu"
