"""What `outcomes.npz` gives to the bootstrap: scores of several runs on the same resampled samples. Imports no torch.

Most scores are means over samples (queries, images) and need only each cluster's sum and count. COCO's are not, and are
computed again for each draw of the images.
Letters: M samples, C clusters, R runs, B draws.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError, shortened
from transfer.records import per_sample as outcomes_of
from transfer.records.per_sample import OUTCOMES, PREFIXES
from transfer.records.store import Run
from transfer.statistics.cluster_scores import ClusterScores
from transfer.statistics.intervals import cluster_draws
from transfer.statistics.score_variance import MANY

if TYPE_CHECKING:
    from tasks.detection.coco.match_arrays import Matches

DRAWS = 10_000
AP_DRAWS = 1_000
"""How often COCO's scores are resampled, each of which takes some hundredths of a second."""


class NotPaired(UserError):
    """A sample counts in one run and not in another.

    Attributes:
        score: the score of which the runs are not paired.
    """

    def __init__(self, score: str, reason: str) -> None:
        super().__init__(reason)
        self.score = score


@dataclass(frozen=True, eq=False)
class Resampled:
    """One score of some runs, and the same of resampled clusters.

    Attributes:
        scores: [R] the score of each run.
        drawn: [R, B] the same of resampled clusters; draw b has the same clusters for every run.
        clusters: how many clusters are resampled.
        parts: what each cluster adds to the scores, with runs in place of seeds; None where that is not known.
        comparing_only: whether parts are right in differences alone, since what all runs have in common is left out.
    """

    scores: NDArray[Any]
    drawn: NDArray[Any]
    clusters: int
    parts: ClusterScores | None = None
    comparing_only: bool = False


def resample(
    runs: Sequence[Run],
    names: Sequence[str],
    *,
    draws: int = DRAWS,
    ap_draws: int = AP_DRAWS,
    seed: int = 0,
    paired: bool = True,
) -> dict[str, Resampled]:
    """Return the scores of these names that can be resampled; scores of a model, not of samples, are left out.

    Draws in which nothing counts, as no object of a size, are left out.

    Args:
        runs: finished ones, scored on the same samples; in whatever order their files name these.
        paired: whether differences between the runs will be made.

    Raises:
        UserError: outcomes are missing or unreadable, name other samples, or do not give the recorded score.
        NotPaired: a sample counts in some of the runs alone, and they are to be paired.
    """
    outcomes = [read_outcomes(run) for run in runs]
    orders = [_order(runs[0], outcomes[0], run, one) for run, one in zip(runs, outcomes)]
    cluster = _clusters(runs, outcomes, orders)
    found = _means(runs, outcomes, orders, cluster, names, draws, seed, paired)
    for prefix in PREFIXES:
        own = [
            name for name in names if name.startswith(f"{prefix}_") and all(name in run.record.scores for run in runs)
        ]
        if own:
            found |= _averages(runs, outcomes, orders, cluster, own, ap_draws, seed)
    return {name: found[name] for name in names if name in found}


def read_outcomes(run: Run) -> dict[str, NDArray[Any]]:
    """Return the arrays of a run's `outcomes.npz`. Raises UserError where they cannot be read."""
    with _of(run):
        found = outcomes_of.read(run.folder / OUTCOMES)
        outcomes_of.check_clusters(found)
        return found


@contextmanager
def _of(run: Run) -> Iterator[None]:
    """What makes outcomes unfit, as an error that names their file."""
    try:
        yield
    except outcomes_of.UnusableOutcomes as unfit:
        file, more = run.folder / OUTCOMES, f"`python -m transfer.verify {run.folder}` says more"
        raise UserError(f"{file}: {unfit}; {more}") from None


