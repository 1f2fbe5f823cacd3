"""Lock-step parity of the DINO recipe with the repository of the paper (arXiv 2104.14294).

    git clone https://github.com/facebookresearch/dino CHECKOUT
    python -m tests.benchmarks parity_dino --checkout CHECKOUT

Equal weights, crops and random numbers go through the peer's own loop and ours: a small ViT, with patchify and with a
conv stem (batch norm), fp32, 20 steps in 5 epochs, in which the last layer is frozen for one and the teacher's
temperature warms up for three. The recipe is `configs/pretrain/dino.yaml` but for these sizes. Prints what was
compared; exits with 1 where a difference is above its limit. It takes a minute on two cores.

Positions are resampled for the local crops by each side itself. Our stochastic depth is drawn as the peer's is. Not
compared, because the two differ on purpose: the peer's fp16.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from backbones.backbone import create
from backbones.pretrain.dino.learner import DinoLearner
from backbones.pretrain.dino.method import DinoOptions
from backbones.pretrain.dino.multicrop import MultiCrop
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.benchmarks.parity.checks import Check, checkout_parser, draws_of_torch, normalised, report
from tests.benchmarks.parity.dino_peer import Peer, take_weights
from tests.support import context
from transfer.cli.command import Command, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe import pretraining_recipe
from transfer.engine.schedule import Schedule
from transfer.engine.step import Stepper

EPOCHS, STEPS, BATCH, PATCH = 5, 4, 8, 8
SMALL = [
    *("--size", "64", "--local-size", "32", "--local-crops", "4", "--out-dim", "1024", "--batch-size", str(BATCH)),
    *("--epochs", str(EPOCHS), "--warmup-epochs", "2", "--precision", "fp32", "--no-sync-bn"),
    *("--warmup-teacher-temp-epochs", "3", "--teacher-temp", "0.07"),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Compares everything; the exit status."""
    checkout = checkout_parser(__doc__).parse_args(argv).checkout
    checks = [*compare_schedules(checkout), *compare_crops(checkout)]
    for stem in ("patchify", "conv"):
        for free in (False, True):
            checks += compare_training(checkout, stem, free)
    return report(checks)


def recipe(*words: str) -> DinoOptions:
    """The shipped recipe with some values replaced."""
    options: DinoOptions = command(*words).options
    return options


def command(*words: str) -> Command:
    """The shipped recipe, as a command."""
    return read_command(pretraining_recipe("dino"), DinoOptions, ["--backbone", "tiny", *words], PretrainRunOptions)


def compare_schedules(checkout: Path) -> Iterator[Check]:
    """Rate, decay, momentum and temperature of every step of the whole recipe, and of its stronger variant."""
    boost = ["--epochs", "300", "--teacher-temp", "0.07", "--warmup-teacher-temp-epochs", "30"]
    for name, words in (("recipe", []), ("300 epochs", boost)):
        options, steps = recipe(*words), 37
        peer, schedule = Peer(checkout, options, steps), Schedule(options)
        learner = make_learner(recipe(*words, "--size", "64", "--out-dim", "2"), "patchify", steps)
        moments = [(epoch, index) for epoch in range(options.epochs) for index in range(steps)]
        times = [schedule.clock(epoch, index, steps) for epoch, index in moments]
        numbers, temperatures = range(1, len(moments) + 1), np.repeat(peer.loss().teacher_temp_schedule, steps)
        pairs = {
            "rate": ([schedule.rate(time, options.lr, steps) for time in times], peer.rates),
            "weight decay": ([schedule.decay(time) for time in times], peer.decays),
            "teacher's momentum": ([learner.momentum(number) for number in numbers], peer.momenta),
            "teacher's temperature": ([learner.temperature(number) for number in numbers], temperatures),
        }
        for what, (ours, theirs) in pairs.items():
            difference = float(np.abs(np.array(ours) - theirs).max())
            yield Check(f"schedule: {what}, {name}", difference, 1e-7, f"{min(ours):.6g} to {max(ours):.6g}")


def compare_crops(checkout: Path) -> Iterator[Check]:
    """Crops of noisy images from equal seeds, as normalised."""
    options = recipe()
    crops = MultiCrop(
        options.size, options.global_area, options.local_size, options.local_area, options.local_crops,
        blur=options.blur,
    )  # fmt: skip
    theirs, largest, draws = Peer(checkout, options, 1).crops(), 0.0, 20
    for seed in range(draws):
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 15, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((375, 300), Image.Resampling.BICUBIC)
        sides: list[list[Tensor]] = []
        for transform in (theirs, crops):
            random.seed(seed)
            torch.manual_seed(seed)
            sides.append(transform(image))
        ours = (normalised(crop, IMAGENET_MEAN, IMAGENET_STD) for crop in sides[1])
        largest = max(largest, *(float((a - b).abs().max()) for a, b in zip(sides[0], ours, strict=True)))
    yield Check("crops: pixels", largest, 1e-5, f"{draws} images, {options.local_crops + 2} crops each")


