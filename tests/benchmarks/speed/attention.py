"""Point-wise attention against torch's softmax attention and against the formula written out, in one table.

    python -m tests.benchmarks attention [--device cpu] [--threads 2] [--rounds 5]
    python -m tests.benchmarks attention --models        training steps of S/16 and S/8, softmax against ReLU, and the
                                                         cost of gate, norms, learned alpha and normalised weights
    python -m tests.benchmarks attention --tune          on a GPU: the fastest tiles of the kernels

Heads of 64, in bfloat16. Medians over interleaved rounds. The share of peak counts 4 operations per pair of tokens and
channel forward and 10 backward, over the rate of a large matrix product on the same machine.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.backbone import create
from backbones.flops import flops
from backbones.kernels.functions import SCORE_FUNCTIONS, pointwise
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import Step, finish, matrix_throughput, measure
from transfer.core.process import ALONE, usable_cores
from transfer.engine.device import choose_device

HEADS, HEAD_DIM = 6, 64
LENGTHS = (197, 785, 1024, 4096)
STEPS = {"cpu": 10, "cuda": 20}  # in a round
TOKENS = {"cpu": 3152, "cuda": 2**18}  # in all images of a batch
NOMINAL = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bfloat16 operations a second, by the makers' sheets
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula as a product, relu in place where it can be, and a product; scores are kept for the backward pass."""
    scores = torch.baddbmm(q.new_empty(1, 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0, alpha=HEAD_DIM**-0.5)
    return torch.bmm(SCORE_FUNCTIONS["relu"](scores), v.flatten(0, 1)).view(q.shape) * k.shape[2] ** -1.0


CONTESTANTS: dict[str, Core] = {
    "softmax": F.scaled_dot_product_attention,  # torch chooses its fastest
    "eager": written_out,
    "ours": partial(pointwise, h="relu"),
}


def steps_of(core: Core, sizes: tuple[int, ...], device: torch.device) -> dict[str, Step]:
    """A forward pass without, and one with the backward pass behind it."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(sizes, generator=generator).to(device, torch.bfloat16) for _ in range(4))
    tracked = [x.clone().requires_grad_() for x in (q, k, v)]

    def forward() -> None:
        with torch.inference_mode():
            core(q, k, v)

    return {"forward": forward, "both": lambda: torch.autograd.grad(core(*tracked), tracked, grad)}


def peak_mib(step: Callable[[], object], device: torch.device) -> float:
    """Memory that a step takes beyond what lies there before, on a GPU."""
    step()
    finish(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def table(options: argparse.Namespace, device: torch.device, peak: float) -> None:
    """One row for each length and pass."""
    print(f"{'L':>5} {'images':>6} {'pass':8} {'softmax ms':>10} {'eager ms':>9} {'ours ms':>8}", end="")
    print(f" {'x softmax':>9} {'x eager':>8} {'of peak':>8} {'MiB ours':>9} {'eager':>8}")
    for length in LENGTHS:
        images = max(TOKENS[device.type] // length, 1)
        steps = {name: steps_of(core, (images, HEADS, length, HEAD_DIM), device) for name, core in CONTESTANTS.items()}
        for part, factor in (("forward", 4), ("both", 14)):
            rates = measure({n: s[part] for n, s in steps.items()}, options.rounds, STEPS[device.type], 1, device)
            share = factor * images * HEADS * length**2 * HEAD_DIM * rates["ours"] / peak
            memory = ["-", "-"]
            if device.type == "cuda":
                memory = [f"{peak_mib(steps[name][part], device):.0f}" for name in ("ours", "eager")]
            times = " ".join(f"{1e3 / rates[n]:>{w}.2f}" for n, w in (("softmax", 10), ("eager", 9), ("ours", 8)))
            ratios = f"{rates['ours'] / rates['softmax']:9.2f} {rates['ours'] / rates['eager']:8.2f}"
            print(f"{length:5} {images:6} {part:8} {times} {ratios} {share:8.1%} {memory[0]:>9} {memory[1]:>8}")


VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "relu": {"attention": "relu"},
    "relu, no qk-norm": {"attention": "relu", "qk_norm": False},
    "relu, gate": {"attention": "relu", "gate": "sigmoid"},
    "relu, learned alpha": {"attention": "relu", "alpha": "learned"},
    "relu_sum": {"attention": "relu_sum"},
}


def models(options: argparse.Namespace, device: torch.device, peak: float) -> None:
    """Images per second of training steps of whole models."""
    for patch in (16, 8):
        images = ({16: 512, 8: 128} if device.type == "cuda" else {16: 8, 8: 2})[patch]
        batch = torch.rand(images, 3, 224, 224, device=device)
        steps, counts = {}, {}
        for name, parts in VARIANTS.items():
            backbone = create("vit_s", patch=patch, weights="random", **parts).to(device).train()
            counts[name] = 3 * flops(backbone, 224)["total"]
            steps[name] = training_step(backbone, batch)
        rates = measure(steps, options.rounds, 1 if device.type == "cpu" else 5, images, device)
        print(f"S/{patch}, {images} images a step")
        for name, rate in rates.items():
            share = f"{rate * counts[name] / peak:.1%} of peak"
            print(f"  {name:20} {rate:9.2f} images/s  time {rates['relu'] / rate - 1:+6.1%} against relu  {share}")


def training_step(backbone: torch.nn.Module, batch: Tensor) -> Callable[[], object]:
    """Forward, backward, update."""
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast(batch.device.type, torch.bfloat16):
            loss = backbone(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def tune(device: torch.device) -> None:
    """The five fastest tiles of each pass and length; put the best first in `fused.TILES`."""
    from triton.runtime.errors import OutOfResources

    from backbones.kernels import fused

    sides, warps, stages = (32, 64, 128), (4, 8), (1, 2, 3, 4)
    for length in LENGTHS:
        sizes = (TOKENS["cuda"] // length, HEADS, length, HEAD_DIM)
        q, k, v, grad = (torch.randn(sizes, device=device, dtype=torch.bfloat16) for _ in range(4))
        for part in ("forward", "backward"):
            found: dict[Any, float] = {}
            for tile in itertools.starmap(fused.Tile, itertools.product(sides, sides, warps, stages)):
                fused.TILES[2, HEAD_DIM] = (tile,)
                run = fused.forward if part == "forward" else partial(fused.backward, grad)
                step = partial(run, q, k, v, "relu", 1 / length)
                try:
                    found[tile] = 1e3 / measure({"step": step}, 3, STEPS["cuda"], 1, device)["step"]
                except (OutOfResources, RuntimeError):
                    continue
            for tile in sorted(found, key=lambda tile: found[tile])[:5]:
                print(f"L {length:5} {part:8} {found[tile]:8.3f} ms  {tile}")


def main(argv: Sequence[str]) -> int:
    options = read(argv, __doc__, device="auto", threads=usable_cores(), rounds=5, models=False, tune=False)
    device = choose_device(options.device, ALONE)
    peak = matrix_throughput(device, torch.bfloat16)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    nominal = next((rate for chip, rate in NOMINAL.items() if chip in name), None)
    share = f", {peak / nominal:.0%} of the nominal peak" if nominal else ""
    print(f"{device.type}, {name}, torch {torch.__version__}; matrix product: {peak / 1e12:.2f} T operations/s{share}")
    if options.tune:
        tune(device)
    elif options.models:
        models(options, device, peak)
    else:
        table(options, device, peak)
    return 0
