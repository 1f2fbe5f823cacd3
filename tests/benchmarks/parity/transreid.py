"""Lock-step parity of the re-identification recipe with TransReID's ViT baseline (arXiv 2102.04378).

    pip install yacs
    git clone https://github.com/damo-cv/TransReID CHECKOUT
    python -m tests.benchmarks parity_transreid --checkout CHECKOUT

Equal weights, batches and random numbers go through the peer's own code and ours: DeiT-S at 256 x 128 pixels, 16 x 4
images of drawn people, fp32, 20 steps in the first 4 of 120 epochs. Prints what was compared; exits with 1 where a
difference is above its limit. The recipe is `configs/tasks/reid.yaml` with the peer's rate and its pixel statistics.

It takes 20 minutes on two cores.

Not compared, because the two differ on purpose: which random numbers shuffle identities, how ties in a ranking are
scored (by luck there), and the peer's fp16.

Needs damo-cv/TransReID and yacs.
"""

import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backbones.backbone import create
from backbones.positions import fit_positions
from tasks.ranking.metrics import rank
from tasks.reid.task import ReidOptions
from tasks.reid.training import ReidLearner, features, train_loader
from tests.benchmarks.options import read
from tests.benchmarks.parity.checks import Check, draws_of_torch, furthest, normalised, report, views
from tests.benchmarks.parity.transreid_peer import PIXELS, Batch, Peer, Values, peer_name
from tests.support import command
from transfer.cli.command import Command
from transfer.core.seeding import seed_torch
from transfer.data.loading.images import erased, reid_test_transform, reid_train_transform
from transfer.data.loading.loader import pk_batches
from transfer.data.loading.read_image import read_image
from transfer.data.reid.dataset import ReidData, open_reid
from transfer.data.reid.market1501 import Sample
from transfer.data.spec import resolve_dataset
from transfer.engine.context import Context
from transfer.engine.schedule import Schedule
from transfer.engine.step import Stepper

STEPS, EPOCHS = 20, 4
FEATURE_SCALE = 0.1
"""Of the last norm. At length sqrt(384) the triplet loss pulls random features into one point within a few steps, and
distances there lose their digits: rounding alone then moves the loss by 1e-4. Shorter ones stay apart."""


class Ours:
    """Our side of the training: the learner, its stepper, and what happened."""

    def __init__(self, peer: Peer, recipe: Command) -> None:
        self.options: ReidOptions = recipe.options
        self.context = Context(device=torch.device("cpu"), precision="fp32")
        shape = {"img_size": self.options.size, "drop_path": self.options.drop_path, **recipe.recipe_backbone}
        backbone = create(recipe.run.backbone, **recipe.backbone.overrides(), **shape)
        self.learner = ReidLearner(backbone, peer.classes, self.options)
        self.stepper = Stepper(self.learner, self.options, self.context)
        self.trace = SimpleNamespace(losses=[], rates=[])

    def batches(self, dataset: ReidData) -> list[list[Batch]]:
        """The batches of the first epochs."""
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
                    stats, _, _ = self.stepper.step(number, time_of_epoch, batch).read()
                    self.trace.losses.append(stats["loss"])
                    self.trace.rates.append(self.by_name("lr"))

    def by_name(self, key: str) -> Values:
        """`key` of the optimizer's group of each parameter, under the peer's names."""
        names = {parameter: peer_name(name) for name, parameter in self.learner.named_parameters()}
        groups = self.stepper.optimizer.param_groups
        return {names[parameter]: group[key] for group in groups for parameter in group["params"]}


def compare_training(peer: Peer, dataset: ReidData, recipe: Command) -> Iterator[Check]:
    """20 steps from equal weights on equal batches; then the features, and the ranking by them."""
    seed_torch(1)
    ours = Ours(peer, recipe)
    model = peer.model(ours.options.drop_path)
    nn.init.constant_(model.get_parameter("base.norm.weight"), FEATURE_SCALE)
    yield from _compare_initialisation(model.state_dict(), ours)
    state = model.state_dict()
    ours.learner.load_state_dict({name: state[peer_name(name)] for name in ours.learner.state_dict()})
    decays = {name: decay for name, decay in peer.decays(model).items() if not name.startswith("base.fc.")}
    yield Check("optimizer: weight decay of a parameter", furthest(ours.by_name("weight_decay"), decays), 0)

    epochs = ours.batches(dataset)
    start = time.monotonic()
    ours.train(epochs)
    middle = time.monotonic()
    prepared = [[ours.learner.prepare(batch, ours.context.device) for batch in epoch] for epoch in epochs]
    trace = peer.train(model, prepared, lambda step: seed_torch(ours.context.seed, step, 0, 0))
    print(f"{STEPS} steps: ours {middle - start:.0f} s, theirs {time.monotonic() - middle:.0f} s", file=sys.stderr)

    losses = np.abs(np.subtract(ours.trace.losses, trace.losses))
    note = f"{STEPS} steps, {trace.losses[0]:.4f} to {trace.losses[-1]:.4f}, first difference {losses[0]:.1e}"
    yield Check("training: loss", float(losses.max()), 1e-4, note)
    pairs = zip(ours.trace.rates, trace.rates, strict=True)
    rates = [furthest(our, {name: their[name] for name in their if name in our}) for our, their in pairs]
    yield Check("training: rate of a parameter", max(rates), 1e-7, f"{len(ours.trace.rates[0])} parameters")
    state, own = model.state_dict(), ours.learner.state_dict()
    moved = max(float((own[name].double() - state[peer_name(name)].double()).abs().max()) for name in own)
    yield Check("training: parameters and statistics at the end", moved, 1e-5)
    yield from _compare_ranking(peer, dataset, model, ours)


