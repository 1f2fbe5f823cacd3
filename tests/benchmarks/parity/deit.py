"""Lock-step parity of the `deit` recipe with the repository of DeiT (arXiv 2012.12877).

    git clone https://github.com/facebookresearch/deit CHECKOUT
    python -m tests.benchmarks parity_deit --checkout CHECKOUT

Equal weights, batches and random numbers go through the peer's own code and ours: a small ViT with the recipe's mixup,
cutmix, stochastic depth, smoothing and average of weights, fp32, 20 steps in the first 5 of 300 epochs. Prints what was
compared; exits with 1 where a difference is above its limit. The recipe is `configs/pretrain/deit.yaml`, whose schedule
stands at 1e-6 for two epochs; a second training, past the warm-up, takes 20 steps at the full rate.

Not compared, because the two differ on purpose: which random numbers shuffle images and erase boxes, the peer's fp16.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from backbones.backbone import Backbone, create
from backbones.pretrain.supervised.learner import SupervisedLearner
from backbones.pretrain.supervised.method import METHOD, SupervisedOptions
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.benchmarks.parity.checks import Check, checkout_parser, draws_of_torch, normalised, report
from tests.benchmarks.parity.deit_peer import Batch, Peer
from transfer.cli.command import read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe import pretraining_recipe
from transfer.core.seeding import key_seed
from transfer.data.loading.augment import eval_transform, train_transform
from transfer.data.loading.loader import repeated_batches
from transfer.engine.context import Context
from transfer.engine.schedule import Schedule
from transfer.engine.step import Stepper

SIZE, DIM, DEPTH, HEADS, CLASSES = 64, 192, 3, 3, 10
BATCH, EPOCHS, STEPS, DRAWS = 16, 5, 4, 200


def main(argv: Sequence[str] | None = None) -> int:
    """Compares everything; the exit status."""
    peer = Peer(checkout_parser(__doc__).parse_args(argv).checkout)
    recipe = ["--backbone", "vit_ti", "--precision", "fp32"]
    options = read_command(pretraining_recipe("deit"), METHOD.options, recipe, PretrainRunOptions).options
    checks = [*compare_schedules(peer, options), *compare_samplers(peer, options), *compare_images(peer, options)]
    checks += compare_training(peer, options, "warm-up")
    # From the first step on at the full rate: only then do the losses move.
    peer.args.warmup_epochs, peer.args.sched = 0, "cosine"
    checks += compare_training(peer, replace(options, warmup_epochs=0), "full rate")
    return report(checks)


def compare_schedules(peer: Peer, options: SupervisedOptions) -> Iterator[Check]:
    """The rates over the whole recipe, and the weight decay of each parameter."""
    schedule, theirs = Schedule(options), peer.schedule()
    ours = [schedule.rate(schedule.clock(epoch, 0, 1), options.lr) for epoch in range(options.epochs)]
    yield Check("schedule: epochs", abs(len(ours) - len(theirs)), 0)
    difference = max(abs(a - b) for a, b in zip(ours, theirs))
    yield Check("schedule: rate", difference, 1e-7, f"{len(ours)} epochs, peak {max(ours):.6f}")
    model, learner = peer.model(SIZE, DIM, DEPTH, HEADS, CLASSES), our_learner(options)
    decays, names = peer.decays(model), {p: name for name, p in learner.named_parameters()}
    difference, count = 0.0, len(decays)
    for group in learner.parameter_groups(options):
        for parameter in group["params"]:
            theirs_here = decays.pop(names[parameter].removeprefix("backbone.model."))
            difference = max(difference, abs(group["weight_decay"] - theirs_here))
    yield Check("weight decay of each parameter", difference + len(decays), 0, f"{count} parameters")


def compare_samplers(peer: Peer, options: SupervisedOptions) -> Iterator[Check]:
    """Repeated augmentation, whose generators differ: how often images come in an epoch, and where."""
    ranks, images, batch = 8, 10_000, 1024
    share = batch // ranks
    # Its loader leaves out what does not fill a batch.
    theirs = [order[: len(order) // share * share] for order in peer.epoch(images, ranks)]
    ours = repeated_batches(images, batch, repeats=options.repeats, seed=0, epoch=0)
    sizes = [sum(map(len, side)) for side in (theirs, ours)]
    yield Check("sampler: images of an epoch", abs(sizes[0] - sizes[1]), 0, f"{sizes[0]} of {images}")
    copies = [Counter(Counter(itertools.chain.from_iterable(side)).values()) for side in (theirs, ours)]
    yield Check("sampler: images by number of copies", sum((copies[0] - copies[1]).values()), 0, f"{dict(copies[0])}")
    shares = [[part[rank * share :][:share] for part in ours] for rank in range(ranks)]
    together = [_together(theirs, share), sum(_together(parts, share) for parts in shares)]
    yield Check("sampler: copies of an image in one rank's part of a batch", abs(together[0] - together[1]), 0)


def _together(orders: Sequence[Sequence[int]], share: int) -> int:
    parts = [order[start : start + share] for order in orders for start in range(0, len(order), share)]
    return sum(len(part) - len({*part}) for part in parts)


def compare_images(peer: Peer, options: SupervisedOptions) -> Iterator[Check]:
    """Augmented images from equal seeds, without erasing, and evaluated images, both as normalised."""
    ours = train_transform(224, replace(options, erase=0.0), IMAGENET_MEAN, IMAGENET_STD)
    theirs = peer.transform(erasing=False)
    largest = 0.0
    for seed in range(DRAWS):
        image, sides = picture(seed), []
        for transform in (ours, theirs):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002 (timm draws from it)
            torch.manual_seed(seed)
            sides.append(transform(image))
        largest = max(largest, float((normalised(sides[0], IMAGENET_MEAN, IMAGENET_STD) - sides[1]).abs().max()))
    yield Check("images: augmentation", largest, 1e-5, f"{DRAWS} draws")
    ours, theirs = eval_transform(224, options.resize), peer.eval_transform()
    views = [(ours(picture(seed)), theirs(picture(seed))) for seed in range(20)]
    pairs = [(normalised(a, IMAGENET_MEAN, IMAGENET_STD), b) for a, b in views]
    yield Check("images: evaluation", max(float((a - b).abs().max()) for a, b in pairs), 1e-5)


def picture(seed: int) -> Image.Image:
    """Noise that is smooth enough to be resized, of a size of its own."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
    width, height = rng.integers(200, 400, 2).tolist()
    return Image.fromarray(pixels).resize((width, height))


