"""What `outcomes.npz` gives to the bootstrap: scores of several runs on the same resampled samples. Imports no torch.

Most scores are means over samples (queries, images) and need only each cluster's sum and count. COCO's are not, and are
computed again for each draw of the images.
Letters: M samples, C clusters, R runs, B draws.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from backbones.errors import UserError, some
from transfer.results import OUTCOMES, Run
from transfer.score_variance import MANY
from transfer.statistics import cluster_draws
from transfer.systems import Parts

if TYPE_CHECKING:
    from tasks.detection.coco_scores import Matches

DRAWS = 10_000
AP_DRAWS = 1_000
"""Of COCO's scores, which take some hundredths of a second each."""
TOLERANCE = 1e-9
"""Between a recorded score and the same from outcomes, added in another order."""


@dataclass(frozen=True, eq=False)
class Resampled:
    """One score of some runs, and the same of resampled clusters, draw b the same clusters for every run."""

    scores: np.ndarray
    """[R]"""
    drawn: np.ndarray
    """[R, B]"""
    clusters: int
    parts: Parts | None = None
    """Of the runs, in place of seeds"""
    comparing_only: bool = False
    """Whether parts are right in differences alone, what all runs have in common being left out"""


def resample(
    runs: Sequence[Run], names: Sequence[str], *, draws: int = DRAWS, ap_draws: int = AP_DRAWS, seed: int = 0
) -> dict[str, Resampled]:
    """The scores of these names that can be resampled; the others (as those of a model, not of samples) are left out.

    Draws in which nothing counts, as no object of a size, are left out.

    Args:
        runs: finished ones, scored on the same samples; in whatever order their files name these.

    Raises:
        UserError: outcomes are missing or unreadable, name other samples, or do not give the recorded score.
    """
    outcomes = [read_outcomes(run) for run in runs]
    orders = [_order(runs[0], outcomes[0], run, one) for run, one in zip(runs, outcomes)]
    cluster = _clusters(runs, outcomes, orders)
    found = _means(runs, outcomes, orders, cluster, names, draws, seed)
    for prefix in ("box", "mask"):
        own = [
            name for name in names if name.startswith(f"{prefix}_") and all(name in run.record.scores for run in runs)
        ]
        if own:
            found |= _averages(runs, outcomes, orders, cluster, own, ap_draws, seed)
    return {name: found[name] for name in names if name in found}


def read_outcomes(run: Run) -> dict[str, np.ndarray]:
    """The arrays of a run's `outcomes.npz`. Raises UserError."""
    path = run.folder / OUTCOMES
    try:
        with np.load(path, allow_pickle=False) as file:
            found = dict(file)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; copy the whole folder of the run, or run it again") from None
    except Exception as error:  # what a damaged archive raises has no common type
        raise UserError(f"{path}: not readable ({error}); `python -m transfer.verify {run.folder}` says more") from None
    if missing := [name for name in ("sample", "cluster") if name not in found]:
        raise UserError(f"{path}: has no {' and no '.join(missing)}, so its samples cannot be paired")
    if found["sample"].shape != found["cluster"].shape or found["sample"].ndim != 1:
        raise UserError(f"{path}: samples and their clusters are not equally many")
    if not len(found["sample"]):
        raise UserError(f"{path}: has no samples")
    return found


def per_sample(name: str, outcomes: dict[str, np.ndarray]) -> np.ndarray | None:
    """float64 [M] whose mean over samples is the score of this name; nan where a sample does not count.

    None where the outcomes do not give it, or not as a mean.
    """
    if "hits" in outcomes:
        return _of_query(name, outcomes)
    if name.startswith("accuracy_"):
        correct = outcomes.get(name.replace("accuracy", "correct"))
        # the draws of support sets are part of the protocol: the same for all backbones
        return None if correct is None else correct.mean(axis=1, dtype=np.float64)
    accuracy = re.fullmatch(r"(best_|knn_)?top(\d+)(_k\d+)?", name)
    if accuracy is None:
        # what was measured of each sample stands under the score's own name
        return outcomes[name].astype(np.float64) if name in outcomes else None
    kind, k, neighbours = accuracy.groups()
    best = "best_" if kind == "best_" else ""
    rank = outcomes.get(f"{best}rank{neighbours or ''}")
    # of classes that are level with the true one each place is as likely
    places = outcomes.get(f"{best}ties", np.zeros(1)) + 1
    return None if rank is None else np.clip((int(k) - rank) / places, 0.0, 1.0)


