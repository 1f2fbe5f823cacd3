"""Contrasts of mean scores over seeds, with intervals over samples and seeds. Imports no torch.

Shapes: R runs, S seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from transfer.comparison.paired_scores import paired_scores
from transfer.core.errors import UserError
from transfer.records.evidence import Arm, Evidence, Unit, chance, informative
from transfer.records.store import Record, Run
from transfer.statistics.contrasts import UNKNOWN, contrast, paired_seeds
from transfer.statistics.intervals import Estimate, Scores


@dataclass(frozen=True)
class Settings:
    """Settings of intervals and p values.

    Attributes:
        correction: correction of p values for several tests: "holm", "bh" (Benjamini-Hochberg) or "none". The primary
            scores of a table are one family of tests, its other scores another.
        scores: names of the scores to compare; by default all, for COCO all over all object sizes.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.
    """

    correction: str = "holm"
    scores: tuple[str, ...] = ()
    margin: float | None = None


def mean_score(runs: Sequence[Run], score: str, evidence: Evidence) -> Estimate | None:
    """Return the mean of a score over the runs of one configuration that have it, in its own unit, with its interval.

    Returns None if no run has the score, or if samples do not add up to it.

    Args:
        runs: runs of one configuration.
        score: name of the score.
        evidence: the records among which pretrainings are looked for.

    Raises:
        UserError: per-sample outcomes are missing, damaged or of other samples.
    """
    scored = [run for run in runs if score in run.record.scores]
    if not scored:
        return None
    by_score = estimates([Units.of(scored, evidence)], {"": (1,)}, Settings(scores=(score,)))
    return by_score[score].contrasts[""] if score in by_score else None


def _score_names(records: Sequence[Record], options: Settings) -> list[str]:
    """Return the scores to compare that all records have."""
    names = options.scores or informative(records[0])
    common = [name for name in names if all(name in record.scores for record in records)]
    if options.scores:
        return common
    prefixes = ("box_", "mask_")
    return [name for name in common if not name.startswith(prefixes) or name.endswith(("_AP", "_AP50", "_AP75"))]


@dataclass(frozen=True)
class Units:
    """Runs of a variant that have a score, by what counts as one seed (`transfer.records.evidence.Evidence.variant`).

    Attributes:
        runs: [R] runs; the latest of several with the same weights and seed.
        labels: [R] unit that each run counts as; runs with the same label count as one seed.
        variant: all runs of the variant, with the training runs that failed.
    """

    runs: list[Run]
    labels: list[Unit]
    variant: Arm

    @classmethod
    def of(cls, runs: Sequence[Run], evidence: Evidence) -> "Units":
        """Return the units of some runs of one configuration."""
        variant = evidence.variant([run.record for run in runs])
        latest: dict[tuple[str, int], tuple[Run, Unit]] = {}
        labelled = zip(runs, variant.labels, strict=True)
        for run, label in sorted(labelled, key=lambda pair: str(pair[0].record.environment.get("started") or "")):
            if run.record.scored:
                latest[run.record.weights_id, run.record.seed] = run, label
        kept = list(latest.values())
        return cls([run for run, _ in kept], [label for _, label in kept], variant)

    @property
    def seeds(self) -> list[Unit]:
        """Distinct labels [S], in the order in which they first appear."""
        return list(dict.fromkeys(self.labels))

    @property
    def repeated(self) -> int:
        """Number of scored runs that do not count because a later one has the same weights and seed."""
        return sum(record.scored for record in self.variant.records) - len(self.runs)


def _by_label(labels: Sequence[Unit]) -> list[list[int]]:
    """Return the indices of the runs of each label, in the order in which the labels first appear."""
    return [[row for row, other in enumerate(labels) if other == label] for label in dict.fromkeys(labels)]


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


def estimates(
    units: Sequence[Units], contrasts: Mapping[str, Sequence[int]], options: Settings
) -> dict[str, Estimates]:
    """Return the mean of each variant and the contrasts, by score.

    Args:
        units: runs of each variant by seed.
        contrasts: a coefficient for each variant, by the name of the contrast.
        options: settings of the intervals.

    Raises:
        UserError, NotPaired: see `transfer.comparison.paired_scores.paired_scores`.
    """
    runs = [run for variant in units for run in variant.runs]
    ends = [0]
    for variant in units:
        ends.append(ends[-1] + len(variant.runs))
    results = {}
    try:
        for name, scores in paired_scores(runs, _score_names([run.record for run in runs], options)).items():
            variants = [scores.merged([[row] for row in range(start, end)]) for start, end in pairwise(ends)]
            results[name] = _estimates(units, variants, contrasts, runs[0].record, name)
    except ValueError as error:
        raise UserError(f"{runs[0].record.run_id}: {error}") from None
    return results


def _estimates(
    units: Sequence[Units],
    variants: Sequence[Scores],
    contrasts: Mapping[str, Sequence[int]],
    record: Record,
    name: str,
) -> Estimates:
    """Return the estimates of a score.

    Args:
        variants: scores of the runs [R] of each variant.
        record: a record with the score.
    """
    bounds = record.metrics.get(name, {}).get("bounds") or UNKNOWN

    def of(scores: Sequence[Scores], labels: Sequence[Sequence[Unit]]) -> tuple[list[float], dict[str, Estimate]]:
        merged = [variant.merged(_by_label(of_arm)) for variant, of_arm in zip(scores, labels, strict=True)]
        # among all variants, so that effects are those of the means that stand beside them
        kept, paired = paired_seeds(merged, [list(dict.fromkeys(of_arm)) for of_arm in labels])
        found = {}
        for label, coefficients in contrasts.items():
            used = [place for place, coefficient in enumerate(coefficients) if coefficient]
            found[label] = contrast(
                [kept[place] for place in used],
                [coefficients[place] for place in used],
                bounds=(float(bounds[0]), float(bounds[1])),
                paired=paired,
            )
        return [float(variant.values.mean()) for variant in kept], found

    result = Estimates(*of(variants, [variant.labels for variant in units]))
    level_of_chance = chance(record, name, record.metrics)
    if level_of_chance is None or not any(variant.variant.absent for variant in units):
        return result
    with_lost = [
        scores.with_constant(level_of_chance, len(variant.variant.absent))
        for scores, variant in zip(variants, units, strict=True)
    ]
    return replace(
        result, with_breakdowns=of(with_lost, [variant.labels + variant.variant.absent for variant in units])[1]
    )


def recorded_means(units: Sequence[Units], options: Settings) -> dict[str, list[float]]:
    """Return the mean score of each variant from the recorded scores, by score, without need of per-sample outcomes."""
    names = _score_names([run.record for variant in units for run in variant.runs], options)
    return {name: [_recorded_mean(variant, name) for variant in units] for name in names}


def _recorded_mean(variant: Units, name: str) -> float:
    """Return the mean over seeds of each seed's mean recorded score."""
    by_seed = [[variant.runs[row].record.scores[name] for row in rows] for rows in _by_label(variant.labels)]
    return math.fsum(math.fsum(scores) / len(scores) for scores in by_seed) / len(by_seed)