def compare_positions(peer: Peer, recipe: Command) -> Iterator[Check]:
    """A table of 14 x 14 places, as released ViTs have it, on the grid of the recipe's images."""
    model: Any = Ours(peer, recipe).learner.backbone.model
    table = torch.randn(1, 197, model.embed_dim)
    ours = fit_positions({"cls_token": model.cls_token, "pos_embed": table}, model, (14, 14))["pos_embed"]
    theirs = peer.positions(table, model.pos_embed, model.patch_embed.grid_size)
    yield Check("positions: 14 x 14 on 16 x 8", float((ours - theirs).abs().max()), 1e-6)


def _compare_initialisation(state: dict[str, Tensor], ours: Ours) -> Iterator[Check]:
    """What a released backbone leaves to chance, and that nothing but the peer's unused classifier is missing."""
    own = ours.learner.state_dict()
    left = set(state) ^ {peer_name(name) for name in own} ^ {"base.fc.weight", "base.fc.bias"}
    yield Check("model: names of parameters and buffers", len(left), 0, ", ".join(sorted(left)))
    stds = float(own["neck.classifier.weight"].std()), float(state["classifier.weight"].std())
    yield Check("model: deviation of the new classifier", abs(stds[0] - stds[1]), 3e-5, f"{stds[1]:.6f}")


def _compare_ranking(peer: Peer, dataset: ReidData, model: nn.Module, ours: Ours) -> Iterator[Check]:
    theirs = _their_features(peer, model)
    identities = np.array([identity for _, identity, _, _ in peer.test_set.dataset])
    cameras = np.array([camera for _, _, camera, _ in peer.test_set.dataset])
    split = peer.queries
    labels = [half for values in (identities, cameras) for half in (values[:split], values[split:])]

    ours.learner.eval()
    samples = [*dataset.query, *dataset.gallery]
    own = features(ours.learner, dataset.files(samples), ours.options, ours.context)
    cmc, mean_ap, ranked = peer.rank(theirs, identities, cameras)
    yield Check("ranking: normalised features after training", float((own - ranked).abs().max()), 1e-4)

    each = rank(own[:split], own[split:], *labels)
    yield Check("ranking: mAP, each side's features", abs(each.mAP - mean_ap), 1e-3, f"{mean_ap:.6f}")
    # In fp32 each side rounds distances in its own way, and so orders near ties in its own way.
    cmc, mean_ap, ranked = peer.rank(theirs.double(), identities, cameras)
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


DRAWS = 500


def main(argv: Sequence[str]) -> int:
    """Compares everything; the exit status."""
    checkout = read(argv, __doc__, checkout=Path).checkout
    dataset = open_reid(resolve_dataset("toy_market"), None)
    peer = Peer(checkout, dataset.root)
    recipe = our_command(peer)
    options: ReidOptions = recipe.options
    checks, parts = [], [compare_data(peer, dataset), compare_samplers(peer, dataset, options)]
    parts += [compare_images(peer, dataset, options), compare_schedules(peer, options)]
    parts += [compare_positions(peer, recipe), compare_training(peer, dataset, recipe)]
    for check in itertools.chain(*parts):
        print(check.what, file=sys.stderr)
        checks.append(check)
    return report(checks)


def our_command(peer: Peer) -> Command:
    """The shipped recipe with DeiT-S, fp32, and what the peer's configuration says of rate and pixels."""
    pixels = [str(PIXELS)] * 3
    words = ["--backbone", "vit_s", "--weights", "random", "--dataset", "toy_market", "--precision", "fp32"]
    return command("reid", *words, "--mean", *pixels, "--std", *pixels, "--lr", str(peer.cfg.SOLVER.BASE_LR))


