"""Contrasts of mean scores over seeds, with intervals over samples and seeds, from `outcomes.npz`. Imports no torch.

Shapes: M samples, C clusters, R runs, S seeds.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, compress, count, pairwise
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened
from transfer.core.grouped import values_by_key
from transfer.records import per_sample
from transfer.records.evidence import Arm, Evidence, Unit, chance, informative
from transfer.records.per_sample import OUTCOMES, RESAMPLED
from transfer.records.record import Record
from transfer.records.store import StoredRun
from transfer.statistics.contrasts import UNKNOWN, contrast, paired_seeds
from transfer.statistics.intervals import Estimate, Scores
from transfer.task import Outcomes

Contrasts = Mapping[str, Sequence[int]]
"""A coefficient for each variant, by the name of the contrast."""


def _score_names(records: Sequence[Record]) -> list[str]:
    """Return the scores to compare that all records have; of COCO those over all object sizes."""
    shared = set.intersection(*({*record.scores} for record in records))
    of_coco = {name for name in shared if name.startswith(("box_", "mask_"))}
    of_sizes = {name for name in of_coco if not name.endswith(("_AP", "_AP50", "_AP75"))}
    return [name for name in informative(records[0]) if name in shared - of_sizes]


@dataclass(frozen=True)
class Units:
    """Runs of a variant that have a score, by what counts as one seed (`transfer.records.evidence.Evidence.variant`).

    Attributes:
        runs: [R] runs.
        labels: [R] unit that each run counts as; runs with the same label count as one seed, their mean.
        variant: all runs of the variant, with the training runs that failed.
    """

    runs: list[StoredRun]
    labels: list[Unit]
    variant: Arm

    @classmethod
    def of(cls, runs: Sequence[StoredRun], evidence: Evidence, score: str = "") -> "Units":
        """Return the units of some runs of one configuration, in which those without a score, or this one, count."""
        variant = evidence.variant([run.record for run in runs])
        counts = [score in run.record.scores if score else run.record.scored for run in runs]
        scored = [*compress(zip(runs, variant.labels, strict=True), counts)]
        return cls([run for run, _ in scored], [label for _, label in scored], variant)

    @property
    def seeds(self) -> list[Unit]:
        """Distinct labels [S], in the order in which they first appear."""
        return list(dict.fromkeys(self.labels))


@dataclass(frozen=True)
class Estimates:
    """The estimates of one score.

    Attributes:
        means: mean score of each variant.
        contrasts: contrasts of the means by their names; empty if per-sample outcomes cannot be used.
        with_breakdowns: contrasts in which training runs that failed count as chance; empty if none failed.
    """

    means: list[float]
    contrasts: dict[str, Estimate] = field(default_factory=dict)
    with_breakdowns: dict[str, Estimate] = field(default_factory=dict)


class PairedOutcomes:
    """The per-sample outcomes of runs that were scored on the same samples, in any order of these.

    Args:
        runs: [R] finished runs.
        outcomes: the arrays of each by its id, by default those of `read_outcomes`.

    Raises:
        UserError: outcomes are missing or unreadable, or name other samples or clusters.
    """

    def __init__(self, runs: Sequence[StoredRun], outcomes: Mapping[str, Outcomes] | None = None) -> None:
        self._runs = runs
        self._outcomes = [outcomes[run.record.run_id] if outcomes else read_outcomes(run) for run in runs]
        self._orders = [self._order(run, arrays) for run, arrays in zip(runs, self._outcomes, strict=True)]
        self._cluster = self._clusters()

    def scores(self, name: str) -> Scores | None:
        """Return a score with the runs as seeds; None if neither samples nor resamples give it.

        Raises:
            UserError: the outcomes do not give the recorded score, or a sample counts in some of the runs only.
        """
        columns, resampled = [], []
        for run, arrays, order in zip(self._runs, self._outcomes, self._orders, strict=True):
            with _errors_name_file(run):
                values = per_sample.sample_values(run.record, name, arrays)
            columns += [] if values is None else [values[order]]
            resampled += [arrays[key]] if (key := f"{RESAMPLED}{name}") in arrays else []
        if len(columns) == len(self._runs):
            return self._of_samples(name, np.stack(columns))
        if len(resampled) < len(self._runs):
            return None
        drawn = np.stack(resampled)
        drawn = drawn[:, np.isfinite(drawn).all(axis=0)]  # without those in which nothing counted
        recorded = np.array([run.record.scores[name] for run in self._runs])
        return Scores.of_resamples(recorded, drawn, int(self._cluster.max()) + 1)

    def _of_samples(self, name: str, columns: NDArray[Any]) -> Scores:
        """Return a score that is a mean over samples.

        Args:
            columns: [R, M] value of each sample, nan where it does not count.
        """
        first, samples = self._runs[0].record.run_id, self._outcomes[0]["sample"]
        counts = ~np.isnan(columns[0])
        for run, column in zip(self._runs[1:], columns[1:], strict=True):
            if len(unpaired := np.flatnonzero(np.isnan(column) == counts)):
                examples = shortened([str(sample) for sample in samples[unpaired]], 3)
                reason = f"{len(unpaired)} of {len(samples)} samples count in one of them alone ({examples})"
                raise UserError(f"{first} and {run.record.run_id} are not paired in {name}: {reason}")
        _, numbers, sizes = np.unique(self._cluster[counts], return_inverse=True, return_counts=True)
        sums = np.stack([np.bincount(numbers, column[counts], len(sizes)) for column in columns])
        return Scores.of_clusters(sums, sizes)

    def _order(self, run: StoredRun, outcomes: Outcomes) -> NDArray[Any]:
        """Return the index [M] in a run's outcomes of each sample of the first run."""
        first_names, names = self._outcomes[0]["sample"], outcomes["sample"]
        first_set, name_set = set(first_names.tolist()), set(names.tolist())
        if first_set != name_set:
            missing = f"{len(first_set - name_set)} samples of {self._runs[0].record.run_id} are missing"
            lacking = f"{missing} in {run.record.run_id}, {len(name_set - first_set)} the other way"
            examples = shortened(sorted(map(str, first_set ^ name_set)), 3)
            raise UserError(f"not scored on the same samples: {lacking} ({examples})")
        order = np.argsort(names)
        return order[np.searchsorted(names[order], first_names)]

    def _clusters(self) -> NDArray[Any]:
        """Return the cluster, int64 [M] from 0, of each sample of the first run; others may number them otherwise.

        Raises UserError if a run groups the samples otherwise.
        """
        _, first = np.unique(self._outcomes[0]["cluster"], return_inverse=True)
        for run, arrays, order in zip(self._runs[1:], self._outcomes[1:], self._orders[1:]):
            _, other = np.unique(arrays["cluster"][order], return_inverse=True)
            pairs = np.unique(first.astype(np.int64) * len(other) + other)
            if not len(pairs) == len(np.unique(first)) == len(np.unique(other)):
                ids = f"{self._runs[0].record.run_id} and {run.record.run_id}"
                raise UserError(f"{ids}: their samples form other clusters")
        clusters: NDArray[Any] = first.astype(np.int64).reshape(-1)
        return clusters


