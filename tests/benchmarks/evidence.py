"""How often comparisons are wrong: data with a known truth, drawn again and again, cell by cell.

python -m tests.benchmarks evidence [--out tests/benchmarks/evidence.csv] [--repeats 3000]
Each cell draws outcomes of samples in clusters for two variants (or four, of an interaction, or one) whose true scores
are known, and counts: differences shown where there is none, intervals that hold the truth, differences of the printed
smallest size that are shown, equivalences said of a difference as large as the margin (with a published number: of one
that is as far from the truth). About half an hour on one core.
Shapes: C clusters, S seeds.
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from tests.benchmarks.options import read
from transfer.experiments.published_rows import Value
from transfer.report.published.table import Counts, verdict_on
from transfer.statistics.contrasts import contrast, paired_seeds
from transfer.statistics.intervals import SKEWED, Estimate, Scores
from transfer.statistics.verdicts import Kind, verdict_of

CLUSTERS, DISCORDANT = (5, 10, 30, 100, 355, 3368), (0, 1, 2, 3, 5, 8, 15, 30, 100)
EXACT = 20_000
"""Repeats of cells whose data are two counts, each pair of which is looked at once."""
SHOWN = (Kind.A_BETTER, Kind.B_BETTER)
ROUNDING = 1e-12
PUBLISHED = 0.025
"""Margin to a published number, about three standard errors over samples."""


@dataclass(frozen=True)
class Cell:
    """One setting."""

    kind: str
    """"difference", "interaction", "score", or "published": a score beside a printed number"""
    clusters: int
    discordant: float
    """Expected clusters on which the variants disagree by chance; of a score those that are wrong"""
    effect: str = "none"
    """"none": as often either way; "one-sided": always for one variant; "surplus": as none, and so many more for one;
    "normal": on every cluster, by normal amounts"""
    sizes: str = "ones"
    """Of clusters: "ones"; "identities", 1 to 8 samples; "lognormal" """
    seeds: tuple[int, ...] = (1, 1)
    paired: bool = False
    """Whether the variants have the same seeds, whose effects are then half shared"""
    vary: tuple[float, float] = (0.0, 0.0)
    """Standard deviation over seeds of each variant's rate of errors, relative to it"""
    surplus: float = 0.0
    """Of clusters in favour"""

    @property
    def alone(self) -> bool:
        """Whether there is one variant."""
        return self.kind in ("score", "published")

    @property
    def counted(self) -> bool:
        """Whether two counts are all that the data are."""
        return self.kind == "difference" and self.sizes == "ones" and self.seeds == (1, 1) and self.effect != "normal"


def cells() -> Iterator[Cell]:
    """The study."""
    effects = ("none", "one-sided")
    for clusters, discordant, effect in product(CLUSTERS, DISCORDANT, effects):
        if discordant <= clusters and (discordant or effect == "none"):
            yield Cell("difference", clusters, discordant, effect)
    for clusters, sizes, discordant, effect in product((30, 355), ("identities", "lognormal"), DISCORDANT[1:], effects):
        if discordant <= clusters:
            yield Cell("difference", clusters, discordant, effect, sizes)
    several = [((2, 2), False), ((3, 3), False), ((3, 3), True), ((5, 5), True), ((3, 5), False), ((2, 5), False),
               ((1, 3), False)]  # fmt: skip
    for (seeds, paired), vary, discordant, effect in product(
        several, ((0.0, 0.0), (0.5, 0.5), (0.5, 0.05)), (1, 8, 100), effects
    ):
        yield Cell("difference", 355, discordant, effect, "ones", seeds, paired, vary)
    for discordant, effect in product((0, 1, 3, 8, 30), effects):
        if discordant or effect == "none":
            yield Cell("interaction", 355, discordant, effect, seeds=(1, 1, 1, 1))
    for clusters, wrong, sizes in product((30, 100, 355, 3368), (0.5, 2, 8, 0.3), ("ones", "lognormal")):
        yield Cell("score", clusters, wrong if wrong != 0.3 else round(0.3 * clusters), "none", sizes, (1,))
    for seeds, wrong in product((2, 3, 5), (2, 8)):
        yield Cell("score", 355, wrong, "none", "ones", (seeds,), vary=(0.5, 0.5))
    for clusters, sizes, seeds, vary in product(
        (10, 20, 50, 200), ("ones", "lognormal"), (1, 2, 3, 5), (0, 0.5, 1, 3, 10)
    ):
        if seeds > 1 or not vary:
            yield Cell("difference", clusters, clusters, "normal", sizes, (seeds, seeds), True, (vary, vary))
    for seeds, vary in product((1, 2, 3, 5), (0.0, 0.03, 0.1)):
        yield Cell("published", 2000, 400, "none", "ones", (seeds,), vary=(vary, vary))


