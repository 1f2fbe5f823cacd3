"""Lock-step parity of the `deit` recipe with the repository of DeiT (arXiv 2012.12877).

    git clone https://github.com/facebookresearch/deit CHECKOUT
    python -m tests.benchmarks parity_deit --checkout CHECKOUT

Equal weights, batches and random numbers go through the peer's own code and ours: a small ViT with the recipe's mixup,
cutmix, stochastic depth, smoothing and average of weights, fp32, 20 steps in the first 5 of 300 epochs. Prints what was
compared; exits with 1 where a difference is above its limit. The recipe is `configs/pretrain/deit.yaml`, whose schedule
stands at 1e-6 for two epochs; a second training, past the warm-up, takes 20 steps at the full rate.

Not compared, because the two differ on purpose: which random numbers shuffle images and erase boxes, the peer's fp16.

Needs facebookresearch/deit.
"""

import copy
import importlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.pretrain.supervised.method import SupervisedOptions
from backbones.pretrain.supervised.training import SupervisedLearner
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.backbones.pretrain.test_augment import picture
from tests.benchmarks.options import read
from tests.benchmarks.parity import checks
from tests.benchmarks.parity.checks import Check
from tests.support import command
from transfer.data.loading.augment import eval_transform, train_transform
from transfer.data.loading.loader import repeated_batches

MODULES = ("main", "engine", "losses", "samplers", "datasets", "models", "utils")

Batch = tuple[Tensor, Tensor]


class Peer:
    """The peer's modules, and its options as its own parser gives them, at the batch of its DeiT-S run.

    Attributes:
        args: its options; `lr` is the one it trains with.

    Raises:
        UserError: `checkout` is not the peer's repository.
    """

    def __init__(self, checkout: Path) -> None:
        # DeiT III's augmentation imports what timm no longer has; the recipe of DeiT does not use it.
        augment = {"augment": {"new_data_aug_generator": None}}
        with checks.importing(checkout, "samplers.py", "facebookresearch/deit", MODULES, augment):
            self.modules: dict[str, Any] = {name: importlib.import_module(name) for name in MODULES}
        self.args = self.modules["main"].get_args_parser().parse_args([])
        # main.py: the flag, times the batch of a GPU, times the GPUs, by 512; README_deit.md: 4 GPUs with 256 each
        self.args.lr *= 256 * 4 / 512

    def model(self) -> Any:
        """DeiT's model in another size."""
        return self.modules["models"].VisionTransformer(
            img_size=SIZE, patch_size=16, embed_dim=DIM, depth=DEPTH, num_heads=HEADS, mlp_ratio=4, qkv_bias=True,
            norm_layer=partial(nn.LayerNorm, eps=1e-6), num_classes=CLASSES,
            drop_rate=self.args.drop, drop_path_rate=self.args.drop_path,
        )  # fmt: skip

    def optimizer(self, model: nn.Module) -> tuple[Any, Any]:
        """Its optimizer and schedule."""
        optimizer = self.modules["main"].create_optimizer(self.args, model)
        return optimizer, self.modules["main"].create_scheduler(self.args, optimizer)[0]

    def train(self, model: nn.Module, epochs: Sequence[Sequence[Batch]]) -> tuple[checks.Noted, dict[str, Tensor]]:
        """Trains in place with the peer's own loop; what its loss was, and the averaged weights.

        Args:
            epochs: the batches of each epoch: images in [0, 1], labels.
        """
        import timm.utils
        from timm.data import Mixup
        from timm.loss import SoftTargetCrossEntropy

        args = self.args
        optimizer, scheduler = self.optimizer(model)
        average = timm.utils.ModelEma(model, decay=args.model_ema_decay)
        mixup = Mixup(
            args.mixup, args.cutmix, args.cutmix_minmax, args.mixup_prob, args.mixup_switch_prob, args.mixup_mode,
            label_smoothing=args.smoothing, num_classes=CLASSES,
        )  # fmt: skip
        criterion = self.modules["losses"].DistillationLoss(SoftTargetCrossEntropy(), None, "none", 0, 0)
        noted = checks.Noted(criterion, optimizer)
        loop, scaler = self.modules["engine"].train_one_epoch, timm.utils.NativeScaler()
        loader = checks.Batches([[(checks.normalised(x), y) for x, y in batches] for batches in epochs])
        with mock.patch.object(torch.cuda, "synchronize"):
            for epoch in range(len(epochs)):
                loop(
                    model, noted, loader, optimizer, torch.device("cpu"), epoch, scaler, args.clip_grad, average, mixup,
                    set_training_mode=args.train_mode, args=args,
                )  # fmt: skip
                scheduler.step(epoch)
        return noted, average.ema.state_dict()


