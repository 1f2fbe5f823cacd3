"""Versions of packages, the state of the suite's own files, and the machine, for records. Importing it is light."""

import platform
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any

from transfer.cli.entry import package_version
from transfer.core.settings import CONFIGS

if TYPE_CHECKING:
    from transfer.engine.context import Context

RECORDED_PACKAGES = ("vit-transfer", "torch", "torchvision", "timm", "triton", "numpy", "pillow")


@cache
def source_state() -> tuple[str | None, bool | None]:
    """Return the commit of the suite's checkout and whether files differ from it; (None, None) outside a checkout."""
    if not (CONFIGS.parent / ".git").exists():
        return None, None
    try:
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(CONFIGS.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def environment(context: "Context", *, trains: bool = True) -> dict[str, Any]:
    """Return versions, device, ranks, threads, precision and the state of the source tree.

    `precision` is that of training. `tf32` names the operations of an fp32 training that use TF32; scoring in fp32
    never does. Both are None where nothing trains; `tf32` is also None on a CPU and in half precision.
    """
    import torch

    from transfer.engine.device import device_name, tf32_operations

    commit, dirty = source_state()
    return {
        "versions": {"python": platform.python_version()}
        | {name: package_version(name) for name in (*RECORDED_PACKAGES, "opencv-python-headless")},
        "device": device_name(context.device),
        "device_type": context.device.type,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "world_size": context.ranks.world,
        "sequence_parallel": context.ranks.token_ranks,
        "threads": torch.get_num_threads(),
        "threads_why": context.threads_why,
        "workers": context.workers,
        "precision": context.precision if trains else None,
        "eval_precision": context.eval_precision,
        "tf32": tf32_operations(context.device) if trains and context.precision == "fp32" else None,
        "git": commit,
        "dirty": dirty,
    }