def sizes_of(cell: Cell, rng: np.random.Generator) -> np.ndarray:
    """int64 [C]"""
    if cell.sizes == "identities":
        return rng.integers(1, 9, cell.clusters)
    if cell.sizes == "lognormal":
        return np.ceil(rng.lognormal(0.5, 1.0, cell.clusters)).astype(np.int64)
    return np.ones(cell.clusters, dtype=np.int64)


def mean_size(cell: Cell) -> tuple[float, float]:
    """The expected samples of a cluster, and of those that a cluster that disagrees loses."""
    size = sizes_of(replace(cell, clusters=1_000_000), np.random.default_rng(9))
    return float(size.mean()), float((size.mean() + 1) / 2)


def truth(cell: Cell) -> float:
    """The true difference, or score."""
    size, lost = mean_size(cell)
    rate = cell.discordant / cell.clusters
    if cell.alone:
        return 1 - rate * lost / size
    if cell.effect == "normal":
        return 0.0
    if cell.effect == "one-sided":
        return rate * lost / size
    return cell.surplus / cell.clusters * lost / size


def draw(cell: Cell, rng: np.random.Generator) -> list[Scores]:
    """The scores of each variant; a wrong cluster loses 1 to all of its samples."""
    size = sizes_of(cell, rng)
    if cell.effect == "normal":
        return _normal(cell, size, rng)
    lost = rng.integers(1, size + 1)
    rate, variants = cell.discordant / cell.clusters, len(cell.seeds)
    rates = [0.0, rate] + [0.0] * (variants - 2) if cell.effect == "one-sided" else [rate / variants] * variants
    shared = rng.normal(size=max(cell.seeds))
    gain = rng.random(cell.clusters) < cell.surplus / cell.clusters
    once, disagree = rng.integers(0, variants, cell.clusters), rng.random(cell.clusters) < rate
    found = []
    for variant, (seeds, mean) in enumerate(zip(cell.seeds, rates, strict=True)):
        own = rng.normal(size=seeds)
        effect = (shared[:seeds] + own) / math.sqrt(2) if cell.paired else own
        chance = np.clip(mean * (1 + (cell.vary[variant % 2]) * effect), 0, 1)
        wrong = rng.random((seeds, cell.clusters)) < chance[:, None]
        if max(cell.seeds) == 1 and not cell.alone and cell.effect != "one-sided":
            # one system at most is wrong, so that as many clusters disagree as are asked for
            wrong = ((once == variant) & disagree)[None]
        wrong = np.where(gain, variant > 0, wrong)
        found.append(Scores.of_clusters(size - lost * wrong, size))
    return found


def _normal(cell: Cell, size: np.ndarray, rng: np.random.Generator) -> list[Scores]:
    """Values of samples around 0.5: clusters differ, seeds differ, and both together; the true difference is 0."""
    seeds, clusters = cell.seeds[0], cell.clusters
    own = rng.normal(0, cell.vary[0] / math.sqrt(clusters), (seeds, 1))
    values = 0.5 + 0.01 * (rng.normal(size=clusters) + 0.5 * rng.normal(size=(seeds, clusters)) + own)
    return [Scores.of_clusters(values * size, size), Scores.of_clusters(np.full((seeds, 1), 0.5) * size, size)]


def estimated(cell: Cell, variants: list[Scores]) -> Estimate:
    """As a comparison estimates it."""
    coefficients = {1: (1,), 2: (1, -1), 4: (1, -1, -1, 1)}[len(cell.seeds)]
    labels = [[seed if cell.paired else (variant, seed) for seed in range(n)] for variant, n in enumerate(cell.seeds)]
    variants, paired = paired_seeds(variants, labels)
    return contrast(variants, coefficients, bounds=(0.0, 1.0), paired=paired)