def _of_query(name: str, outcomes: dict[str, np.ndarray]) -> np.ndarray | None:
    from tasks.ties import expected_cmc

    if name in ("mAP", "mINP"):
        return np.asarray(outcomes["ap" if name == "mAP" else "inp"], dtype=np.float64)
    if not (rank := re.fullmatch(r"rank(\d+)", name)):
        return None
    chance = expected_cmc(outcomes["before"], outcomes["tied"], outcomes["hits"], int(rank[1]))[:, -1]
    return np.where(outcomes["hits"] > 0, chance, np.nan)


def _order(first: Run, firsts: dict[str, np.ndarray], run: Run, outcomes: dict[str, np.ndarray]) -> np.ndarray:
    """[M] where each sample of the first run stands in this one."""
    wanted, names = firsts["sample"], outcomes["sample"]
    here, there = set(wanted.tolist()), set(names.tolist())
    ids = first.record.run_id, run.record.run_id
    if here != there:
        lacking = f"{len(here - there)} samples of {ids[0]} are missing in {ids[1]}, {len(there - here)} the other way"
        examples = some(sorted(map(str, here ^ there)), 3)
        raise UserError(f"not scored on the same samples: {lacking} ({examples})")
    if len(here) < len(wanted) or len(there) < len(names):
        raise UserError(f"{ids[0]} and {ids[1]}: several samples have one name, so they cannot be paired")
    if np.array_equal(wanted, names):
        return np.arange(len(names))
    order = np.argsort(names)
    return order[np.searchsorted(names[order], wanted)]


def _clusters(runs: Sequence[Run], outcomes: list[dict[str, np.ndarray]], orders: list[np.ndarray]) -> np.ndarray:
    """int64 [M] from 0: the cluster of each sample of the first run. Other runs may number them otherwise."""
    _, first = np.unique(outcomes[0]["cluster"], return_inverse=True)
    for run, one, order in zip(runs[1:], outcomes[1:], orders[1:]):
        _, other = np.unique(one["cluster"][order], return_inverse=True)
        pairs = np.unique(first.astype(np.int64) * len(other) + other)
        if not len(pairs) == len(np.unique(first)) == len(np.unique(other)):
            raise UserError(f"{runs[0].record.run_id} and {run.record.run_id}: their samples form other clusters")
    return first.astype(np.int64).reshape(-1)


def _means(
    runs: Sequence[Run],
    outcomes: list[dict[str, np.ndarray]],
    orders: list[np.ndarray],
    cluster: np.ndarray,
    names: Sequence[str],
    draws: int,
    seed: int,
) -> dict[str, Resampled]:
    columns, kept = [], []
    for name in names:
        own = [_values(run, name, one) for run, one in zip(runs, outcomes)]
        if all(values is not None for values in own) and all(name in run.record.scores for run in runs):
            kept.append(name)
            columns += [np.asarray(values)[order] for values, order in zip(own, orders)]
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
        found[name] = _checked(runs, name, scores, drawn[part], clusters)
        total = np.stack(counts[part]).sum(axis=1, keepdims=True)
        parts = Parts.of_sums(np.stack(sums[part]) / total, np.stack(counts[part]) / total)
        found[name] = replace(found[name], parts=parts)
    return found


def _values(run: Run, name: str, outcomes: dict[str, np.ndarray]) -> np.ndarray | None:
    with _scoring(run):
        values = per_sample(name, outcomes)
        if values is not None and values.shape != outcomes["sample"].shape:
            raise ValueError(f"{name}: {len(values)} values of {len(outcomes['sample'])} samples")
    return values


