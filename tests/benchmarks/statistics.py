"""Speed and coverage of the paired bootstrap.

python -m tests.benchmarks statistics [--coverage] [--coco] [--repeats 10000]
Without a flag: 10,000 draws of the sizes of Market-1501, two systems and all five scores. --coverage draws data with a
planted seed effect and counts how often the 95 % interval holds the truth (some minutes on one core). --coco: 1,000
draws of COCO's numbers on made-up boxes of the size of val2017.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from transfer.statistics.cluster_scores import ClusterScores

from transfer.statistics.contrasts import contrast
from transfer.statistics.intervals import cluster_draws

QUERIES, IDENTITIES = 3_368, 750
STACK = 50
"""Data sets that one call resamples, each in columns of its own."""


@dataclass(frozen=True)
class Planted:
    """What drawn scores vary by, as standard deviations of a system's whole score."""

    seeds: tuple[int, int]
    """Of each system"""
    paired: bool
    """Whether both systems have the same ones, whose effects are then half shared"""
    seed_effect: float
    cluster_effect: float
    """By which clusters differ between the systems, whatever the seed"""
    noise: float = 1.0
    """By which every run differs on every cluster"""
    clusters: int = 200

    def draw(self, rng: np.random.Generator, size: np.ndarray) -> list[np.ndarray]:
        """For each system cluster means [S, C] whose true difference is 0."""
        common = rng.normal(size=self.clusters)
        shared = rng.normal(size=max(self.seeds))
        found = []
        for seeds in self.seeds:
            own = rng.normal(size=seeds)
            effect = (shared[:seeds] + own) / np.sqrt(2) if self.paired else own
            scale = np.sqrt(self.clusters)
            means = common + self.cluster_effect * scale * rng.normal(size=self.clusters)
            noise = self.noise * scale * rng.normal(size=(seeds, self.clusters)) / np.sqrt(size / size.mean())
            found.append(self.seed_effect * effect[:, None] + means + noise)
        return found


def coverage(planted: Planted, repeats: int, draws: int = 1000) -> tuple[float, float]:
    """How often the interval holds 0, and its mean length."""
    rng = np.random.default_rng(1)
    held, length = 0, 0.0
    for start in range(0, repeats, STACK):
        size = rng.integers(1, 9, planted.clusters).astype(float)
        data = [planted.draw(rng, size) for _ in range(STACK)]
        sums = np.concatenate([one for systems in data for one in systems]).T * size[:, None]
        drawn = cluster_draws(sums, np.broadcast_to(size[:, None], sums.shape), draws=draws, seed=start).T
        scores, at = sums.sum(axis=0) / size.sum(), 0
        adding, shares = sums.T / size.sum(), np.broadcast_to(size / size.sum(), sums.T.shape)
        labels = [[(0 if planted.paired else system, seed) for seed in range(n)]
                  for system, n in enumerate(planted.seeds)]  # fmt: skip
        for _ in data:
            cuts = [slice(at, at + planted.seeds[0]), slice(at + planted.seeds[0], at + sum(planted.seeds))]
            at += sum(planted.seeds)
            found = contrast(
                [scores[cut] for cut in cuts], [drawn[cut] for cut in cuts], (1, -1),
                clusters=planted.clusters, seeds=labels,
                parts=[ClusterScores.of_sums(adding[cut], shares[cut]) for cut in cuts],
            )  # fmt: skip
            held += found.low <= 0 <= found.high
            length += found.high - found.low
    return held / repeats, length / repeats


def settings() -> Iterator[Planted]:
    """Seed effects from none over equal to dominant, clusters that differ between the systems or not."""
    yield Planted((1, 1), False, 0.0, 1.0)
    for (seeds, paired), cluster_effect, effect in product(
        [((2, 2), False), ((3, 3), False), ((3, 3), True), ((3, 5), False), ((5, 5), True), ((10, 10), True)],
        (0.0, 1.0),
        (0.0, 1.0, 3.0),
    ):
        yield Planted(seeds, paired, effect, cluster_effect)


def print_coverage(repeats: int) -> None:
    """The table."""
    print("| seeds | taken | clusters' effect | seed effect | coverage | length |\n|---|---|---|---|---|---|")
    for planted in settings():
        held, length = coverage(planted, repeats)
        taken = "in pairs" if planted.paired else "alone" if planted.seeds == (1, 1) else "independent"
        effects = f"{planted.cluster_effect:g} | {planted.seed_effect:g}"
        print(f"| {planted.seeds} | {taken} | {effects} | {100 * held:.1f} % | {length:.2f} |", flush=True)


def print_speed() -> None:
    """CPU seconds of 10,000 draws for two systems on Market-1501's sizes, five scores each."""
    rng = np.random.default_rng(0)
    values = rng.random((QUERIES, 10))
    identity = np.concatenate([np.arange(IDENTITIES), rng.integers(0, IDENTITIES, QUERIES - IDENTITIES)])
    begin = time.process_time()
    sums = np.stack([np.bincount(identity, column, IDENTITIES) for column in values.T], axis=1)
    counts = np.tile(np.bincount(identity, minlength=IDENTITIES)[:, None], (1, 10)).astype(float)
    drawn = cluster_draws(sums, counts, draws=10_000).T
    scores, adding, shares = values.mean(axis=0), sums.T / len(values), counts.T / len(values)
    for metric in range(5):
        columns = (metric, metric + 5)
        parts = [ClusterScores.of_sums(adding[[c]], shares[[c]]) for c in columns]
        contrast(
            [scores[[c]] for c in columns], [drawn[[c]] for c in columns], (1, -1),
            clusters=IDENTITIES, parts=parts, bounds=(0.0, 1.0),
        )  # fmt: skip
    print(
        f"10,000 draws, {QUERIES:,} queries, {IDENTITIES} clusters, 2 x 5 scores: {time.process_time() - begin:.2f} s"
    )


def print_coco(images: int, draws: int) -> None:
    """CPU seconds of the draws, by how many numbers are asked for."""
    from tasks.detection.coco.averages import NAMES, Averager
    from tasks.detection.coco.scores import evaluate
    from tests.benchmarks.speed.coco_scoring import drawn

    matches = evaluate(*drawn(images, 100), "bbox")
    weights = np.random.default_rng(0).multinomial(images, np.full(images, 1 / images), size=draws)
    for names in (("AP", "AP50", "AP75"), NAMES):
        begin = time.process_time()
        averager = Averager(matches, names, most=int(weights.max()))
        for one in weights:
            averager.means(one)
        spent = time.process_time() - begin
        print(f"{draws:,} draws of {len(names)} COCO numbers, {images:,} images, "
              f"{len(matches.truth_image):,} objects, {len(matches.score):,} detections: {spent:.1f} s")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--coco", action="store_true")
    parser.add_argument("--repeats", type=int, default=10_000)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--draws", type=int, default=1000, help="of COCO's numbers")
    options = parser.parse_args(argv)
    print_speed()
    if options.coverage:
        print_coverage(options.repeats)
    if options.coco:
        print_coco(options.images, options.draws)
    return 0
