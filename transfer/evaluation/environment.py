"""Describes the machine and the software for a record."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from backbones.engine.context import Context
from backbones.runtime.precision import tf32_operations
from backbones.settings import CONFIGS

PACKAGES = ("vit-transfer", "torch", "torchvision", "timm", "triton", "numpy", "pillow")


def environment(context: Context, *, trains: bool = True) -> dict[str, Any]:
    """Return versions, device, ranks, threads, precision and the state of the source tree.

    `precision` is that of training. `tf32` names the operations of an fp32 training that use TF32; scoring in fp32
    never does. Both are None where nothing trains; `tf32` is also None on a CPU and in half precision.
    """
    commit, dirty = source_state()
    return {
        "versions": {"python": platform.python_version()} | {name: package_version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name(context.device) if context.on_gpu else _processor(),
        "device_type": context.device.type,
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


def package_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def source_state() -> tuple[str | None, bool | None]:
    """Return the commit of the suite's checkout and whether files differ from it; (None, None) outside a checkout."""
    if not (CONFIGS.parent / ".git").exists():
        return None, None
    try:
        commit = _git(CONFIGS.parent, "rev-parse", "HEAD")
        return commit, bool(_git(CONFIGS.parent, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return process.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "cpu"