def compare_training(checkout: Path, stem: str, free: bool) -> Iterator[Check]:
    """20 steps; `free`: with a last layer whose norms are trained."""
    options = recipe(*SMALL, "--norm-last-layer" if not free else "--no-norm-last-layer")
    name = f"{stem}{', free norms' if free else ''}"
    peer, learner = Peer(checkout, options, STEPS), make_learner(options, stem, STEPS)
    batches = [random_crops(step, options) for step in range(EPOCHS * STEPS)]
    networks = {kind: copy_of(peer, learner, kind, stem, free) for kind in ("student", "teacher")}
    trace = peer.train(**networks, batches=[[normalised(c, IMAGENET_MEAN, IMAGENET_STD) for c in b] for b in batches])
    ours = train(learner, options, batches)
    note = f"{ours[0]['loss']:.4f} to {ours[-1]['loss']:.4f}"
    losses = max(abs(a - b["loss"]) for a, b in zip(trace.losses, ours, strict=True))
    yield Check(f"training: loss, {name}", losses, 1e-4, note)
    rates = max(abs(a - b["lr"]) for a, b in zip(trace.rates, ours, strict=True))
    yield Check(f"training: rate, {name}", rates, 1e-7)
    decays = max(abs(a - b["decay"]) for a, b in zip(trace.decays, ours, strict=True))
    yield Check(f"training: weight decay, {name}", decays, 1e-7)
    yield Check(f"training: center, {name}", float((learner.center - trace.center).abs().max()), 1e-5)
    for kind, network in networks.items():
        difference, note = compare_states(getattr(learner, kind), network)
        # AdamW blows up rounding in gradients near zero, as those of weights before a batch norm are
        yield Check(f"training: {kind} after {len(ours)} steps, {name}", difference, 1e-3, note)


def copy_of(peer: Peer, learner: DinoLearner, kind: str, stem: str, free: bool) -> Any:
    """Our student or teacher in the peer's classes, weights included."""
    ours = getattr(learner, kind)
    vit = ours.backbone.model
    drop = learner.options.drop_path if kind == "student" else 0.0
    # its teacher's norms are parameters in any case: they follow the student's
    fixed = not free and kind == "student"
    theirs = peer.network(vit.embed_dim, len(vit.blocks), vit.blocks[0].attn.num_heads, PATCH, drop, fixed)
    if stem != "patchify":
        theirs.backbone.patch_embed = Tokens(stem)
    take_weights(theirs, ours)
    return theirs if kind == "student" else theirs.requires_grad_(False)


class Tokens(torch.nn.Module):
    """A stem of ours where the peer has its patch embedding: images -> tokens [B, N, D]."""

    def __init__(self, stem: str) -> None:
        super().__init__()
        embed = create("tiny", stem=stem, patch=PATCH, weights="random", img_size=64).model.patch_embed
        self.conv, self.proj, self.patch_size = embed.conv, embed.proj, PATCH

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.conv(images)).flatten(2).transpose(1, 2)


def make_learner(options: DinoOptions, stem: str, steps: int) -> DinoLearner:
    """Ours, from a seed."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"stem": stem, "patch": PATCH, "weights": "random", "img_size": options.size}
    shape["pos_embed_interp"] = command().resolved(from_scratch=True).pos_embed_interp
    return DinoLearner(create("tiny", drop_path=options.drop_path, **shape), create("tiny", **shape), options, steps)


def train(learner: DinoLearner, options: DinoOptions, batches: Sequence[list[Tensor]]) -> list[dict[str, float]]:
    """The statistics of our steps."""
    stepper, stats = Stepper(learner, options, context()), []
    for index, crops in enumerate(batches):
        stepper.model.train()
        time = stepper.schedule.clock(index // STEPS, index % STEPS, STEPS)
        with draws_of_torch(floored=True):
            found, _, _ = stepper.step(index + 1, time, [crops, torch.zeros(BATCH)], STEPS)
        decay = max(group["weight_decay"] for group in stepper.optimizer.param_groups)
        stats.append({**found, "decay": decay})
    return stats


def random_crops(step: int, options: DinoOptions) -> list[Tensor]:
    """Smooth noise in [0, 1], in the crops' sizes."""
    generator = torch.Generator().manual_seed(step)
    sizes = [options.size] * 2 + [options.local_size] * options.local_crops
    coarse = [torch.rand(BATCH, 3, 5, 5, generator=generator) for _ in sizes]
    return [torch.nn.functional.interpolate(c, size=size, mode="bilinear") for c, size in zip(coarse, sizes)]


def compare_states(ours: Any, theirs: Any) -> tuple[float, str]:
    """The largest difference of parameters and batch-norm statistics, and its name."""
    peers = theirs.state_dict()
    differences = {}
    for name, value in ours.state_dict().items():
        peer = peers[name.replace("backbone.model.", "backbone.")]
        differences[name] = float((value.float() - peer.float()).abs().max())
    name = max(differences, key=lambda key: differences[key])
    return differences[name], name