SIZE, DIM, DEPTH, HEADS, CLASSES = 64, 192, 3, 3, 10
BATCH, EPOCHS, STEPS, DRAWS = 16, 5, 4, 200


def main(argv: Sequence[str]) -> int:
    """Compares everything; the exit status."""
    peer = Peer(read(argv, __doc__, checkout=Path).checkout)
    options = command("deit", "--backbone", "vit_ti", "--precision", "fp32").options
    return checks.report(compare(peer, options))


def compare(peer: Peer, options: SupervisedOptions) -> Iterator[Check]:
    """Everything."""
    for part in (compare_schedules, compare_samplers, compare_images):
        yield from part(peer, options)
    yield from compare_training(peer, options, "warm-up")
    # From the first step on at the full rate: only then do the losses move.
    peer.args.warmup_epochs, peer.args.sched = 0, "cosine"
    yield from compare_training(peer, replace(options, warmup_epochs=0), "full rate")


def compare_schedules(peer: Peer, options: SupervisedOptions) -> Iterator[Check]:
    """The rates over the whole recipe, and the weight decay of each parameter."""
    theirs = list[float]()
    optimizer, scheduler = peer.optimizer(nn.Linear(2, 2))
    for epoch in range(peer.args.epochs):  # as its loop sets them
        theirs.append(float(optimizer.param_groups[0]["lr"]))
        scheduler.step(epoch)
    yield checks.compared_rates("rate", options, options.lr, theirs)
    model, learner = peer.model(), our_learner(options)
    pairs = {learner.backbone.model: learner.parameter_groups(options), model: peer.optimizer(model)[0].param_groups}
    decays = [checks.by_parameter(one, groups, "weight_decay") for one, groups in pairs.items()]
    yield Check("weight decay of each parameter", checks.furthest(*decays), 0, f"{len(decays[0])} parameters")


def compare_samplers(peer: Peer, options: SupervisedOptions) -> Iterator[Check]:
    """Repeated augmentation, whose generators differ: how often images come in an epoch, and where."""
    ranks, images, batch = 8, 10_000, 1024
    share = batch // ranks
    # Its loader leaves out what does not fill a batch.
    sampler = partial(peer.modules["samplers"].RASampler, range(images), num_replicas=ranks, shuffle=True)
    orders = [[*sampler(rank=rank)] for rank in range(ranks)]
    theirs = [order[: len(order) // share * share] for order in orders]
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
    without, build = copy.copy(peer.args), peer.modules["datasets"].build_transform
    without.reprob = 0.0
    pairs = {
        "augmentation": (train_transform(224, replace(options, erase=0.0), IMAGENET_MEAN, IMAGENET_STD), True),
        "evaluation": (eval_transform(224, options.resize), False),
    }
    for name, (ours, training) in pairs.items():
        images = (picture(200 + seed, 400 - seed, seed) for seed in range(DRAWS))
        yield checks.compared_views(name, images, ours, build(training, without))


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
        labels = torch.randint(CLASSES, (STEPS, BATCH), generator=generator)
        noise = torch.rand(STEPS, BATCH, 3, SIZE, SIZE, generator=generator)
        epochs.append([*zip((colors[labels] + noise) / 2, labels)])
    return epochs


def compare_training(peer: Peer, options: SupervisedOptions, title: str) -> Iterator[Check]:
    """Losses, rates, weights and averaged weights over 20 steps."""
    learner, model = our_learner(options), peer.model()
    model.load_state_dict(learner.backbone.model.state_dict())
    epochs = batches()
    theirs, averages = peer.train(model, epochs)
    yield from theirs.compared(title, checks.trained(learner, options, epochs), "loss", "lr")
    averaged: Any = learner.average
    yield Check(f"{title}: weights", checks.furthest(learner.backbone.model.state_dict(), model.state_dict()), 1e-3)
    yield Check(f"{title}: averaged weights", checks.furthest(averaged.module.model.state_dict(), averages), 1e-6)