def _order(first: Run, firsts: dict[str, NDArray[Any]], run: Run, outcomes: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """[M] where each sample of the first run stands in this one."""
    wanted, names = firsts["sample"], outcomes["sample"]
    here, there = set(wanted.tolist()), set(names.tolist())
    ids = first.record.run_id, run.record.run_id
    if here != there:
        lacking = f"{len(here - there)} samples of {ids[0]} are missing in {ids[1]}, {len(there - here)} the other way"
        examples = shortened(sorted(map(str, here ^ there)), 3)
        raise UserError(f"not scored on the same samples: {lacking} ({examples})")
    if np.array_equal(wanted, names):
        return np.arange(len(names))
    order = np.argsort(names)
    return order[np.searchsorted(names[order], wanted)]


def _clusters(runs: Sequence[Run], outcomes: list[dict[str, NDArray[Any]]], orders: list[NDArray[Any]]) -> NDArray[Any]:
    """int64 [M] from 0: the cluster of each sample of the first run. Other runs may number them otherwise."""
    _, first = np.unique(outcomes[0]["cluster"], return_inverse=True)
    for run, one, order in zip(runs[1:], outcomes[1:], orders[1:]):
        _, other = np.unique(one["cluster"][order], return_inverse=True)
        pairs = np.unique(first.astype(np.int64) * len(other) + other)
        if not len(pairs) == len(np.unique(first)) == len(np.unique(other)):
            raise UserError(f"{runs[0].record.run_id} and {run.record.run_id}: their samples form other clusters")
    clusters: NDArray[Any] = first.astype(np.int64).reshape(-1)
    return clusters


def _means(
    runs: Sequence[Run],
    outcomes: list[dict[str, NDArray[Any]]],
    orders: list[NDArray[Any]],
    cluster: NDArray[Any],
    names: Sequence[str],
    draws: int,
    seed: int,
    paired: bool,
) -> dict[str, Resampled]:
    columns, kept = [], []
    for name in names:
        own = []
        for run, one in zip(runs, outcomes):
            with _of(run):
                own.append(outcomes_of.values_of(run.record, name, one))
        if all(values is not None for values in own) and all(name in run.record.scores for run in runs):
            kept.append(name)
            columns += [np.asarray(values)[order] for values, order in zip(own, orders)]
            if paired:
                _check_paired(runs, name, columns[-len(runs) :], outcomes[0]["sample"])
    if not kept:
        return {}
    clusters = int(cluster.max()) + 1
    counted = [~np.isnan(column) for column in columns]
    sums = [np.bincount(cluster, np.where(use, column, 0), clusters) for use, column in zip(counted, columns)]
    counts = [np.bincount(cluster, use, clusters) for use in counted]
    drawn = cluster_draws(np.stack(sums, axis=1), np.stack(counts, axis=1), draws=draws, seed=seed).T
    found = {}
    for place, name in enumerate(kept):
        part = slice(place * len(runs), (place + 1) * len(runs))
        scores = np.array([column[use].mean() for column, use in zip(columns[part], counted[part])])
        total = np.stack(counts[part]).sum(axis=1, keepdims=True)
        parts = ClusterScores.of_sums(np.stack(sums[part]) / total, np.stack(counts[part]) / total)
        found[name] = Resampled(scores, _finite(drawn[part]), clusters, parts)
    return found


def _check_paired(runs: Sequence[Run], name: str, columns: Sequence[NDArray[Any]], samples: NDArray[Any]) -> None:
    """Raises NotPaired: the difference of means over unlike samples would not be a paired one."""
    first = np.isnan(columns[0])
    for run, values in zip(runs[1:], columns[1:]):
        if len(places := np.flatnonzero(np.isnan(values) != first)):
            examples = shortened([str(one) for one in samples[places]], 3)
            alone = f"{len(places)} of {len(samples)} samples count in one of them alone ({examples})"
            raise NotPaired(name, f"{runs[0].record.run_id} and {run.record.run_id} are not paired in {name}: {alone}")


def _finite(drawn: NDArray[Any]) -> NDArray[Any]:
    """[R, B'] of [R, B] without the draws in which nothing counted."""
    return drawn[:, np.isfinite(drawn).all(axis=0)]


def _averages(
    runs: Sequence[Run],
    outcomes: list[dict[str, NDArray[Any]]],
    orders: list[NDArray[Any]],
    cluster: NDArray[Any],
    names: Sequence[str],
    draws: int,
    seed: int,
) -> dict[str, Resampled]:
    from tasks.detection.coco.averages import Averager

    prefix = names[0].partition("_")[0]
    clusters = int(cluster.max()) + 1
    rng = np.random.default_rng(seed)
    times = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=draws)
    most, short = int(times.max(initial=1)), [name.removeprefix(f"{prefix}_") for name in names]
    scores, drawn = np.empty((len(names), len(runs))), np.full((len(names), len(runs), draws), np.nan)
    matches = []
    for run, one in zip(runs, outcomes):
        with _of(run):
            matches.append(outcomes_of.matches_of(prefix, one))
    apart = _unlike_images(matches, orders)
    left_out = np.full((len(names), len(runs), len(apart)), np.nan)
    for place, (own, order) in enumerate(zip(matches, orders)):
        with _of(runs[place]), outcomes_of.scoring():
            averager = Averager(own, short, most=most)
            weights = np.ones(len(order), dtype=np.int64)
            scores[:, place] = _row(averager.means(weights), short)
            for name, score in zip(names, scores[:, place].tolist()):
                outcomes_of.check_score(runs[place].record, name, score)
            for draw in range(draws):
                weights[order] = times[draw][cluster]
                drawn[:, place, draw] = _row(averager.means(weights), short)
            for number, image in enumerate(apart if len(apart) < MANY else ()):
                weights[order] = cluster != cluster[image]
                left_out[:, place, number] = _row(averager.means(weights), short)
    found = {name: Resampled(scores[number], _finite(drawn[number]), clusters) for number, name in enumerate(names)}
    if len(apart) >= MANY:
        return found
    return {
        name: replace(
            one, parts=_jackknifed(one.scores, left_out[number], cluster[apart], clusters), comparing_only=True
        )
        for number, (name, one) in enumerate(found.items())
    }


