"""A training step with SAM against a plain one: the same small ViT, batch, optimiser and loop.

    python -m tests.benchmarks sam_step [--batch 16] [--repeats 7] [--precision bf16]

Prints seconds and ratios of medians over interleaved repeats. Two passes for one put the floor at nearly 2; the target
is 2.1 at most. Where others use the machine too, `--threads 1 --clock cpu` counts this process's own seconds.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from backbones.backbone import create
from backbones.engine.context import Context
from backbones.engine.learner import Batch, Learner
from backbones.engine.step import Stepper
from tests.support import fit_options

SIZE, CLASSES = 112, 100


class Classifier(Learner):
    """A ViT with conv stem, so that batch norm counts, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = create("vit_s", weights="random", img_size=SIZE, stem="conv", depth=4)
        self.head = nn.Linear(self.backbone.dim, CLASSES)

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        images, labels = batch
        return {"loss": nn.functional.cross_entropy(self.head(self.backbone.pooled(images)).float(), labels)}


def stepper(device: torch.device, precision: str, kind: str) -> Stepper:
    """One side of the comparison."""
    options = fit_options(optimizer="adamw", lr=1e-4, sam=kind, clip_grad=1.0)
    return Stepper(Classifier().train(), options, Context(device, precision))  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = torch.rand(options.batch, 3, SIZE, SIZE), torch.randint(CLASSES, (options.batch,))
    steppers = {kind: stepper(device, options.precision, kind) for kind in ("none", "sam", "asam")}
    seconds: dict[str, list[float]] = {kind: [] for kind in steppers}
    for repeat, (kind, trained) in itertools.product(range(options.repeats + 2), steppers.items()):
        start = clock()
        trained.step(repeat + 1, 1.0, batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if repeat >= 2:
            seconds[kind].append(clock() - start)
    plain = statistics.median(seconds["none"])
    for kind, values in seconds.items():
        median = statistics.median(values)
        print(f"{kind:5} {median:8.4f} s a step, {median / plain:5.2f} of the plain step")
    return 0
