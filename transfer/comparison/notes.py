"""What a reader of a comparison should know beside its verdicts, as texts. Imports no torch."""

from collections.abc import Iterator, Sequence

from transfer.comparison.compare_arms import ComparedMatch
from transfer.comparison.paired_intervals import Units
from transfer.core.errors import count
from transfer.core.grouped import values_by_key
from transfer.records.evidence import RANDOM, SCORE_AT_CHANCE, ending
from transfer.records.fields import content_label
from transfer.statistics.contrasts import common_seeds
from transfer.statistics.intervals import SKEWED

BORROWED = "has one completed seed, whose variance is assumed to be that of the others; inconclusive: add seeds to it"
NO_MORE = "'se of seeds' is 0 where seeds vary no more than their test samples alone would make them"


def notes_of(match: ComparedMatch) -> list[str]:
    """Return the texts on a match: unshared fields, missing intervals, few clusters, and seeds."""
    return [*_unshared(match), *_no_interval(match), *_few_clusters(match), *_seeds(match)]


def _unshared(match: ComparedMatch) -> Iterator[str]:
    """Yield the text on fields that differ between the variants but were not selected."""
    unshared = match.matched.unshared
    if contents := dict.fromkeys(content_label(content) for content in unshared if content):
        yield f"differences that were not selected: {' vs. '.join(contents)}"
    if any({"mean", "std"} & content.keys() for content in unshared):
        yield "the images are normalized differently; set --mean and --std alike to compare the variants alone"


def _no_interval(match: ComparedMatch) -> Iterator[str]:
    """Yield each reason why scores have no interval, with their names unless it holds for all."""
    for reason, names in values_by_key((why, score) for score, why in match.without_interval.items()).items():
        scores = f" of {', '.join(names)}" if any(names) else ""
        yield f"no interval{scores}: {reason}"


def _few_clusters(match: ComparedMatch) -> Iterator[str]:
    """Yield the distinct texts on estimates dominated by a few large clusters, or with too few discordant ones."""
    rows = [(row, row.estimate) for row in match.rows if row.estimate is not None]
    unequal = [estimate for _, estimate in rows if 2 * estimate.effective_clusters < estimate.clusters]
    for size, equal in dict.fromkeys((estimate.clusters, f"{estimate.effective_clusters:.0f}") for estimate in unequal):
        yield f"{size} clusters of unequal sizes count as {equal} of equal size"
    by_t = [(row, estimate) for row, estimate in rows if estimate.method == "t"]
    if few := [row for row, estimate in by_t if estimate.discordant < SKEWED]:
        names = ", ".join(f"{row.score} ({row.effect})" if row.effect else row.score for row in few)
        yield f"fewer than {SKEWED} clusters differ, so the interval may be too short: {names}"


def _seeds(match: ComparedMatch) -> Iterator[str]:
    """Yield the notes on seeds: left out, a single one, of one pretraining, or averaged."""
    units = match.units
    paired = common_seeds([variant.seeds for variant in units])
    sizes = [len(places) for places in paired] if paired else [len(variant.seeds) for variant in units]
    names = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    if paired:
        yield from _left_out(names, units, paired)
    else:
        texts = [_seeds_text(variant) for variant in units]
        if all(texts) and len({*texts}) > 1:
            of_arms = (f"{text} of {name}" for text, name in zip(texts, names, strict=True))
            yield f"seeds are not paired: {', '.join(of_arms)}"
    estimates = [(row.score, row.estimate) for row in match.rows if row.estimate is not None]
    if min(sizes) == 1 < max(sizes) and estimates:
        yield f"{' and '.join(name for name, size in zip(names, sizes, strict=True) if size == 1)} {BORROWED}"
    if zero := dict.fromkeys(score for score, estimate in estimates if estimate.seed_error == 0):
        yield f"{NO_MORE}: {', '.join(zero)}"
    several = [(name, variant) for name, variant, size in zip(names, units, sizes, strict=True) if size > 1]
    starts = {name: {run.record.weights_id for run in variant.runs} - {RANDOM} for name, variant in several}
    if one_start := [name for name, weights in starts.items() if len(weights) == 1]:
        who = " and ".join(one_start)
        yield f"all seeds of {who} start from one set of weights; variance between pretraining runs is not measured"
    for name, variant in zip(names, units, strict=True):
        if guessing := sum(ending(run.record) == SCORE_AT_CHANCE for run in variant.runs):
            yield f"{guessing} of {len(variant.runs)} runs of {name} are not above chance on these test images"
        if len(variant.labels) > len(variant.seeds):
            same = variant.seeds[0][0] == "weights" and len(variant.seeds) == 1
            why = "the score does not depend on the seed" if same else "those of one seed or pretraining are averaged"
            yield f"{len(variant.labels)} runs of {name} count as {count(len(variant.seeds), 'seed')}: {why}"


def _seeds_text(variant: Units) -> str:
    """Return the seeds of a variant, of frozen weights that of their training; empty if that is not known."""
    runs = zip(variant.labels, variant.runs, strict=True)
    seeds = {("pretraining", run.record.origin.get("seed")) if unit[0] == "weights" else unit for unit, run in runs}
    return " and ".join(sorted(f"{kind} {seed}" for kind, seed in seeds if seed is not None))


def _left_out(names: Sequence[str], units: Sequence[Units], paired: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield a text for each seed without a counterpart in the other variants, which the means leave out.

    Args:
        paired: for each variant the indices of its seeds with a counterpart.
    """
    for name, variant, places in zip(names, units, paired, strict=True):
        for label in (label for place, label in enumerate(variant.seeds) if place not in places):
            broken = [other for other, arm in zip(names, units, strict=True) if label in arm.variant.absent]
            why = f"which failed in {' and '.join(broken)}" if broken else "not in any record read of the other variant"
            yield f"excluded: {' '.join(map(str, label))} of {name}, {why}"
