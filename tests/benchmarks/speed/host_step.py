"""What the host does in a training step of DeiT: forward, backward and update, with kernels that take no time.

    python -m tests.gpu tests.benchmarks host_step [--rounds 20] [--precision bf16]

The steps of `deit_step`, ours and timm's loop, of 12 blocks so narrow that their kernels take next to nothing. On a
pretended GPU the clock stands still while an operation is computed; it counts operations, too. Prints milliseconds of
this process (medians over interleaved rounds) and ratios. Needs `python -m tests.gpu`, or a GPU.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tests.benchmarks.speed.deit_step import CLASSES, ours, peer
from tests.benchmarks.speed.timing import figure, finish, read
from tests.gpu.ledger import LEDGER
from transfer.engine.context import Context
from transfer.engine.device import DTYPES, choose_precision

WIDTH, DEPTH, HEADS, SIZE = 64, 12, 2, 32
PHASES = ("forward", "backward", "update", "step")


def now() -> tuple[float, int]:
    """Milliseconds of this process outside of operations on a pretended GPU, and the number of these."""
    return 1e3 * (time.process_time() - LEDGER.seconds), LEDGER.launches.total()


def main(argv: Sequence[str]) -> int:
    """Run both in turn and print the table."""
    given, device = read(argv, __doc__, rounds=20, precision="auto")
    context = Context(device, choose_precision(given.precision, device))
    batch = torch.rand(2, 3, SIZE, SIZE, device=device), torch.randint(CLASSES, (2,), device=device)
    dtype = None if context.precision == "fp32" else DTYPES[context.precision]
    contestants = {
        "ours": ours(batch, given.stem, context, False, name_or_spec="vit_tiny", depth=DEPTH)[0],
        "timm": peer(batch, device, dtype, False, embed_dim=WIDTH, depth=DEPTH, num_heads=HEADS),
    }
    found = {name: list[list[tuple[float, int]]]() for name in contestants}
    moments: list[tuple[float, int]] = []
    backward = Tensor.backward

    def timed_backward(loss: Tensor) -> None:
        moments.append(now())
        backward(loss)
        moments.append(now())

    Tensor.backward = timed_backward  # type: ignore[method-assign,assignment]
    for _ in range(given.rounds + 3):
        for name, step in contestants.items():
            finish(device)
            moments[:] = [now()]
            step()
            found[name].append([*moments, now()])
    rows = {name: of_phases(turns[3:]) for name, turns in found.items()}  # the first ones warm up
    for phase, (own, count), (their, others) in zip(PHASES, rows["ours"], rows["timm"], strict=True):
        figure(f"{phase}, ours", own, "ms", f"{own / their:.2f} x timm's {their:.2f} ms;")
        figure(f"{phase}, ours, kernels", count, "launches", f"timm's {others:.0f};")
    return 0


def of_phases(turns: Sequence[Sequence[tuple[float, int]]]) -> list[tuple[float, float]]:
    """Medians of the milliseconds and launches of each phase, of what `now` said at their bounds."""
    marks = np.array(turns)  # [turns, bounds, 2]
    spans = np.concatenate([np.diff(marks, axis=1), marks[:, -1:] - marks[:, :1]], axis=1)
    return [(float(time), float(count)) for time, count in np.median(spans, axis=0)]