def compare_data(peer: Peer, dataset: ReidData) -> Iterator[Check]:
    """The same images in the same lists; identities and cameras equal up to their numbering."""
    ours = [dataset.train, [*dataset.query, *dataset.gallery]]
    theirs = [
        [Sample(str(path), *who) for path, *who, _ in images.dataset] for images in (peer.train_set, peer.test_set)
    ]
    for name, our, their in zip(("training", "query and gallery"), ours, theirs):
        wrong = len(our) - len(their) or sum(a.path != b.path for a, b in zip(our, their))
        for kind in ("identity", "camera"):
            pairs = {(getattr(a, kind), getattr(b, kind)) for a, b in zip(our, their)}
            wrong += 2 * len(pairs) - len({a for a, _ in pairs}) - len({b for _, b in pairs})
        yield Check(f"data: {name} lists, entries", abs(wrong), 0, f"{len(our)} images")
    yield Check("data: query images", abs(len(dataset.query) - peer.queries), 0)
    yield Check("data: training identities", abs(len({s.identity for s in dataset.train}) - peer.classes), 0)


def compare_samplers(peer: Peer, dataset: ReidData, options: ReidOptions) -> Iterator[Check]:
    """P x K batches, whose generators differ: their form, and how many there are in each of 20 epochs."""
    p, k = options.num_identities, options.num_instances
    uneven = [identity for identity in range(60) for _ in range(identity % 12 + 1)]
    for name, identities in (("drawn people", [s.identity for s in dataset.train]), ("1 to 12 images each", uneven)):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (the peer draws from it)
        theirs = [peer.batches(identities, p, k) for _ in range(20)]
        ours = [pk_batches(identities, p=p, k=k, seed=0, epoch=epoch) for epoch in range(20)]
        malformed = [_malformed(epoch, identities, p, k) for epoch in (*theirs, *ours)]
        yield Check(f"sampler: malformed batches, {name}", sum(malformed), 0, f"{p} identities x {k}")
        counts = [[len(epoch) for epoch in side] for side in (theirs, ours)]
        note = ", ".join(f"{who} {min(c)} to {max(c)}" for who, c in zip(("theirs", "ours"), counts))
        difference = abs(float(np.mean(counts[0]) - np.mean(counts[1])))
        yield Check(f"sampler: mean batches per epoch, {name}", difference, 0.5, note)


def _malformed(epoch: list[list[int]], identities: Sequence[int], p: int, k: int) -> int:
    """Batches that are not K images of each of P identities, and images used twice though their identity has K."""
    shapes = [sorted(Counter(identities[index] for index in batch).values()) for batch in epoch]
    images = Counter(identities)
    uses = Counter(index for batch in epoch for index in batch if images[identities[index]] >= k)
    return sum(shape != [k] * p for shape in shapes) + sum(count > 1 for count in uses.values())


def compare_images(peer: Peer, dataset: ReidData, options: ReidOptions) -> Iterator[Check]:
    """Augmented images from equal seeds, and test images, both as normalised."""
    pixels = [PIXELS] * 3
    given = {"flip": options.flip, "pad": options.pad, "erase": options.erase, "mean": pixels, "std": pixels}
    train = reid_train_transform(options.size, **given)  # type: ignore[arg-type]
    test = reid_test_transform(options.size)
    samples = list(itertools.islice(itertools.cycle(dataset.train), DRAWS))
    largest, changed, kept = 0.0, 0, []
    for seed, sample in enumerate(samples):
        theirs, (bytes_of, box, noise) = views(seed, read_image(sample.path), peer.train_set.transform, train)
        ours = normalised(erased(bytes_of[None], box[None], noise)[0], pixels, pixels)
        largest = max(largest, float((theirs - ours).abs().max()))
        changed += bool(ours.abs().max() > 1.001)
        kept.append((float(ours.mean()), float(ours.std())))
    mean, std = np.mean(kept, axis=0)
    note = f"{DRAWS} draws, {changed / DRAWS:.1%} erased, pixels of mean {mean:.3f} and deviation {std:.3f}"
    yield Check("images: augmentation", largest, 1e-5, note)
    difference = max(
        float((peer.test_set[index][0] - normalised(test(read_image(sample.path)), pixels, pixels)).abs().max())
        for index, sample in enumerate([*dataset.query, *dataset.gallery])
    )
    yield Check("images: test", difference, 1e-5)


def compare_schedules(peer: Peer, options: ReidOptions) -> Iterator[Check]:
    """The rates of weights and of biases over the whole recipe."""
    schedule, theirs = Schedule(options), peer.schedule()
    yield Check("schedule: epochs", abs(len(theirs) - options.epochs), 0)
    for name, peak in (("weight", options.lr), ("bias", options.lr * options.bias_lr_factor)):
        ours = [schedule.rate(schedule.clock(epoch, 0, 1), peak) for epoch in range(options.epochs)]
        difference = max(abs(a - b[name]) for a, b in zip(ours, theirs))
        yield Check(f"schedule: rate of a {name}, {options.epochs} epochs", difference, 1e-7, f"peak {max(ours):.6f}")