def drawn_estimates(cell: Cell, repeats: int) -> Iterator[Estimate]:
    """One for each set of data."""
    rng = np.random.default_rng(1)
    if not cell.counted:
        yield from (estimated(cell, draw(cell, rng)) for _ in range(repeats))
        return
    known: dict[tuple[int, int], Estimate] = {}
    rate, gain = cell.discordant / cell.clusters, cell.surplus / cell.clusters
    for_a = (rate if cell.effect == "one-sided" else rate / 2) * (1 - gain) + gain
    for_b = (0.0 if cell.effect == "one-sided" else rate / 2) * (1 - gain)
    counts = rng.multinomial(cell.clusters, [for_a, for_b, max(1 - for_a - for_b, 0.0)], size=EXACT)
    for more, fewer, _ in counts.tolist():
        if (more, fewer) not in known:
            known[more, fewer] = estimated(cell, _of_counts(cell.clusters, more, fewer))
        yield known[more, fewer]


def _of_counts(clusters: int, more: int, fewer: int) -> list[Scores]:
    place, counts = np.arange(clusters), np.ones(clusters)
    a, b = place >= fewer, (place < fewer) | (place >= fewer + more)
    return [Scores.of_clusters(one[None].astype(float), counts) for one in (a, b)]


def cautioned(cell: Cell, estimate: Estimate) -> bool:
    """Whether the row says that its interval may be too short, or is not about other seeds."""
    few = estimate.method == "t" and estimate.discordant < SKEWED
    seeds = min(estimate.seeds)
    return few or estimate.borrowed or (seeds == 1 and max(cell.vary) > 0)


def judged(cell: Cell, repeats: int) -> dict[str, float | int | str | None]:
    """The row of a cell; shares in percent."""
    began, true = time.process_time(), truth(cell)
    found = list(drawn_estimates(cell, repeats))
    row: dict[str, float | int | str | None] = {
        **{name: value for name, value in asdict(cell).items() if name != "surplus"},
        **{"repeats": len(found), "truth": true},
        "covered": 100 * float(np.mean([one.low - ROUNDING <= true <= one.high + ROUNDING for one in found])),
        "said": 100 * float(np.mean([cautioned(cell, one) for one in found])),
        "length": float(np.mean([one.high - one.low for one in found])),
        **dict.fromkeys(("rejected", "smallest", "power", "equivalent")),
    }
    if cell.effect == "normal" or (not cell.alone and cell.effect == "none"):
        row["rejected"] = 100 * float(np.mean([verdict_of(one).kind in SHOWN for one in found]))
    if not cell.alone and cell.effect == "none":
        row |= _power(cell, found, repeats)
    if not cell.alone and true:
        row["equivalent"] = 100 * float(np.mean([one.within(abs(true)) for one in found]))
    if cell.kind == "published":
        row["equivalent"] = max(_agreeing(found, true + off) for off in (-PUBLISHED, PUBLISHED))
    row["seconds"] = round(time.process_time() - began, 1)
    return row


def _agreeing(found: list[Estimate], printed: float) -> float:
    """How often a score is said to agree with a printed number of no rounding, in percent."""
    value, counts = Value("", "", "", f"{100 * printed:.12f}"), Counts(1)
    gaps = (one.beside(100 * printed) for one in found)
    verdicts = (verdict_on(value, counts, gap, margin=100 * PUBLISHED) for gap in gaps)
    return 100 * float(np.mean([verdict.startswith("agrees") for verdict in verdicts]))


def _power(cell: Cell, found: list[Estimate], repeats: int) -> dict[str, float | None]:
    """How often a true difference of the size that is printed (its median) is shown."""
    several = found[:300]
    printed = {key: one.smallest_difference() for key, one in {id(one): one for one in several}.items()}
    typical = float(np.median([printed[id(one)] for one in several]))
    if cell.kind == "interaction" or several[0].borrowed or not 0 < typical < math.inf:
        return {}
    size, lost = mean_size(cell)
    surplus = typical * cell.clusters * size / lost
    if surplus > cell.clusters:
        return {"smallest": typical}
    again = drawn_estimates(replace(cell, effect="surplus", surplus=surplus), repeats // 2)
    return {"smallest": typical, "power": 100 * float(np.mean([verdict_of(one).kind in SHOWN for one in again]))}


def main(argv: Sequence[str]) -> int:
    options = read(argv, __doc__, out="", repeats=3000)
    rows = []
    for cell in cells():
        rows.append(judged(cell, options.repeats))
        shown = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in rows[-1].values())
        print(*shown, file=sys.stderr, flush=True)
    if options.out:
        pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.5g")
    return 0
