"""Scores of several runs on the same bootstrap resamples of the test samples, from `outcomes.npz`. Imports no torch.

Most scores are means over samples (queries, images) and need only each cluster's sum and count. COCO's are not, and are
computed again for each resample of the images.
Letters: M samples, C clusters, R runs, B resamples.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError, shortened
from transfer.records import per_sample
from transfer.records.per_sample import OUTCOMES, PREFIXES, Outcomes
from transfer.records.store import Run
from transfer.statistics.cluster_scores import ClusterScores
from transfer.statistics.intervals import cluster_draws
from transfer.statistics.score_variance import MANY

if TYPE_CHECKING:
    from tasks.detection.coco.match_arrays import Matches

DRAWS = 10_000
AP_DRAWS = 1_000
"""Number of resamples for COCO's scores, each of which takes some hundredths of a second."""


class NotPaired(UserError):
    """Some sample counts for a score in one run and not in another; `score` is the name of the score."""

    def __init__(self, score: str, reason: str) -> None:
        super().__init__(reason)
        self.score = score


@dataclass(frozen=True, eq=False)
class Resampled:
    """One score of several runs, on all samples and on resampled clusters.

    Attributes:
        scores: [R] score of each run on all samples.
        bootstrap_scores: [R, B] score of each run on resampled clusters; resample b has the same clusters for each run.
        clusters: number of clusters that are resampled.
        contributions: contributions of the clusters to the scores, with runs in place of seeds; None if unknown.
        differences_only: whether the contributions are right only in differences between runs, because what all runs
            have in common is spread evenly.
    """

    scores: NDArray[Any]
    bootstrap_scores: NDArray[Any]
    clusters: int
    contributions: ClusterScores | None = None
    differences_only: bool = False


@dataclass(frozen=True, eq=False)
class _PairedOutcomes:
    """Outcomes of runs on the same samples, with the samples of all runs matched by name.

    Attributes:
        runs: [R] finished runs.
        outcomes: [R] arrays of the outcomes of each run, in the order of its own file.
        orders: [R] for each run, the index [M] in its file of each sample of the first run.
        cluster: int64 [M] cluster of each sample of the first run, numbered from 0.
    """

    runs: Sequence[Run]
    outcomes: list[Outcomes]
    orders: list[NDArray[Any]]
    cluster: NDArray[Any]

    @classmethod
    def read(cls, runs: Sequence[Run]) -> "_PairedOutcomes":
        """Read the outcomes of runs. Raises UserError unless all have the same samples in the same clusters."""
        outcomes = [read_outcomes(run) for run in runs]
        orders = [_order(runs[0], outcomes[0], run, arrays) for run, arrays in zip(runs, outcomes)]
        return cls(runs, outcomes, orders, _clusters(runs, outcomes, orders))

    @property
    def clusters(self) -> int:
        """Number of clusters."""
        return int(self.cluster.max()) + 1


def resample(
    runs: Sequence[Run],
    names: Sequence[str],
    *,
    draws: int = DRAWS,
    ap_draws: int = AP_DRAWS,
    seed: int = 0,
    paired: bool = True,
) -> dict[str, Resampled]:
    """Return the named scores on resampled clusters; scores that samples do not add up to are left out.

    Resamples in which nothing counts, such as no object of a size, are left out.

    Args:
        runs: finished runs that were scored on the same samples, in any order of these.
        names: names of the scores.
        draws: number of resamples.
        ap_draws: number of resamples for COCO's scores.
        seed: seed of the resampling.
        paired: whether differences between the runs will be formed.

    Raises:
        UserError: outcomes are missing or unreadable, name other samples, or do not give the recorded score.
        NotPaired: a sample counts in some of the runs only, and `paired` is set.
    """
    data = _PairedOutcomes.read(runs)
    results = _resample_means(data, names, draws, seed, paired)
    for prefix in PREFIXES:
        ap_names = [
            name for name in names if name.startswith(f"{prefix}_") and all(name in run.record.scores for run in runs)
        ]
        if ap_names:
            results |= _resample_ap(data, ap_names, ap_draws, seed)
    return {name: results[name] for name in names if name in results}


def read_outcomes(run: Run) -> Outcomes:
    """Return the arrays of a run's `outcomes.npz`. Raises UserError if they cannot be read."""
    with _errors_name_file(run):
        outcomes = per_sample.read(run.folder / OUTCOMES)
        per_sample.check_clusters(outcomes)
        return outcomes


