"""Lock-step training against TransReID, and the ranking by what was trained; see `parity_transreid`."""

import sys
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backbones.backbone import create
from backbones.positions import fit_positions
from tasks.ranking.metrics import rank
from tasks.reid.task import ReidOptions
from tasks.reid.training import ReidLearner, ranked_features, train_loader
from tests.benchmarks.parity.checks import Check, draws_of_torch
from tests.benchmarks.parity.transreid_peer import Batch, Peer, Values, peer_name
from transfer.cli.command import Command
from transfer.core.seeding import seed_torch
from transfer.data.reid.dataset import ReidData
from transfer.engine.context import Context
from transfer.engine.step import Stepper

STEPS, EPOCHS = 20, 4
FEATURE_SCALE = 0.1
"""Of the last norm. At length sqrt(384) the triplet loss pulls random features into one point within a few steps, and
distances there lose their digits: rounding alone then moves the loss by 1e-4. Shorter ones stay apart."""


class Ours:
    """Our side of the training: the learner, its stepper, and what happened."""

    def __init__(self, peer: Peer, command: Command) -> None:
        self.options: ReidOptions = command.options
        self.context = Context(device=torch.device("cpu"), precision="fp32")
        shape = {"img_size": self.options.size, "drop_path": self.options.drop_path, **command.recipe_backbone}
        backbone = create(command.run.backbone, **command.backbone.overrides(), **shape)
        self.learner = ReidLearner(backbone, peer.classes, self.options)
        self.stepper = Stepper(self.learner, self.options, self.context)
        self.trace = SimpleNamespace(losses=[], rates=[])

    def batches(self, dataset: ReidData) -> list[list[Batch]]:
        """The batches of the first epochs, of images in [0, 1]."""
        loader = train_loader(dataset.files(dataset.train), self.learner.backbone, self.options, self.context)
        epochs: list[list[Batch]] = [[] for _ in range(EPOCHS)]
        for place, batch in loader.stream(0, 0, EPOCHS):
            if place.index < STEPS // EPOCHS:
                epochs[place.epoch].append(batch)
        return epochs

    def train(self, epochs: Sequence[Sequence[Batch]]) -> None:
        """Trains in place, with the random numbers of stochastic depth drawn as the peer draws them."""
        self.stepper.model.train()
        with draws_of_torch(floored=True):
            for epoch, batches in enumerate(epochs):
                time_of_epoch = self.stepper.schedule.clock(epoch, 0, len(batches))
                for batch in batches:
                    number = len(self.trace.losses) + 1
                    stats, _, _ = self.stepper.step(number, time_of_epoch, batch)
                    self.trace.losses.append(stats["loss"])
                    self.trace.rates.append(self.by_name("lr"))

    def by_name(self, key: str) -> Values:
        """`key` of the optimizer's group of each parameter, under the peer's names."""
        names = {parameter: peer_name(name) for name, parameter in self.learner.named_parameters()}
        groups = self.stepper.optimizer.param_groups
        return {names[parameter]: group[key] for group in groups for parameter in group["params"]}


def compare_training(peer: Peer, dataset: ReidData, command: Command) -> Iterator[Check]:
    """20 steps from equal weights on equal batches; then the features, and the ranking by them."""
    seed_torch(1)
    ours = Ours(peer, command)
    model = peer.model(ours.options.drop_path)
    nn.init.constant_(model.get_parameter("base.norm.weight"), FEATURE_SCALE)
    yield from _compare_initialisation(model.state_dict(), ours)
    state = model.state_dict()
    ours.learner.load_state_dict({name: state[peer_name(name)] for name in ours.learner.state_dict()})
    decays = {name: decay for name, decay in peer.decays(model).items() if not name.startswith("base.fc.")}
    yield Check("optimizer: weight decay of a parameter", _largest(ours.by_name("weight_decay"), decays), 0)

    epochs = ours.batches(dataset)
    start = time.monotonic()
    ours.train(epochs)
    middle = time.monotonic()
    trace = peer.train(model, epochs, lambda step: seed_torch(ours.context.seed, step, 0, 0))
    print(f"{STEPS} steps: ours {middle - start:.0f} s, theirs {time.monotonic() - middle:.0f} s", file=sys.stderr)

    losses = np.abs(np.subtract(ours.trace.losses, trace.losses))
    note = f"{STEPS} steps, {trace.losses[0]:.4f} to {trace.losses[-1]:.4f}, first difference {losses[0]:.1e}"
    yield Check("training: loss", float(losses.max()), 1e-4, note)
    pairs = zip(ours.trace.rates, trace.rates, strict=True)
    rates = [_largest(our, {name: their[name] for name in their if name in our}) for our, their in pairs]
    yield Check("training: rate of a parameter", max(rates), 1e-7, f"{len(ours.trace.rates[0])} parameters")
    state, own = model.state_dict(), ours.learner.state_dict()
    moved = max(float((own[name].double() - state[peer_name(name)].double()).abs().max()) for name in own)
    yield Check("training: parameters and statistics at the end", moved, 1e-5)
    yield from _compare_ranking(peer, dataset, model, ours)


