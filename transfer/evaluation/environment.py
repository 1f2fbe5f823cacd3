"""Describes the machine and the software for a record."""

import platform
from typing import Any

import torch

from transfer.cli.entry import package_version
from transfer.engine.context import Context
from transfer.engine.device import device_name, tf32_operations
from transfer.evaluation.software import PACKAGES, source_state


def environment(context: Context, *, trains: bool = True) -> dict[str, Any]:
    """Return versions, device, ranks, threads, precision and the state of the source tree.

    `precision` is that of training. `tf32` names the operations of an fp32 training that use TF32; scoring in fp32
    never does. Both are None where nothing trains; `tf32` is also None on a CPU and in half precision.
    """
    commit, dirty = source_state()
    return {
        "versions": {"python": platform.python_version()} | {name: package_version(name) for name in PACKAGES},
        "device": device_name(context.device),
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
