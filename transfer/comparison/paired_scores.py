"""Scores of several runs on the same test samples, cluster by cluster, from `outcomes.npz`. Imports no torch.

Shapes: M samples, C clusters, R runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened
from transfer.records import per_sample
from transfer.records.per_sample import OUTCOMES, RESAMPLED
from transfer.records.store import Run
from transfer.statistics.intervals import Scores
from transfer.task import Outcomes


class NotPaired(UserError):
    """Some sample counts for a score in one run and not in another; `score` is the name of the score."""

    def __init__(self, score: str, reason: str) -> None:
        super().__init__(reason)
        self.score = score


def paired_scores(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Scores]:
    """Return the named scores with the runs as seeds; those that neither samples nor resamples give are left out.

    Args:
        runs: [R] finished runs that were scored on the same samples, in any order of these.
        names: names of the scores.

    Raises:
        UserError: outcomes are missing or unreadable, name other samples, or do not give the recorded score.
        NotPaired: a sample counts in some of the runs only.
    """
    outcomes = [read_outcomes(run) for run in runs]
    orders = [_order(runs[0], outcomes[0], run, arrays) for run, arrays in zip(runs, outcomes, strict=True)]
    cluster = _clusters(runs, outcomes, orders)
    results = {}
    for name in names:
        columns, resampled = [], []
        for run, arrays, order in zip(runs, outcomes, orders, strict=True):
            with _errors_name_file(run):
                values = per_sample.values_of(run.record, name, arrays)
            columns += [] if values is None else [values[order]]
            resampled += [arrays[key]] if (key := f"{RESAMPLED}{name}") in arrays else []
        if len(columns) == len(runs):
            results[name] = _of_samples(runs, name, np.stack(columns), outcomes[0]["sample"], cluster)
        elif len(resampled) == len(runs):
            drawn = np.stack(resampled)
            drawn = drawn[:, np.isfinite(drawn).all(axis=0)]  # without those in which nothing counted
            scores = np.array([run.record.scores[name] for run in runs])
            results[name] = Scores.of_resamples(scores, drawn, int(cluster.max()) + 1)
    return results


def _of_samples(
    runs: Sequence[Run], name: str, columns: NDArray[Any], samples: NDArray[Any], cluster: NDArray[Any]
) -> Scores:
    """Return a score that is a mean over samples.

    Args:
        columns: [R, M] value of each sample, nan where it does not count.
        samples: [M] names. cluster: [M] cluster of each sample, from 0.
    """
    counts = ~np.isnan(columns[0])
    for run, column in zip(runs[1:], columns[1:], strict=True):
        if len(unpaired := np.flatnonzero(np.isnan(column) == counts)):
            examples = shortened([str(sample) for sample in samples[unpaired]], 3)
            reason = f"{len(unpaired)} of {len(samples)} samples count in one of them alone ({examples})"
            raise NotPaired(name, f"{runs[0].record.run_id} and {run.record.run_id} are not paired in {name}: {reason}")
    _, numbers, sizes = np.unique(cluster[counts], return_inverse=True, return_counts=True)
    sums = np.stack([np.bincount(numbers, column[counts], len(sizes)) for column in columns])
    return Scores.of_clusters(sums, sizes)


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
