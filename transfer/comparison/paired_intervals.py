"""Contrasts of the scores of runs, by what counts as one seed of a configuration. Imports no torch.

Letters: R runs, S seeds, B draws.
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
    """How intervals and p values are made.

    Attributes:
        draws: how often test samples are resampled.
        ap_draws: the same for COCO's scores, each of which takes some hundredths of a second.
        correction: of p values for several tests: "holm", "bh" (Benjamini-Hochberg) or "none". The primary scores of a
            table are one family of tests, its other scores another.
        level: of the intervals, as 0.95.
        scores: the scores to compare, by name; by default all, of COCO's those over all sizes.
        margin: a smaller difference does not matter, in points of scores in percent; None finds nothing equivalent.
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
    """Return the mean of a score over the runs of one configuration that have it, in [0, 1], with its interval.

    None where no run has the score or it is not one that samples add up to.

    Args:
        known: as in `transfer.records.evidence.Evidence.of`.

    Raises:
        UserError: per-sample outcomes are missing, damaged or of other samples.
    """
    scored = [run for run in runs if score in run.record.scores]
    if not scored:
        return None
    units = [Units.of(scored, Evidence.of([run.record for run in runs], known))]
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
        runs: [R] runs, of several with the same weights and seed the latest one.
        labels: [R] what each counts as.
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

    def averaged(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the mean of each seed's runs: [R, ...] -> [S, ...], in the order of `seeds`."""
        return averaged(values, self.labels)

    @property
    def seeds(self) -> list[Unit]:
        """[S] each label once."""
        return list(dict.fromkeys(self.labels))

    @property
    def repeated(self) -> int:
        """How many runs with a score do not count, since a later one has the same weights and seed."""
        return sum(not record.training_failed for record in self.arm.records) - len(self.runs)


def averaged(values: NDArray[Any], labels: Sequence[Unit]) -> NDArray[Any]:
    """Return the mean of each label's values: [R, ...] -> [S, ...], in the order in which the labels first appear."""
    places = {label: [at for at, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)}
    return np.stack([values[at].mean(axis=0) for at in places.values()])


@dataclass(frozen=True)
class Estimates:
    """What is known of one score.

    Attributes:
        means: the mean of each arm.
        contrasts: contrasts of the means by their names; empty where per-sample outcomes cannot be used.
        with_breakdowns: the same with trainings that broke down at chance; empty where none did.
    """

    means: list[float]
    contrasts: dict[str, Estimate] = field(default_factory=dict)
    with_breakdowns: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class _System:
    """The values of one score of an arm: `scores` [S], `drawn` [S, B] on resampled samples, `labels` [S]."""

    scores: NDArray[Any]
    drawn: NDArray[Any]
    parts: ClusterScores | None
    labels: list[Unit]

    @classmethod
    def of(cls, units: Units, resampled: Resampled, rows: slice, level: float | None = None) -> "_System":
        """Return the values of an arm.

        Args:
            rows: places of the arm's runs in `resampled`.
            level: what each training that broke down counts; None leaves them out.
        """
        scores, drawn, labels = resampled.scores[rows], resampled.drawn[rows], units.labels
        parts = resampled.parts and resampled.parts.select(range(rows.start, rows.stop))
        if level is not None and units.arm.absent:
            more = len(units.arm.absent)
            labels = labels + units.arm.absent
            scores = np.concatenate([scores, np.full(more, level)])
            drawn = np.concatenate([drawn, np.full((more, drawn.shape[1]), level)])
            parts = parts and parts.with_constant(level, more)
        merged = parts and ClusterScores(
            *(averaged(each, labels) for each in (parts.sums, parts.shares, parts.influence))
        )
        return cls(averaged(scores, labels), averaged(drawn, labels), merged, list(dict.fromkeys(labels)))


def estimates(
    units: Sequence[Units], contrasts: Mapping[str, Sequence[int]], options: Bootstrap
) -> dict[str, Estimates]:
    """Return for each score the mean of each arm, and the contrasts.

    Args:
        units: the runs of each arm.
        contrasts: by name, a coefficient for each arm.

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
        systems = [_System.of(arm, resampled, part) for arm, part in zip(units, rows, strict=True)]
        common = common_seeds([system.labels for system in systems])
        places = common or [list(range(len(system.scores))) for system in systems]
        means = [float(system.scores[kept].mean()) for system, kept in zip(systems, places, strict=True)]
        result = Estimates(means, _contrasts(systems, resampled, contrasts, runs, name, options.level))
        level = chance(runs[0].record, name, runs[0].record.metrics)
        if level is not None and any(arm.arm.absent for arm in units):
            systems = [_System.of(arm, resampled, part, level) for arm, part in zip(units, rows, strict=True)]
            # parts that are right in differences of runs alone say nothing of a constant
            kept_parts = replace(resampled, parts=None) if resampled.comparing_only else resampled
            counted = _contrasts(systems, kept_parts, contrasts, runs, name, options.level)
            result = replace(result, with_breakdowns=counted)
        results[name] = result
    return results


def _contrasts(
    systems: Sequence[_System],
    resampled: Resampled,
    contrasts: Mapping[str, Sequence[int]],
    runs: Sequence[Run],
    name: str,
    level: float,
) -> dict[str, Estimate]:
    made = {}
    for label, coefficients in contrasts.items():
        used = [(system, coefficient) for system, coefficient in zip(systems, coefficients, strict=True) if coefficient]
        parts = [system.parts for system, _ in used if system.parts is not None]
        known = resampled.parts is not None and not (resampled.comparing_only and len(used) == 1)
        try:
            made[label] = contrast(
                [system.scores for system, _ in used],
                [system.drawn for system, _ in used],
                [coefficient for _, coefficient in used],
                clusters=resampled.clusters,
                parts=parts if known else None,
                bounds=_bounds_of(runs, name),
                seeds=[system.labels for system, _ in used],
                level=level,
            )
        except ValueError as error:
            raise UserError(f"{runs[0].record.run_id}: {name}: {error}") from None
    return made


def _bounds_of(runs: Sequence[Run], name: str) -> tuple[float, float]:
    """Between which a sample's value lies; nothing is known of a score that a record does not describe."""
    bounds = [run.record.metrics.get(name, {}).get("bounds") for run in runs]
    low, high = bounds[0] or UNKNOWN
    return (float(low), float(high)) if all(other == bounds[0] for other in bounds) else UNKNOWN


def recorded_means(units: Sequence[Units], options: Bootstrap) -> dict[str, list[float]]:
    """Return for each score the mean of each arm as the records have it, where outcomes do not give more."""
    names = _score_names([run.record for arm in units for run in arm.runs], options)
    return {
        name: [float(arm.averaged(np.array([run.record.scores[name] for run in arm.runs])).mean()) for arm in units]
        for name in names
    }
