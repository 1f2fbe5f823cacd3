"""What the benchmarks of whole training steps share: their words, their contestants, and the table that they print."""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence

import torch

from tests.benchmarks.speed.timing import Step, matrix_throughput, measure
from transfer.core.process import ALONE
from transfer.engine.context import Context, usable_cores
from transfer.engine.device import DTYPES, choose_device

Peer = Callable[[torch.dtype | None, bool], Step]
"""The plain loop under autocast to a type, or without; compiled or not."""
Ours = Callable[[bool], tuple[Step, Context, float]]
"""The suite's step, compiled or not, its context, and the operations of one image in it."""


def arguments(argv: Sequence[str] | None, doc: str | None, **numbers: int) -> tuple[argparse.Namespace, torch.device]:
    """The command line, of whole numbers with these defaults besides what all have; and the device."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stem", default="patchify", help="of ours; the peers' is patchify")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    return given, choose_device("auto", ALONE)


def contest(peer: Peer, ours: Ours, given: argparse.Namespace) -> int:
    """Run the contestants in turn and print images per second, ratios, and shares of a matrix product's operations.

    The peer's own settings are fp32 on a CPU, and fp16 autocast with a scaler on a GPU, where both are also compiled.
    """
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    mine, context, operations = ours(False)
    contestants = {
        "the repository's settings": peer(torch.float16 if context.on_gpu else None, False),
        "timm, bf16": peer(torch.bfloat16, False),
        "ours": mine,
    }
    if context.on_gpu:
        contestants |= {"timm, bf16, compiled": peer(torch.bfloat16, True), "ours, compiled": ours(True)[0]}
    rates = measure(contestants, given.rounds, given.steps, given.batch_size, context.device, clock)
    peak = matrix_throughput(context.device, DTYPES[context.precision], clock)
    print(f"{context.device.type}, {given.threads} threads, {context.precision}, batch {given.batch_size}")
    show(rates)
    for name in (name for name in rates if name.startswith("ours")):
        achieved = rates[name] * operations
        print(f"{name}: {achieved / 1e12:.2f} TFLOP/s, {achieved / peak:.0%} of a matrix product's")
    return 0


def show(rates: dict[str, float]) -> None:
    """Print images per second, and ratios to all others."""
    for name, rate in rates.items():
        against = " ".join(f"{rate / other:5.2f} x {title};" for title, other in rates.items() if title != name)
        print(f"{name:26} {rate:8.2f} images/s  {against}")