def read_outcomes(run: StoredRun) -> Outcomes:
    """Return the arrays of a run's `outcomes.npz`. Raises UserError if they cannot be read."""
    with _errors_name_file(run):
        return per_sample.read(run.folder / OUTCOMES)


@contextmanager
def _errors_name_file(run: StoredRun) -> Iterator[None]:
    """Turn UnusableOutcomes into a UserError that names the run's file."""
    try:
        yield
    except per_sample.UnusableOutcomes as error:
        file, more = run.folder / OUTCOMES, f"`python -m transfer.verify {run.folder}` says more"
        raise UserError(f"{file}: {error}; {more}") from None


def estimates(units: Sequence[Units], contrasts: Contrasts) -> tuple[dict[str, Estimates], dict[str, str]]:
    """Return the mean of each variant and the contrasts, by score; and by score the reason why there is no interval.

    Means without an interval are those of the recorded scores. A reason that holds for all scores has an empty name.

    Args:
        units: runs of each variant by seed.
        contrasts: those to estimate.
    """
    runs = list(chain.from_iterable(variant.runs for variant in units))
    names, reasons = _score_names([run.record for run in runs]), dict[str, str]()
    results = {name: Estimates([_recorded_mean(variant, name) for variant in units]) for name in names}
    try:
        outcomes = PairedOutcomes(runs)
    except UserError as error:
        return results, {"": str(error)}
    for name in names:
        try:
            if result := _estimates(units, outcomes, contrasts, name):
                results[name] = result
            else:
                reasons[name] = "not a mean over samples"
        except UserError as error:
            reasons[name] = str(error)
    return results, reasons