def compare_positions(peer: Peer, command: Command) -> Iterator[Check]:
    """A table of 14 x 14 places, as released ViTs have it, on the grid of the recipe's images."""
    model: Any = Ours(peer, command).learner.backbone.model
    table = torch.randn(1, 197, model.embed_dim)
    ours = fit_positions({"cls_token": model.cls_token, "pos_embed": table}, model, (14, 14))["pos_embed"]
    theirs = peer.positions(table, model.pos_embed, model.patch_embed.grid_size)
    yield Check("positions: 14 x 14 on 16 x 8", float((ours - theirs).abs().max()), 1e-6)


def _largest(ours: Values, theirs: Values) -> float:
    """The largest difference; infinite if names differ."""
    if ours.keys() != theirs.keys():
        return float("inf")
    return max(abs(ours[name] - theirs[name]) for name in ours)


def _compare_initialisation(state: dict[str, Tensor], ours: Ours) -> Iterator[Check]:
    """What a released backbone leaves to chance, and that nothing but the peer's unused classifier is missing."""
    own = ours.learner.state_dict()
    left = set(state) ^ {peer_name(name) for name in own} ^ {"base.fc.weight", "base.fc.bias"}
    yield Check("model: names of parameters and buffers", len(left), 0, ", ".join(sorted(left)))
    stds = float(own["neck.classifier.weight"].std()), float(state["classifier.weight"].std())
    yield Check("model: deviation of the new classifier", abs(stds[0] - stds[1]), 3e-5, f"{stds[1]:.6f}")


def _compare_ranking(peer: Peer, dataset: ReidData, model: nn.Module, ours: Ours) -> Iterator[Check]:
    features = _their_features(peer, model)
    identities = np.array([identity for _, identity, _, _ in peer.test_set.dataset])
    cameras = np.array([camera for _, _, camera, _ in peer.test_set.dataset])
    split = peer.queries
    labels = [half for values in (identities, cameras) for half in (values[:split], values[split:])]

    ours.learner.eval()
    samples = [*dataset.query, *dataset.gallery]
    own = ranked_features(ours.learner, dataset.files(samples), ours.options, ours.context, "features")
    cmc, mean_ap, ranked = peer.rank(features, identities, cameras)
    yield Check("ranking: normalised features after training", float((own - ranked).abs().max()), 1e-4)

    each = rank(own[:split], own[split:], *labels)
    yield Check("ranking: mAP, each side's features", abs(each.mAP - mean_ap), 1e-3, f"{mean_ap:.6f}")
    # In fp32 each side rounds distances in its own way, and so orders near ties in its own way.
    cmc, mean_ap, ranked = peer.rank(features.double(), identities, cameras)
    same = rank(ranked[:split], ranked[split:], *labels)
    yield Check("ranking: mAP, the same features", abs(same.mAP - mean_ap), 1e-12, f"{mean_ap:.6f}")
    difference = float(np.abs(same.cmc - cmc).max())
    yield Check("ranking: CMC, the same features", difference, 1e-6, f"ranks 1 to {len(cmc)}, theirs in fp32")


@torch.no_grad()
def _their_features(peer: Peer, model: nn.Module) -> Tensor:
    """The peer's features [M, D] of its test images, read by itself."""
    model.eval()
    images = torch.utils.data.DataLoader(peer.test_set, batch_size=64, collate_fn=_images)
    return torch.cat([model(batch) for batch in images])


def _images(items: list[tuple[Tensor, int, int, int, str]]) -> Tensor:
    return torch.stack([item[0] for item in items])
