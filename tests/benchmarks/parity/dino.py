"""Lock-step parity of the DINO recipe with the repository of the paper (arXiv 2104.14294).

    git clone https://github.com/facebookresearch/dino CHECKOUT
    python -m tests.benchmarks parity_dino --checkout CHECKOUT

Equal weights, crops and random numbers go through the peer's own loop and ours: a small ViT, with patchify and with a
conv stem (batch norm), fp32, 20 steps in 5 epochs, in which the last layer is frozen for one and the teacher's
temperature warms up for three. The recipe is `configs/pretrain/dino.yaml` but for these sizes. Prints what was
compared; exits with 1 where a difference is above its limit. It takes a minute on two cores.

Positions are resampled for the local crops by each side itself. Our stochastic depth is drawn as the peer's is. Not
compared, because the two differ on purpose: the peer's fp16.

Needs facebookresearch/dino.
"""

import importlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from backbones.backbone import create
from backbones.pretrain.dino.method import DinoOptions
from backbones.pretrain.dino.multicrop import MultiCrop
from backbones.pretrain.dino.training import DinoLearner, Network
from tests.backbones.pretrain.test_augment import picture
from tests.benchmarks.options import read
from tests.benchmarks.parity import checks
from tests.benchmarks.parity.checks import Check
from tests.support import command
from transfer.engine.schedule import Schedule

ROOMS = ("utils", "vision_transformer", "main_dino")
Crops = list[Tensor]


class Peer:
    """The peer's modules, and the pair of networks, loss and optimizer that its `train_dino` makes.

    Args:
        checkout: of the peer's repository.
        options: ours; the peer gets the same values.
        steps: per epoch.

    Raises:
        UserError: `checkout` is not the peer's repository.
    """

    def __init__(self, checkout: Path, options: DinoOptions, steps: int) -> None:
        with checks.importing(checkout, "main_dino.py", "facebookresearch/dino", ROOMS, {}):
            self.modules = {name: importlib.import_module(name) for name in ROOMS}
        self.options = options
        schedule = self.modules["utils"].cosine_scheduler
        epochs, o = options.epochs, options
        self.rates = schedule(o.lr, o.cosine_end, epochs, steps, warmup_epochs=int(o.warmup_epochs))
        self.decays = schedule(o.weight_decay, o.weight_decay_end, epochs, steps)
        self.momenta = schedule(o.teacher_momentum, 1, epochs, steps)

    def network(self, dim: int, depth: int, heads: int, patch: int, drop: float, norm_last_layer: bool) -> Any:
        """A vision transformer with its head, as the peer wraps them."""
        vit = self.modules["vision_transformer"].VisionTransformer(
            img_size=[self.options.size], patch_size=patch, embed_dim=dim, depth=depth, num_heads=heads, qkv_bias=True,
            norm_layer=lambda width: nn.LayerNorm(width, eps=1e-6), drop_path_rate=drop,
        )  # fmt: skip
        made = self.modules["vision_transformer"].DINOHead
        head = made(dim, self.options.out_dim, norm_last_layer=norm_last_layer)
        return self.modules["utils"].MultiCropWrapper(vit, head)

    def loss(self) -> Any:
        """Its criterion, with the center."""
        o = self.options
        return self.modules["main_dino"].DINOLoss(
            o.out_dim, 2 + o.local_crops, o.warmup_teacher_temp, o.teacher_temp, o.warmup_teacher_temp_epochs,
            o.epochs, o.student_temp, o.center_momentum,
        )  # fmt: skip

    def train(
        self, student: Any, teacher: Any, epochs: Sequence[Sequence[tuple[Crops, Tensor]]]
    ) -> tuple[checks.Noted, Tensor]:
        """Trains in place with the peer's own loop; what its loss was, and the center.

        Args:
            epochs: the crops of every step, in [0, 1].
        """
        criterion = self.loss()
        optimizer = torch.optim.AdamW(self.modules["utils"].get_params_groups(student), foreach=False)
        noted, arguments = checks.Noted(criterion, optimizer), SimpleNamespace(**vars(self.options))
        crops = [[([checks.normalised(crop) for crop in step], labels) for step, labels in steps] for steps in epochs]
        loader = checks.Batches(crops)
        alone = SimpleNamespace(all_reduce=lambda center: center, get_world_size=lambda: 1)
        with (
            mock.patch.object(self.modules["main_dino"], "dist", alone),
            mock.patch.object(self.modules["utils"].MetricLogger, "synchronize_between_processes"),
            mock.patch.object(Tensor, "cuda", lambda tensor, **_: tensor),
            mock.patch.object(torch.cuda, "synchronize"),
        ):
            for epoch in range(len(epochs)):
                self.modules["main_dino"].train_one_epoch(
                    nn.DataParallel(student), teacher, teacher, noted, loader, optimizer, self.rates, self.decays,
                    self.momenta, epoch, None, arguments,
                )  # fmt: skip
        return noted, criterion.center[0]


