"""Contrasts of mean scores over seeds, with intervals over samples and seeds. Imports no torch.

Letters: R runs, S seeds, B resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import UserError
from transfer.comparison.bootstrap import AP_DRAWS, DRAWS, Resampled, resample
from transfer.records.evidence import Arm, Evidence, Unit, chance
from transfer.records.store import Record, Run
from transfer.statistics.cluster_scores import ClusterScores, common_seeds
from transfer.statistics.contrasts import UNKNOWN, contrast
from transfer.statistics.intervals import LEVEL, Estimate


@dataclass(frozen=True)
class Bootstrap:
    """Settings of intervals and p values.

    Attributes:
        draws: number of bootstrap resamples of the test samples.
        ap_draws: number of resamples for COCO's scores, each of which takes some hundredths of a second.
        correction: correction of p values for several tests: "holm", "bh" (Benjamini-Hochberg) or "none". The primary
            scores of a table are one family of tests, its other scores another.
        level: confidence level of the intervals, such as 0.95.
        scores: names of the scores to compare; by default all, for COCO all over all object sizes.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.
    """

    draws: int = DRAWS
    ap_draws: int = AP_DRAWS
    correction: str = "holm"
    level: float = LEVEL
    scores: tuple[str, ...] = ()
    margin: float | None = None


def mean_score(
    runs: Sequence[Run],
    score: str,
    *,
    draws: int = DRAWS,
    ap_draws: int = AP_DRAWS,
    level: float = LEVEL,
    known: Sequence[Record] | None = None,
) -> Estimate | None:
    """Return the mean of a score over the runs of one configuration that have it, in its own unit, with its interval.

    Returns None if no run has the score, or if samples do not add up to it.

    Args:
        runs: runs of one configuration.
        score: name of the score.
        draws: number of bootstrap resamples.
        ap_draws: number of bootstrap resamples for COCO's scores.
        level: confidence level of the interval.
        known: records among which pretrainings are looked for; by default those of the runs.

    Raises:
        UserError: per-sample outcomes are missing, damaged or of other samples.
    """
    scored = [run for run in runs if score in run.record.scores]
    if not scored:
        return None
    units = [Units.of(scored, Evidence([run.record for run in runs] if known is None else known))]
    options = Bootstrap(draws, ap_draws, level=level, scores=(score,))
    by_score = estimates(units, {"": (1,)}, options)
    return by_score[score].contrasts[""] if score in by_score else None


def _score_names(records: Sequence[Record], options: Bootstrap) -> list[str]:
    """Return the scores to compare that all records have."""
    common = [name for name in records[0].scores if all(name in record.scores for record in records)]
    if options.scores:
        return [name for name in common if name in options.scores]
    prefixes = ("box_", "mask_")
    return [name for name in common if not name.startswith(prefixes) or name.endswith(("_AP", "_AP50", "_AP75"))]


@dataclass(frozen=True)
class Units:
    """The runs of an arm that have a score, by what counts as one seed (`transfer.records.evidence.Evidence.arm`).

    Attributes:
        runs: [R] runs; the latest of several with the same weights and seed.
        labels: [R] unit that each run counts as; runs with the same label count as one seed.
        arm: all runs of the arm, with the trainings that broke down.
    """

    runs: list[Run]
    labels: list[Unit]
    arm: Arm

    @classmethod
    def of(cls, runs: Sequence[Run], evidence: Evidence) -> "Units":
        """Return the units of some runs of one configuration."""
        arm = evidence.arm([run.record for run in runs])
        latest: dict[tuple[str, int], tuple[Run, Unit]] = {}
        labelled = zip(runs, arm.labels, strict=True)
        for run, label in sorted(labelled, key=lambda pair: str(pair[0].record.environment.get("started") or "")):
            if not run.record.training_failed:
                latest[run.record.weights_id, run.record.seed] = run, label
        kept = list(latest.values())
        return cls([run for run, _ in kept], [label for _, label in kept], arm)

    @property
    def seeds(self) -> list[Unit]:
        """Distinct labels [S], in the order in which they first appear."""
        return list(dict.fromkeys(self.labels))

    @property
    def repeated(self) -> int:
        """Number of scored runs that do not count because a later one has the same weights and seed."""
        return sum(not record.training_failed for record in self.arm.records) - len(self.runs)


def _mean_by_label(values: NDArray[Any], labels: Sequence[Unit]) -> NDArray[Any]:
    """Return the mean of each label's values: [R, ...] -> [S, ...], in the order in which the labels first appear."""
    rows = {label: [row for row, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)}
    return np.stack([values[indices].mean(axis=0) for indices in rows.values()])