@contextmanager
def _errors_name_file(run: Run) -> Iterator[None]:
    """Turn UnusableOutcomes into a UserError that names the run's file."""
    try:
        yield
    except per_sample.UnusableOutcomes as error:
        file, more = run.folder / OUTCOMES, f"`python -m transfer.verify {run.folder}` says more"
        raise UserError(f"{file}: {error}; {more}") from None


def _order(first: Run, first_outcomes: Outcomes, run: Run, outcomes: Outcomes) -> NDArray[Any]:
    """Return the index [M] in a run's outcomes of each sample of the first run."""
    first_names, names = first_outcomes["sample"], outcomes["sample"]
    first_set, name_set = set(first_names.tolist()), set(names.tolist())
    if first_set != name_set:
        ids = first.record.run_id, run.record.run_id
        missing, added = len(first_set - name_set), len(name_set - first_set)
        lacking = f"{missing} samples of {ids[0]} are missing in {ids[1]}, {added} the other way"
        examples = shortened(sorted(map(str, first_set ^ name_set)), 3)
        raise UserError(f"not scored on the same samples: {lacking} ({examples})")
    if np.array_equal(first_names, names):
        return np.arange(len(names))
    order = np.argsort(names)
    return order[np.searchsorted(names[order], first_names)]


def _clusters(runs: Sequence[Run], outcomes: list[Outcomes], orders: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the cluster, int64 [M] from 0, of each sample of the first run; other runs may number clusters otherwise.

    Raises UserError if a run groups the samples otherwise.
    """
    _, first = np.unique(outcomes[0]["cluster"], return_inverse=True)
    for run, arrays, order in zip(runs[1:], outcomes[1:], orders[1:]):
        _, other = np.unique(arrays["cluster"][order], return_inverse=True)
        pairs = np.unique(first.astype(np.int64) * len(other) + other)
        if not len(pairs) == len(np.unique(first)) == len(np.unique(other)):
            raise UserError(f"{runs[0].record.run_id} and {run.record.run_id}: their samples form other clusters")
    clusters: NDArray[Any] = first.astype(np.int64).reshape(-1)
    return clusters


def _resample_means(
    data: _PairedOutcomes, names: Sequence[str], draws: int, seed: int, paired: bool
) -> dict[str, Resampled]:
    """Return those of the named scores that are means over samples. Raises as `resample`."""
    runs = data.runs
    columns, kept = [], []
    for name in names:
        values_by_run = []
        for run, arrays in zip(runs, data.outcomes):
            with _errors_name_file(run):
                values_by_run.append(per_sample.values_of(run.record, name, arrays))
        if all(values is not None for values in values_by_run) and all(name in run.record.scores for run in runs):
            kept.append(name)
            columns += [np.asarray(values)[order] for values, order in zip(values_by_run, data.orders)]
            if paired:
                _check_paired(runs, name, columns[-len(runs) :], data.outcomes[0]["sample"])
    if not kept:
        return {}
    counted = [~np.isnan(column) for column in columns]
    sums = [np.bincount(data.cluster, np.where(mask, col, 0), data.clusters) for mask, col in zip(counted, columns)]
    counts = [np.bincount(data.cluster, mask, data.clusters) for mask in counted]
    bootstrap_scores = cluster_draws(np.stack(sums, axis=1), np.stack(counts, axis=1), draws=draws, seed=seed).T
    results = {}
    for index, name in enumerate(kept):
        rows = slice(index * len(runs), (index + 1) * len(runs))
        scores = np.array([column[mask].mean() for column, mask in zip(columns[rows], counted[rows])])
        total = np.stack(counts[rows]).sum(axis=1, keepdims=True)
        contributions = ClusterScores.of_sums(np.stack(sums[rows]) / total, np.stack(counts[rows]) / total)
        results[name] = Resampled(scores, _finite(bootstrap_scores[rows]), data.clusters, contributions)
    return results


def _check_paired(runs: Sequence[Run], name: str, columns: Sequence[NDArray[Any]], samples: NDArray[Any]) -> None:
    """Raise NotPaired if other samples count in one run than in another, so that differences would not be paired."""
    first = np.isnan(columns[0])
    for run, values in zip(runs[1:], columns[1:]):
        if len(unpaired := np.flatnonzero(np.isnan(values) != first)):
            examples = shortened([str(sample) for sample in samples[unpaired]], 3)
            reason = f"{len(unpaired)} of {len(samples)} samples count in one of them alone ({examples})"
            raise NotPaired(name, f"{runs[0].record.run_id} and {run.record.run_id} are not paired in {name}: {reason}")


def _finite(bootstrap_scores: NDArray[Any]) -> NDArray[Any]:
    """Return the scores [R, B] without the resamples in which nothing counted."""
    return bootstrap_scores[:, np.isfinite(bootstrap_scores).all(axis=0)]


def _resample_ap(data: _PairedOutcomes, names: Sequence[str], draws: int, seed: int) -> dict[str, Resampled]:
    """Return COCO's scores of one prefix, computed again for each resample. Raises as `resample`."""
    from tasks.detection.coco.averages import Averager

    prefix = names[0].partition("_")[0]
    rng = np.random.default_rng(seed)
    times = rng.multinomial(data.clusters, np.full(data.clusters, 1 / data.clusters), size=draws)
    most, short = int(times.max(initial=1)), [name.removeprefix(f"{prefix}_") for name in names]
    shape = len(names), len(data.runs)
    matches = []
    for run, arrays in zip(data.runs, data.outcomes):
        with _errors_name_file(run):
            matches.append(per_sample.matches_of(prefix, arrays))
    differing = _differing_images(matches, data.orders)
    scores, bootstrap_scores = np.empty(shape), np.full((*shape, draws), np.nan)
    left_out = np.full((*shape, len(differing)), np.nan)
    for index, (run, run_matches, order) in enumerate(zip(data.runs, matches, data.orders)):
        with _errors_name_file(run), per_sample.scoring():
            averager = Averager(run_matches, short, most=most)
            weights = np.ones(len(order), dtype=np.int64)
            scores[:, index] = _values(averager.means(weights), short)
            for name, score in zip(names, scores[:, index].tolist()):
                per_sample.check_score(run.record, name, score)
            for draw in range(draws):
                weights[order] = times[draw][data.cluster]
                bootstrap_scores[:, index, draw] = _values(averager.means(weights), short)
            for number, image in enumerate(differing if len(differing) < MANY else ()):
                weights[order] = data.cluster != data.cluster[image]
                left_out[:, index, number] = _values(averager.means(weights), short)
    few, clusters = len(differing) < MANY, data.cluster[differing]
    results = {}
    for row, name in enumerate(names):
        contributions = _jackknife(scores[row], left_out[row], clusters, data.clusters) if few else None
        results[name] = Resampled(scores[row], _finite(bootstrap_scores[row]), data.clusters, contributions, few)
    return results


def _differing_images(matches: "Sequence[Matches]", orders: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the indices of the first run's images on which the runs' detections differ."""
    by_run = [_detections_by_image(run_matches, order) for run_matches, order in zip(matches, orders)]
    return np.array([index for index, images in enumerate(zip(*by_run)) if len({*images}) > 1], dtype=np.int64)


def _detections_by_image(matches: "Matches", order: NDArray[Any]) -> list[bytes]:
    """Return everything that is known of the detections on each image of the first run, as bytes [M]."""
    columns = [matches.category, matches.score, matches.rank, *matches.matched.T, *matches.ignored.T]
    table = np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
    by_image = np.argsort(matches.image, kind="stable")
    starts = np.searchsorted(matches.image[by_image], np.arange(len(order) + 1))
    return [table[by_image[starts[image] : starts[image + 1]]].tobytes() for image in order]


def _jackknife(
    scores: NDArray[Any], left_out: NDArray[Any], differing: NDArray[Any], clusters: int
) -> ClusterScores | None:
    """Return the contributions of clusters to a score that is no sum, right in differences between runs.

    A contribution is ((C - 1) (score - score without the cluster) + score) / C, which for a mean is the cluster's own
    (Tukey 1958). What all runs have in common is spread evenly over the other clusters.

    Args:
        scores: [R] scores on all samples.
        left_out: [R, I] scores without the cluster of each of I images.
        differing: [I] clusters of these images, some perhaps twice.
        clusters: the number C of clusters.
    """
    if not np.isfinite(left_out).all():
        return None
    pseudo_values = ((clusters - 1) * (scores[:, None] - left_out) + scores[:, None]) / clusters
    kept, first = np.unique(differing, return_index=True)
    common = (scores - pseudo_values[:, first].sum(axis=1)).mean() / max(clusters - len(kept), 1)
    sums = np.full((len(scores), clusters), common)
    sums[:, kept] = pseudo_values[:, first]
    return ClusterScores.of_sums(sums, np.full(sums.shape, 1 / clusters))


def _values(means: dict[str, float], names: Sequence[str]) -> list[float]:
    """Return the named means; nan for those that nothing counts in."""
    return [means.get(name, np.nan) for name in names]