@contextmanager
def _scoring(run: Run) -> Iterator[None]:
    """What arrays raise that are missing or of other sizes, as an error that names their file."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise UserError(
            f"{run.folder / OUTCOMES}: cannot be scored ({type(error).__name__}: {error}); "
            f"`python -m transfer.verify {run.folder}` says more"
        ) from None


def _averages(
    runs: Sequence[Run],
    outcomes: list[dict[str, np.ndarray]],
    orders: list[np.ndarray],
    cluster: np.ndarray,
    names: Sequence[str],
    draws: int,
    seed: int,
) -> dict[str, Resampled]:
    from tasks.detection.coco_averages import Averager
    from tasks.detection.coco_scores import PREFIX, Matches

    prefix = names[0].partition("_")[0]
    kind = next(kind for kind, own in PREFIX.items() if own == prefix)
    clusters = int(cluster.max()) + 1
    rng = np.random.default_rng(seed)
    times = rng.multinomial(clusters, np.full(clusters, 1 / clusters), size=draws)
    most, short = int(times.max(initial=1)), [name.removeprefix(f"{prefix}_") for name in names]
    scores, drawn = np.empty((len(names), len(runs))), np.full((len(names), len(runs), draws), np.nan)
    matches = []
    for run, one in zip(runs, outcomes):
        with _scoring(run):
            matches.append(Matches.from_outcomes(one, kind))
    apart = _unlike_images(matches, orders)
    left_out = np.full((len(names), len(runs), len(apart)), np.nan)
    for place, (own, order) in enumerate(zip(matches, orders)):
        with _scoring(runs[place]):
            averager = Averager(own, short, most=most)
            weights = np.ones(len(order), dtype=np.int64)
            scores[:, place] = _row(averager.means(weights), short)
            for draw in range(draws):
                weights[order] = times[draw][cluster]
                drawn[:, place, draw] = _row(averager.means(weights), short)
            for number, image in enumerate(apart if len(apart) < MANY else ()):
                weights[order] = cluster != cluster[image]
                left_out[:, place, number] = _row(averager.means(weights), short)
    found = {name: _checked(runs, name, scores[number], drawn[number], clusters) for number, name in enumerate(names)}
    if len(apart) >= MANY:
        return found
    return {
        name: replace(
            one, parts=_jackknifed(one.scores, left_out[number], cluster[apart], clusters), comparing_only=True
        )
        for number, (name, one) in enumerate(found.items())
    }


def _unlike_images(matches: "Sequence[Matches]", orders: Sequence[np.ndarray]) -> np.ndarray:
    """[I'] the images of the first run on which the runs' detections are not all the same."""
    tables = [_by_image(one, order) for one, order in zip(matches, orders)]
    return np.array([place for place, own in enumerate(zip(*tables)) if len({*own}) > 1], dtype=np.int64)


def _by_image(matches: "Matches", order: np.ndarray) -> list[bytes]:
    """All that is known of the detections of each image of the first run."""
    columns = [matches.category, matches.score, matches.rank, *matches.matched.T, *matches.ignored.T]
    table = np.stack([np.asarray(one, dtype=np.float64) for one in columns], axis=1)
    by_image = np.argsort(matches.image, kind="stable")
    starts = np.searchsorted(matches.image[by_image], np.arange(len(order) + 1))
    return [table[by_image[starts[place] : starts[place + 1]]].tobytes() for place in order]


def _jackknifed(scores: np.ndarray, left_out: np.ndarray, apart: np.ndarray, clusters: int) -> Parts | None:
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
    return Parts.of_sums(sums, np.full(sums.shape, 1 / clusters))


def _row(means: dict[str, float], names: Sequence[str]) -> list[Any]:
    return [means.get(name, np.nan) for name in names]


def _checked(runs: Sequence[Run], name: str, scores: np.ndarray, drawn: np.ndarray, clusters: int) -> Resampled:
    for run, score in zip(runs, scores.tolist()):
        recorded = run.record.scores[name]
        if not abs(score - recorded) <= TOLERANCE:
            raise UserError(
                f"{run.folder}: {OUTCOMES} gives {name} = {score:.6f}, the record says {recorded:.6f}; "
                f"`python -m transfer.verify {run.folder}` says more"
            )
    return Resampled(scores, drawn[:, np.isfinite(drawn).all(axis=0)], clusters)
