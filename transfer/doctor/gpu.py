"""`python -m transfer.doctor gpu`: what a GPU computes, as a table for an issue.

A part that fails is a row of the table, and the next ones run.
"""

import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO

import torch
import torch.distributed as dist
from torch import Tensor

from backbones.kernels.blocked import HEAD_DIMS
from backbones.kernels.functions import pointwise
from transfer.cli.entry import package_version
from transfer.core.errors import UserError, print_safe
from transfer.core.machine_errors import in_one_line
from transfer.core.process import ALONE
from transfer.doctor.options import GpuOptions
from transfer.engine.device import DTYPES, choose_device, choose_precision, device_name, driver
from transfer.evaluation.environment import source_state
from transfer.measure.steps import Step

TOLERANCES = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}
"""Largest norm of the kernels' difference to float64, by that of the result."""


def main(_: GpuOptions) -> int:
    """Check all parts, print the table, and return 1 if one failed. Raises UserError without a GPU."""
    device, rows, failed = choose_device("cuda", ALONE), ["| part | result |", "|---|---|"], 0
    parts: dict[str, Callable[[torch.device], str]] = {
        "software": _software,
        "matrix product": _matrix_product,
        "kernels": _kernels,
        "NCCL, one process": _nccl,
    }
    for name, part in parts.items():
        print_safe(f"{name} ...", file=sys.stderr, flush=True)
        try:
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                result = part(device)
        except Exception as error:
            result, failed = f"FAILED: {in_one_line(error)}", failed + 1
        rows.append(f"| {name} | {result.replace('|', '/')} |")
    print_safe("\n".join(rows))
    return int(failed > 0)


def _software(device: torch.device) -> str:
    card = torch.cuda.get_device_properties(device)
    packages = (f"{name} {package_version(name)}" for name in ("torchvision", "triton", "timm", "vit-transfer"))
    commit, dirty = source_state()
    return (
        f"{device_name(device)}, {card.total_memory / 2**30:.0f} GiB, capability {card.major}.{card.minor}, "
        f"{driver()}; torch {torch.__version__}, CUDA {torch.version.cuda}, "
        f"{', '.join(packages)} {(commit or '')[:12]}{', modified' if dirty else ''}"
    )


def matrix_throughput(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product, the best of some."""
    for side in (512, 2048, 4096, 8192):
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        seconds = min(wall_time(device, partial(torch.mm, a, b), 1) for _ in range(6))
        if seconds > 0.02:
            break
    return 2 * float(side) ** 3 / seconds


def wall_time(device: torch.device, step: Step, times: int) -> float:
    """Return the seconds in which a device ends a number of calls of a step."""
    begin = time.perf_counter()
    for _ in range(times):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _matrix_product(device: torch.device) -> str:
    precision = choose_precision("auto", device)
    return f"{matrix_throughput(device, DTYPES[precision]) / 1e12:.1f} T operations/s in {precision}"


def _kernels(device: torch.device) -> str:
    """Compare results and gradients of point-wise attention with those in float64, in all precisions and widths."""
    half = ("bf16",) if choose_precision("auto", device) == "bf16" else ()
    worst = dict.fromkeys(("fp32", "fp16", *half), 0.0)
    generator = torch.Generator().manual_seed(0)

    def results(inputs: list[Tensor]) -> list[Tensor]:
        tracked = [x.requires_grad_() for x in inputs[:3]]
        out = pointwise(tracked[0], tracked[1], tracked[2], h="relu")
        return [x.detach().double().cpu() for x in (out, *torch.autograd.grad(out, tracked, inputs[3]))]

    with warnings.catch_warnings(record=True, action="always") as caught:
        for precision in worst:
            for width in HEAD_DIMS:
                drawn = [torch.randn(1, 2, 197, width, generator=generator).to(DTYPES[precision]) for _ in range(4)]
                exact = results([x.double() for x in drawn])
                for result, true in zip(results([x.to(device) for x in drawn]), exact):
                    worst[precision] = max(worst[precision], float((result - true).norm() / true.norm()))
    text = ", ".join(f"{precision} {error:.1e}" for precision, error in worst.items())
    if off := [precision for precision, error in worst.items() if not error <= TOLERANCES[precision]]:
        raise UserError(f"{', '.join(off)}: farther from float64 than {TOLERANCES}: {text}")
    return "; ".join([f"differ from float64 by {text}", *{str(warning.message) for warning in caught}])


def _nccl(device: torch.device) -> str:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(ones := torch.ones(8, device=device))
        assert ones.tolist() == [1.0] * 8
        dist.broadcast_object_list(["text"], src=0, device=torch.device("cpu"))
        return ".".join(map(str, torch.cuda.nccl.version()))
    finally:
        dist.destroy_process_group()
