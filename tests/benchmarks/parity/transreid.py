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
"""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from tasks.reid.task import ReidOptions
from tests.benchmarks.parity.checks import Check, checkout_parser, normalised, report
from tests.benchmarks.parity.transreid_peer import PIXELS, Peer
from tests.benchmarks.parity.transreid_training import compare_positions, compare_training
from transfer.cli.command import Command, read_command
from transfer.cli.recipe import task_recipe
from transfer.data.loading.images import reid_test_transform, reid_train_transform
from transfer.data.loading.loader import pk_batches
from transfer.data.loading.read_image import read_image
from transfer.data.reid.dataset import ReidData, open_reid
from transfer.data.reid.market1501 import Sample
from transfer.data.spec import resolve_dataset
from transfer.engine.schedule import Schedule

DRAWS = 500


def main(argv: Sequence[str] | None = None) -> int:
    """Compares everything; the exit status."""
    checkout = checkout_parser(__doc__).parse_args(argv).checkout
    dataset = open_reid(resolve_dataset("toy_market"), None)
    peer = Peer(checkout, dataset.root)
    command = our_command(peer)
    options: ReidOptions = command.options
    checks, parts = [], [compare_data(peer, dataset), compare_samplers(peer, dataset, options)]
    parts += [compare_images(peer, dataset, options), compare_schedules(peer, options)]
    parts += [compare_positions(peer, command), compare_training(peer, dataset, command)]
    for check in itertools.chain(*parts):
        print(check.what, file=sys.stderr)
        checks.append(check)
    return report(checks)


def our_command(peer: Peer) -> Command:
    """The shipped recipe with DeiT-S, fp32, and what the peer's configuration says of rate and pixels."""
    pixels = [str(PIXELS)] * 3
    words = ["--backbone", "vit_s", "--weights", "random", "--dataset", "toy_market", "--precision", "fp32"]
    words += ["--mean", *pixels, "--std", *pixels, "--lr", str(peer.cfg.SOLVER.BASE_LR)]
    return read_command(task_recipe("reid"), ReidOptions, words)


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
    largest, erased, kept = 0.0, 0, []
    for seed, sample in enumerate(samples):
        image = read_image(sample.path)
        sides = []
        for transform in (peer.train_set.transform, train):
            random.seed(seed)
            torch.manual_seed(seed)
            sides.append(transform(image))
        ours = normalised(sides[1], pixels, pixels)
        largest = max(largest, float((sides[0] - ours).abs().max()))
        erased += bool(ours.abs().max() > 1.001)
        kept.append((float(ours.mean()), float(ours.std())))
    mean, std = np.mean(kept, axis=0)
    note = f"{DRAWS} draws, {erased / DRAWS:.1%} erased, pixels of mean {mean:.3f} and deviation {std:.3f}"
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