EPOCHS, STEPS, BATCH, PATCH = 5, 4, 8, 8
SMALL = [
    *("--size", "64", "--local-size", "32", "--local-crops", "4", "--out-dim", "1024", "--batch-size", str(BATCH)),
    *("--epochs", str(EPOCHS), "--warmup-epochs", "2", "--precision", "fp32", "--no-sync-bn"),
    *("--warmup-teacher-temp-epochs", "3", "--teacher-temp", "0.07"),
]


def main(argv: Sequence[str]) -> int:
    """Compares everything; the exit status."""
    checkout = read(argv, __doc__, checkout=Path).checkout
    kinds = itertools.product(("patchify", "conv"), (False, True))
    parts = (compare_training(checkout, stem, free) for stem, free in kinds)
    return checks.report(itertools.chain(compare_schedules(checkout), compare_crops(checkout), *parts))


def recipe(*words: str) -> DinoOptions:
    """The shipped recipe with some values replaced."""
    return command("dino", "--backbone", "tiny", *words).options


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
    made = Peer(checkout, options, 1).modules["main_dino"].DataAugmentationDINO
    theirs = made(options.global_area, options.local_area, options.local_crops)
    images = (picture(375, 300, seed) for seed in range(20))
    yield checks.compared_views(f"{options.local_crops + 2} crops", images, MultiCrop(options), theirs)


def compare_training(checkout: Path, stem: str, free: bool) -> Iterator[Check]:
    """20 steps; `free`: with a last layer whose norms are trained."""
    options = recipe(*SMALL, "--norm-last-layer" if not free else "--no-norm-last-layer")
    name = f"{stem}{', free norms' if free else ''}"
    peer, learner = Peer(checkout, options, STEPS), make_learner(options, stem, STEPS)
    epochs = [[random_crops(epoch * STEPS + step, options) for step in range(STEPS)] for epoch in range(EPOCHS)]
    networks = {kind: copy_of(peer, learner, kind, stem, free) for kind in ("student", "teacher")}
    theirs, center = peer.train(**networks, epochs=epochs)
    yield from theirs.compared(name, checks.trained(learner, options, epochs, floored=True))
    yield Check(f"{name}: center", float((learner.center - center).abs().max()), 1e-5)
    for kind, network in networks.items():
        difference = checks.furthest(peer_names(getattr(learner, kind)), network.state_dict())
        # AdamW blows up rounding in gradients near zero, as those of weights before a batch norm are
        yield Check(f"{name}: {kind} at the end", difference, 1e-3)


def peer_names(ours: Network) -> dict[str, Tensor]:
    """Our state under the peer's names, which are timm's but for the weight norm's."""
    state = {name.replace("backbone.model.", "backbone."): value for name, value in ours.state_dict().items()}
    return {"head.last_layer.weight_g": torch.ones(len(state["head.last_layer.weight_v"]), 1), **state}


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
    theirs.load_state_dict(peer_names(ours))
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
    shape["pos_embed_interp"] = command("dino", "--backbone", "tiny").resolved(from_scratch=True).pos_embed_interp
    return DinoLearner(create("tiny", drop_path=options.drop_path, **shape), create("tiny", **shape), options, steps)


def random_crops(step: int, options: DinoOptions) -> tuple[Crops, Tensor]:
    """Smooth noise in [0, 1], in the crops' sizes, and labels that are of no use."""
    generator = torch.Generator().manual_seed(step)
    sizes = [options.size] * 2 + [options.local_size] * options.local_crops
    coarse = [torch.rand(BATCH, 3, 5, 5, generator=generator) for _ in sizes]
    crops = [nn.functional.interpolate(c, size=size, mode="bilinear") for c, size in zip(coarse, sizes)]
    return crops, torch.zeros(BATCH)
