"""Point-wise attention against torch's softmax attention and against the formula written out.

    python -m tests.benchmarks attention [--device cpu] [--threads 2] [--rounds 5]
    python -m tests.benchmarks attention --models        training steps of S/16 and S/8, softmax against ReLU, and the
                                                         cost of gate, norms, learned alpha and normalised weights
    python -m tests.benchmarks attention --tune          on a GPU: the fastest tiles of the kernels

Heads of 64, in bfloat16. Medians over interleaved rounds. The share of peak counts 4 operations per pair of tokens and
channel forward and 10 backward, over the rate of the datasheet, or else of a large matrix product on the same machine.
"""

import argparse
import itertools
import re
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
from tests.benchmarks.speed.timing import Step, figure, finish, measure, show
from transfer.core.process import ALONE, usable_cores
from transfer.doctor.gpu import matrix_throughput
from transfer.engine.device import choose_device, device_name

HEADS, HEAD_DIM = 6, 64
LENGTHS = (197, 785, 1024, 4096)
STEPS = {"cpu": 10, "cuda": 20}  # in a round
TOKENS = {"cpu": 3152, "cuda": 2**18}  # in all images of a batch
PEAKS = {
    **{r"A100[- ]\S+( PCIe)?": 312e12, r"A10": 125e12, r"H100 80GB HBM3": 989e12, r"H100 PCIe": 756e12},
    **{r"H(1|2)00 NVL": 835e12, r"H200": 989e12, r"L40S": 362e12},
    **{r"GeForce RTX 3090": 71e12, r"GeForce RTX 4090": 165e12, r"GeForce RTX 5090": 209e12},
}
"""Dense bfloat16 operations a second by the card's name, as NVIDIA states them; see pages that quote it (unconfirmed):
A100, H100, H200, A10 and L40S in the datasheet of each, with sparsity, so twice as much, for Hopper (1,979, PCIe 1,513,
NVL 1,671); RTX 3090, 4090 and 5090 in Appendix A of the white paper of the Blackwell RTX architecture, with float32
accumulation. A part of a card (MIG) has another one."""
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
    """Images per second of each length and pass, the share of peak, and on a GPU the memory."""
    for length in LENGTHS:
        images = max(TOKENS[device.type] // length, 1)
        steps = {name: steps_of(core, (images, HEADS, length, HEAD_DIM), device) for name, core in CONTESTANTS.items()}
        for part, factor in (("forward", 4), ("both", 14)):
            chosen = {name: of_parts[part] for name, of_parts in steps.items()}
            rates = measure(chosen, options.rounds, STEPS[device.type], images, device)
            title = f"{length} tokens, {part}: "
            show(rates, title)
            share = factor * HEADS * length**2 * HEAD_DIM * rates["ours"] / peak
            figure(f"{title}share of peak", 100 * share, "%")
            for name in ("ours", "eager") if device.type == "cuda" else ():
                figure(f"{title}memory, {name}", peak_mib(chosen[name], device), "MiB")


VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "relu": {"attention": "relu"},
    "relu, no qk-norm": {"attention": "relu", "qk_norm": False},
    "relu, gate": {"attention": "relu", "gate": "sigmoid"},
    "relu, learned alpha": {"attention": "relu", "alpha": "learned"},
    "relu_sum": {"attention": "relu_sum"},
}
BASES = {"relu": "softmax"} | dict.fromkeys([*VARIANTS][2:], "relu")
"""What the time of each variant is compared with."""


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
        title = f"S/{patch}, batch {images}: "
        for name, rate in rates.items():
            figure(title + name, rate, "images/s", f"{rate * counts[name] / peak:.1%} of peak")
        for name, other in BASES.items():
            figure(f"{title}{name} / {other}", rates[other] / rates[name], "fold")


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
                step = partial(run, q, k, v, "relu", 1 / length, HEAD_DIM**-0.5)
                try:
                    found[tile] = 1e3 / measure({"step": step}, 3, STEPS["cuda"], 1, device)["step"]
                except (OutOfResources, RuntimeError):
                    continue
            for tile in sorted(found, key=lambda tile: found[tile])[:5]:
                shape = f"{tile.rows} x {tile.columns}, {tile.warps} warps, {tile.stages} stages"
                figure(f"{length} tokens, {part}: {shape}", found[tile], "ms")


def card_peak(device: torch.device) -> float | None:
    """Return the card's dense bfloat16 operations a second by its maker; None of an unknown one, and of a CPU."""
    name = device_name(device).removeprefix("NVIDIA ") if device.type == "cuda" else ""
    return next((peak for card, peak in PEAKS.items() if re.fullmatch(card, name)), None)


def main(argv: Sequence[str]) -> int:
    options = read(argv, __doc__, device="auto", threads=usable_cores(), rounds=5, models=False, tune=False)
    device = choose_device(options.device, ALONE)
    reached = matrix_throughput(device, torch.bfloat16)
    peak = card_peak(device) or reached
    print(f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    figure("matrix product", reached / 1e12, "TFLOP/s", f"{reached / peak:.0%} of peak")
    if options.tune:
        tune(device)
    elif options.models:
        models(options, device, peak)
    else:
        table(options, device, peak)
    return 0