def our_learner(options: SupervisedOptions) -> SupervisedLearner:
    """Our side's model in the recipe's learner."""
    torch.manual_seed(0)
    shape = {"depth": DEPTH, "img_size": SIZE, "classes": CLASSES}
    backbone: Backbone = create("vit_ti", weights="random", drop_path=options.drop_path, **shape)
    return SupervisedLearner(backbone, torch.full((CLASSES,), 1 / CLASSES), options, seed=0)


def batches() -> list[list[Batch]]:
    """Images whose mean color tells their class, so that there is something to learn."""
    generator = torch.Generator().manual_seed(0)
    colors = torch.rand(CLASSES, 3, 1, 1, generator=generator)
    epochs = []
    for _ in range(EPOCHS):
        labels = [torch.randint(CLASSES, (BATCH,), generator=generator) for _ in range(STEPS)]
        noise = torch.rand(STEPS, BATCH, 3, SIZE, SIZE, generator=generator)
        epochs.append([((colors[y] + noise[step]) / 2, y) for step, y in enumerate(labels)])
    return epochs


def seed_step(number: int) -> None:
    """What our step seeds: torch from (seed, step, micro-batch, rank), and mixup from torch's seed."""
    torch.manual_seed(key_seed(0, number, 0, 0))
    np.random.seed(key_seed(torch.initial_seed()) % 2**32)  # noqa: NPY002 (timm's mixup draws from it)


def compare_training(peer: Peer, options: SupervisedOptions, title: str) -> Iterator[Check]:
    """Losses, rates, weights and averaged weights over 20 steps."""
    learner = our_learner(options)
    model = peer.model(SIZE, DIM, DEPTH, HEADS, CLASSES)
    model.load_state_dict(learner.backbone.model.state_dict())
    epochs = batches()
    losses, rates, averages = peer.train(model, CLASSES, epochs, seed_step)
    stepper = Stepper(learner, options, Context(torch.device("cpu"), "fp32"))
    stepper.model.train()
    steps: list[dict[str, float]] = []
    for epoch, batches_here in enumerate(epochs):
        for index, batch in enumerate(batches_here):
            moment = stepper.schedule.clock(epoch, index, STEPS)
            with draws_of_torch():
                steps.append(stepper.step(len(steps) + 1, moment, batch, STEPS)[0])
    note = f"{losses[0]:.4f} to {losses[-1]:.4f}"
    difference = max(abs(step["loss"] - loss) for step, loss in zip(steps, losses, strict=True))
    yield Check(f"{title}: loss of {len(losses)} steps", difference, 1e-4, note)
    yield Check(f"{title}: rate", max(abs(step["lr"] - rate) for step, rate in zip(steps, rates)), 1e-7)
    averaged: Any = learner.average
    yield Check(f"{title}: weights", furthest(learner.backbone.model.state_dict(), model.state_dict()), 1e-3)
    yield Check(f"{title}: averaged weights", furthest(averaged.model.model.state_dict(), averages), 1e-6)


def furthest(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of any entry."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