@dataclass(frozen=True)
class Estimates:
    """The estimates of one score.

    Attributes:
        means: mean score of each arm.
        contrasts: contrasts of the means by their names; empty if per-sample outcomes cannot be used.
        with_breakdowns: contrasts in which trainings that broke down count as chance; empty if none broke down.
    """

    means: list[float]
    contrasts: dict[str, Estimate] = field(default_factory=dict)
    with_breakdowns: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class _ArmScores:
    """The values of one score of an arm, one for each seed.

    Attributes:
        scores: [S] score of each seed on all samples.
        bootstrap_scores: [S, B] score of each seed on resampled samples.
        contributions: contributions of the clusters to the scores; None if unknown.
        labels: [S] label of each seed.
    """

    scores: NDArray[Any]
    bootstrap_scores: NDArray[Any]
    contributions: ClusterScores | None
    labels: list[Unit]

    @classmethod
    def of(cls, units: Units, resampled: Resampled, rows: slice, chance_level: float | None = None) -> "_ArmScores":
        """Return the values of an arm.

        Args:
            units: runs of the arm by seed.
            resampled: one score of the runs of all arms.
            rows: indices of the arm's runs in `resampled`.
            chance_level: score of each training that broke down; None leaves these trainings out.
        """
        scores, bootstrap_scores, labels = resampled.scores[rows], resampled.bootstrap_scores[rows], units.labels
        contributions = resampled.contributions and resampled.contributions.select(range(rows.start, rows.stop))
        if chance_level is not None and units.arm.absent:
            more = len(units.arm.absent)
            labels = labels + units.arm.absent
            scores = np.concatenate([scores, np.full(more, chance_level)])
            constant = np.full((more, bootstrap_scores.shape[1]), chance_level)
            bootstrap_scores = np.concatenate([bootstrap_scores, constant])
            contributions = contributions and contributions.with_constant(chance_level, more)
        merged = contributions and ClusterScores(
            *(
                _mean_by_label(values, labels)
                for values in (contributions.sums, contributions.shares, contributions.influence)
            )
        )
        return cls(
            _mean_by_label(scores, labels),
            _mean_by_label(bootstrap_scores, labels),
            merged,
            list(dict.fromkeys(labels)),
        )


def estimates(
    units: Sequence[Units], contrasts: Mapping[str, Sequence[int]], options: Bootstrap
) -> dict[str, Estimates]:
    """Return the mean of each arm and the contrasts, by score.

    Args:
        units: runs of each arm by seed.
        contrasts: a coefficient for each arm, by the name of the contrast.
        options: settings of the intervals.

    Raises:
        UserError, NotPaired: see `transfer.comparison.bootstrap.resample`.
    """
    runs = [run for arm in units for run in arm.runs]
    names, several = _score_names([run.record for run in runs], options), len(units) > 1
    by_score = resample(runs, names, draws=options.draws, ap_draws=options.ap_draws, paired=several)
    ends = np.cumsum([0, *(len(arm.runs) for arm in units)]).tolist()
    rows = [slice(start, stop) for start, stop in pairwise(ends)]
    results = {}
    for name, resampled in by_score.items():
        arms = [_ArmScores.of(arm, resampled, arm_rows) for arm, arm_rows in zip(units, rows, strict=True)]
        common = common_seeds([arm.labels for arm in arms])
        indices = common or [list(range(len(arm.scores))) for arm in arms]
        means = [float(arm.scores[kept].mean()) for arm, kept in zip(arms, indices, strict=True)]
        result = Estimates(means, _contrasts(arms, resampled, contrasts, runs, name, options.level))
        chance_level = chance(runs[0].record, name, runs[0].record.metrics)
        if chance_level is not None and any(arm.arm.absent for arm in units):
            arms = [
                _ArmScores.of(arm, resampled, arm_rows, chance_level) for arm, arm_rows in zip(units, rows, strict=True)
            ]
            # contributions that are right only in differences of runs do not hold against a constant
            usable = replace(resampled, contributions=None) if resampled.differences_only else resampled
            with_breakdowns = _contrasts(arms, usable, contrasts, runs, name, options.level)
            result = replace(result, with_breakdowns=with_breakdowns)
        results[name] = result
    return results


def _contrasts(
    arms: Sequence[_ArmScores],
    resampled: Resampled,
    contrasts: Mapping[str, Sequence[int]],
    runs: Sequence[Run],
    name: str,
    level: float,
) -> dict[str, Estimate]:
    """Return the contrasts of one score by their names. Raises UserError if a value is not finite."""
    results = {}
    for label, coefficients in contrasts.items():
        used = [(arm, coefficient) for arm, coefficient in zip(arms, coefficients, strict=True) if coefficient]
        contributions = [arm.contributions for arm, _ in used if arm.contributions is not None]
        usable = resampled.contributions is not None and not (resampled.differences_only and len(used) == 1)
        try:
            results[label] = contrast(
                [arm.scores for arm, _ in used],
                [arm.bootstrap_scores for arm, _ in used],
                [coefficient for _, coefficient in used],
                clusters=resampled.clusters,
                parts=contributions if usable else None,
                bounds=_bounds_of(runs, name),
                seeds=[arm.labels for arm, _ in used],
                level=level,
            )
        except ValueError as error:
            raise UserError(f"{runs[0].record.run_id}: {name}: {error}") from None
    return results


def _bounds_of(runs: Sequence[Run], name: str) -> tuple[float, float]:
    """Return the bounds (low, high) of a sample's value; `UNKNOWN` unless all records describe the score alike."""
    bounds = [run.record.metrics.get(name, {}).get("bounds") for run in runs]
    low, high = bounds[0] or UNKNOWN
    return (float(low), float(high)) if all(other == bounds[0] for other in bounds) else UNKNOWN


def recorded_means(units: Sequence[Units], options: Bootstrap) -> dict[str, list[float]]:
    """Return the mean score of each arm from the recorded scores, by score, without need of per-sample outcomes."""
    names = _score_names([run.record for arm in units for run in arm.runs], options)
    return {name: [_recorded_mean(arm, name) for arm in units] for name in names}


def _recorded_mean(arm: Units, name: str) -> float:
    """Return the mean over seeds of each seed's mean recorded score."""
    return float(_mean_by_label(np.array([run.record.scores[name] for run in arm.runs]), arm.labels).mean())