def _unlike_images(matches: "Sequence[Matches]", orders: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """[I'] the images of the first run on which the runs' detections are not all the same."""
    tables = [_by_image(one, order) for one, order in zip(matches, orders)]
    return np.array([place for place, own in enumerate(zip(*tables)) if len({*own}) > 1], dtype=np.int64)


def _by_image(matches: "Matches", order: NDArray[Any]) -> list[bytes]:
    """All that is known of the detections of each image of the first run."""
    columns = [matches.category, matches.score, matches.rank, *matches.matched.T, *matches.ignored.T]
    table = np.stack([np.asarray(one, dtype=np.float64) for one in columns], axis=1)
    by_image = np.argsort(matches.image, kind="stable")
    starts = np.searchsorted(matches.image[by_image], np.arange(len(order) + 1))
    return [table[by_image[starts[place] : starts[place + 1]]].tobytes() for place in order]


def _jackknifed(
    scores: NDArray[Any], left_out: NDArray[Any], apart: NDArray[Any], clusters: int
) -> ClusterScores | None:
    """What clusters add to a score that is no sum, as far as runs differ: ((C - 1) (score - without) + score) / C.

    Of a mean this is the cluster's own part (Tukey 1958). What all runs have in common is shared out evenly.

    Args:
        scores: [R]. left_out: [R, I'] without the cluster of an image. apart: [I'] the clusters, some perhaps twice.
    """
    if not np.isfinite(left_out).all():
        return None
    own = ((clusters - 1) * (scores[:, None] - left_out) + scores[:, None]) / clusters
    kept, first = np.unique(apart, return_index=True)
    common = (scores - own[:, first].sum(axis=1)).mean() / max(clusters - len(kept), 1)
    sums = np.full((len(scores), clusters), common)
    sums[:, kept] = own[:, first]
    return ClusterScores.of_sums(sums, np.full(sums.shape, 1 / clusters))


def _row(means: dict[str, float], names: Sequence[str]) -> list[Any]:
    return [means.get(name, np.nan) for name in names]