def mean_score(
    runs: Sequence[StoredRun], score: str, evidence: Evidence, outcomes: Mapping[str, Outcomes] | None = None
) -> Estimate | None:
    """Return the mean of a score over the seeds of one configuration that have it, in its own unit, with its interval.

    Returns None if no run has the score, or if samples do not add up to it.

    Args:
        runs: all runs of one configuration, which decide what counts as one seed.
        score: name of the score.
        evidence: the records among which pretrainings are looked for.
        outcomes: the arrays of each run by its id, by default those of its file.

    Raises:
        UserError: per-sample outcomes are missing, damaged or of other samples.
    """
    units = Units.of(runs, evidence, score)
    if not units.runs:
        return None
    result = _estimates([units], PairedOutcomes(units.runs, outcomes), {"": (1,)}, score)
    return result.contrasts[""] if result else None


def _recorded_mean(variant: Units, name: str) -> float:
    """Return the mean over seeds of each seed's mean recorded score."""
    scores = (run.record.scores[name] for run in variant.runs)
    return fmean(map(fmean, values_by_key(zip(variant.labels, scores)).values()))


def _estimates(units: Sequence[Units], outcomes: PairedOutcomes, contrasts: Contrasts, name: str) -> Estimates | None:
    """Return the estimates of a score; None if neither samples nor resamples give it. Raises UserError."""
    record = units[0].runs[0].record
    low, high = record.metrics.get(name, {}).get("bounds") or UNKNOWN
    bounds = float(low), float(high)
    labels, absent = [arm.labels for arm in units], [arm.variant.absent for arm in units]
    try:
        if (scores := outcomes.scores(name)) is None:
            return None
        ends = [0, *accumulate(map(len, labels))]
        arms = [scores.of_seeds_at(range(start, end)) for start, end in pairwise(ends)]
        result = Estimates(*_contrasts(arms, labels, contrasts, bounds))
        level = chance(record, name)
        if level is None or not any(absent):
            return result
        with_failed = [arm.with_constant(level, len(failed)) for arm, failed in zip(arms, absent, strict=True)]
        labels = [arm.labels + arm.variant.absent for arm in units]
        return replace(result, with_breakdowns=_contrasts(with_failed, labels, contrasts, bounds)[1])
    except ValueError as error:
        raise UserError(f"{record.run_id}: {error}") from None


def _contrasts(
    arms: Sequence[Scores], labels: Sequence[Sequence[Unit]], contrasts: Contrasts, bounds: tuple[float, float]
) -> tuple[list[float], dict[str, Estimate]]:
    """Return the mean of each variant, and the contrasts of the means by their names.

    Args:
        arms: scores of each variant's runs.
        labels: unit of each run of each variant.
        contrasts: see `estimates`.
        bounds: smallest and largest value of a sample.
    """
    places = [values_by_key(zip(of_runs, count())) for of_runs in labels]
    by_unit = [arm.merged([*of_units.values()]) for arm, of_units in zip(arms, places, strict=True)]
    # among all variants, so that effects are those of the means that stand beside them
    paired_arms, paired = paired_seeds(by_unit, [list(of_units) for of_units in places])
    estimates_by_name = {}
    for label, coefficients in contrasts.items():
        used = [place for place, coefficient in enumerate(coefficients) if coefficient]
        used_coefficients = [coefficients[place] for place in used]
        used_arms = [paired_arms[place] for place in used]
        estimates_by_name[label] = contrast(used_arms, used_coefficients, bounds=bounds, paired=paired)
    return [float(arm.values.mean()) for arm in paired_arms], estimates_by_name
