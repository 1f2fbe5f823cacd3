"""A training step of ViT-S (forward, backward, SGD) side by side: ours under bf16 autocast, timm's, timm's in fp32.

    python -m tests.benchmarks vit_step [--batch 16] [--repeats 5] [--stem conv] [--attention relu]

Prints seconds and ratios of medians over interleaved repeats; `--compare` adds ours in every listed attention. Where
others use the machine too, `--threads 1 --clock cpu` counts this process's own seconds.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import timm
import torch
from torch import Tensor, nn

from backbones.backbone import create

SIZE = (256, 128)
CLASSES = 751

Step = Callable[[Tensor, Tensor], None]


class Ours(nn.Module):
    """A backbone with a linear head."""

    def __init__(self, **options: str) -> None:
        super().__init__()
        self.backbone = create("vit_s", weights="random", img_size=SIZE, **options)
        self.head = nn.Linear(self.backbone.dim, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone.pooled(images))


def plain_step(model: nn.Module, device: torch.device, bf16: bool) -> Step:
    """The loop every codebase writes; the place to put another one beside it."""
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    def step(images: Tensor, labels: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(loss.detach())

    return step


def contestants(options: argparse.Namespace, device: torch.device) -> dict[str, Step]:
    """What is timed, by name."""

    def timms() -> nn.Module:
        return timm.create_model("vit_small_patch16_224", num_classes=CLASSES, img_size=SIZE)

    steps = {
        "ours, bf16": plain_step(Ours(stem=options.stem, attention=options.attention), device, True),
        "timm, bf16": plain_step(timms(), device, True),
        "timm, fp32": plain_step(timms(), device, False),
    }
    for attention in options.compare:
        steps[f"ours, bf16, {attention}"] = plain_step(Ours(stem=options.stem, attention=attention), device, True)
    return steps


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stem", default="patchify")
    parser.add_argument("--attention", default="softmax")
    parser.add_argument("--compare", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args(argv)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.rand(options.batch, 3, *SIZE, device=device)
    labels = torch.randint(CLASSES, (options.batch,), device=device)
    steps = contestants(options, device)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(-1, options.repeats):  # the first one warms up
        for name, step in steps.items():
            start = clock()
            step(images, labels)
            if repeat >= 0:
                seconds[name].append(clock() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ours = medians["ours, bf16"]
    print(f"{device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}, batch {options.batch}, {SIZE}")
    for name, median in medians.items():
        print(f"{name:24} {median:8.3f} s   {options.batch / median:7.1f} images/s   {median / ours:5.2f} x ours")
    return 0
