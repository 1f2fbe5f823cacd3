"""Rates of several steps side by side, and of a matrix product, for the benchmarks."""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import options
from transfer.core.process import ALONE, usable_cores
from transfer.doctor.gpu import matrix_throughput, wall_time
from transfer.engine.context import Context
from transfer.engine.device import DTYPES, choose_device, choose_precision
from transfer.engine.step import Stepper, Taken

Step = Callable[[], object]
Clock = Callable[[], float]
Peer = Callable[[torch.dtype | None, bool], Step]
"""The plain loop under autocast to a type, or without; compiled or not."""
Ours = Callable[[Context, bool], tuple[Step, float]]
"""The suite's step in a context, compiled or not, and the operations of one image in it."""


def finish(device: torch.device) -> None:
    """Wait until a GPU has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result."""
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def fresh_peak() -> float:
    """What this process holds now, in MiB; `peak` counts from here (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak()


def peak() -> float:
    """The most memory that this process has held, in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 2**10


def measure(
    contestants: dict[str, Step],
    rounds: int,
    steps: int,
    images: int,
    device: torch.device,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """Median images per second of each, over interleaved rounds after one to warm up."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, step in contestants.items():
            begin = clock()
            for _ in range(steps):
                step()
            finish(device)
            if turn:
                rates[name].append(steps * images / (clock() - begin))
    return {name: statistics.median(values) for name, values in rates.items()}


def busy(step: Step, steps: int, device: torch.device) -> float:
    """Share of the time of some steps in which a GPU computes, of what the host's work leaves."""
    cuda = torch.profiler.ProfilerActivity.CUDA
    seconds = wall_time(device, step, steps)
    with torch.profiler.profile(activities=[cuda]) as profile:
        wall_time(device, step, steps)
    kernels = (event for event in profile.events() or () if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(event.self_device_time_total for event in kernels) / 1e6 / seconds


def read(argv: Sequence[str], doc: str | None, **defaults: Any) -> tuple[argparse.Namespace, torch.device]:
    """The command line of a benchmark of training steps, and the device."""
    warnings.simplefilter("ignore")
    given = options.read(argv, doc, **{"rounds": 3, "stem": "patchify", "threads": usable_cores(), **defaults})
    return given, choose_device("auto", ALONE)


def own_step(stepper: Stepper, epoch: float, epoch_steps: int = 1250) -> Callable[[Any], None]:
    """The suite's step on a batch, from an epoch on; numbers are read when the training loop reads them."""
    numbers: Iterator[int] = iter(range(int(epoch * epoch_steps) + 1, 10**9))
    begun: list[Taken] = []

    def step(batch: Any) -> None:
        begun.append(stepper.step(next(numbers), epoch, batch, epoch_steps))
        if len(begun) > stepper.late:
            begun.pop(0).read()

    return step


def contest(peer: Peer, ours: Ours, given: argparse.Namespace, device: torch.device) -> int:
    """Run the contestants in turn and print images per second, ratios, and shares of a matrix product's operations.

    The peer's own settings are fp32 on a CPU, and fp16 autocast with a scaler on a GPU. With `--compile`, and on a GPU
    always, both are also compiled; `--precision` is that of all others.
    """
    context = Context(device, choose_precision(given.precision, device))
    theirs, dtype = f"timm, {context.precision}", None if context.precision == "fp32" else DTYPES[context.precision]
    mine, operations = ours(context, False)
    contestants = {
        "the repository's settings": peer(torch.float16 if context.on_gpu else None, False),
        theirs: peer(dtype, False),
        "ours": mine,
    }
    if context.on_gpu or given.compile:
        contestants |= {f"{theirs}, compiled": peer(dtype, True), "ours, compiled": ours(context, True)[0]}
    rates = measure(contestants, given.rounds, given.steps, given.batch_size, device)
    peak = matrix_throughput(device, DTYPES[context.precision])
    print(f"{device.type}, {given.threads} threads, {context.precision}, batch {given.batch_size}")
    show(rates)
    for name in (name for name in rates if name.startswith("ours")):
        achieved = rates[name] * operations
        figure(f"{name}: share of a matrix product", 100 * achieved / peak, "%", f"{achieved / 1e12:.2f} TFLOP/s")
    return 0


def show(rates: dict[str, float], title: str = "") -> None:
    """Print images per second, and how many times as fast as each other contestant ours are."""
    for name, rate in rates.items():
        figure(title + name, rate, "images/s")
    ours = [name for name in rates if name.startswith("ours")]
    for name, other in itertools.product(ours, rates):
        if other not in ours:
            figure(f"{title}{name} / {other}", rates[name] / rates[other], "x")


def figure(name: str, value: float, unit: str, more: str = "") -> None:
    """Print a line that `python -m tests.benchmarks gpu` and `cpu` take for a figure.

    Ratios are named "ours / theirs". Their unit is `x`, times as fast, or `fold`, times the time or the memory.
    """
    print(f"{name:48} {value:10.2f} {unit}  {more}".rstrip(), flush=True)
