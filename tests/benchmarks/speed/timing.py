"""Rates of several steps side by side, and of a matrix product, for the benchmarks."""

import statistics
import time
from collections.abc import Callable

import torch

Step = Callable[[], object]
Clock = Callable[[], float]


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
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                rates[name].append(steps * images / (clock() - begin))
    return {name: statistics.median(values) for name, values in rates.items()}


def matrix_throughput(device: torch.device, dtype: torch.dtype, clock: Clock = time.perf_counter) -> float:
    """Operations per second of a large matrix product, the best of some."""
    side = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = 0.0
    for _ in range(6):
        begin = clock()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = max(best, 2 * side**3 / (clock() - begin))
    return best
