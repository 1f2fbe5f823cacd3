"""Contrasts of the scores of runs, by what counts as one seed of a configuration. Imports no torch.

Letters: R runs, S seeds, B draws.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from backbones.errors import UserError
from transfer.comparison.bootstrap import AP_DRAWS, DRAWS, Resampled, resample
from transfer.comparison.pairing import MatchedRuns
from transfer.records.evidence import RANDOM, Arm, Evidence, Unit, chance
from transfer.records.store import Record, Run
from transfer.statistics.contrasts import UNKNOWN, contrast
from transfer.statistics.intervals import LEVEL, Estimate
from transfer.statistics.systems import Parts, in_pairs


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made."""

    draws: int = DRAWS
    ap_draws: int = AP_DRAWS
    """Of COCO's scores"""
    correction: str = "holm"
    """For the primary scores of the table together, and for its other scores together"""
    level: float = LEVEL
    scores: tuple[str, ...] = ()
    """Names of the scores; by default all, of COCO's those over all sizes"""
    margin: float | None = None
    """Differences that are smaller do not matter; in points of scores in percent"""


def mean_score(
    runs: Sequence[Run],
    score: str,
    *,
    draws: int = DRAWS,
    ap_draws: int = AP_DRAWS,
    level: float = LEVEL,
    known: Sequence[Record] | None = None,
) -> Estimate | None:
    """The mean of a score over the runs of one configuration that have it, in [0, 1], with its interval.

    None where no run has the score or it is not one that samples add up to. Raises UserError as `compare`.

    Args:
        known: as in `transfer.records.evidence.Evidence.of`.
    """
    own = [run for run in runs if score in run.record.scores]
    if not own:
        return None
    units = [Units.of(own, Evidence.of([run.record for run in runs], known))]
    how = Bootstrap(draws, ap_draws, level=level, scores=(score,))
    found = estimates(units, {"": (1,)}, how)
    return found[score].contrasts[""] if score in found else None


def score_names(records: Sequence[Record], how: Bootstrap) -> list[str]:
    """The scores to compare that all records have."""
    common = [name for name in records[0].scores if all(name in record.scores for record in records)]
    if how.scores:
        return [name for name in common if name in how.scores]
    prefixes = ("box_", "mask_")
    return [name for name in common if not name.startswith(prefixes) or name.endswith(("_AP", "_AP50", "_AP75"))]


@dataclass(frozen=True)
class Units:
    """The runs of a side that have a score, by what counts as one seed (`transfer.records.evidence.Evidence.arm`)."""

    runs: list[Run]
    labels: list[Unit]
    arm: Arm

    @classmethod
    def of(cls, runs: Sequence[Run], evidence: Evidence) -> "Units":
        """Of several runs of the same weights and seed the latest counts."""
        arm = evidence.arm([run.record for run in runs])
        latest: dict[tuple[str, int], tuple[Run, Unit]] = {}
        labelled = zip(runs, arm.labels, strict=True)
        for run, label in sorted(labelled, key=lambda one: str(one[0].record.environment.get("started") or "")):
            if not run.record.training_failed:
                latest[run.record.weights_id, run.record.seed] = run, label
        kept = list(latest.values())
        return cls([run for run, _ in kept], [label for _, label in kept], arm)

    def averaged(self, values: np.ndarray) -> np.ndarray:
        """[R, ...] -> [S, ...], in the order of `seeds`."""
        return averaged(values, self.labels)

    @property
    def seeds(self) -> list[Unit]:
        """Each label once."""
        return list(dict.fromkeys(self.labels))


def averaged(values: np.ndarray, labels: Sequence[Unit]) -> np.ndarray:
    """[R, ...] -> [S, ...]: the mean of each label's, in the order in which they first appear."""
    places = {label: [at for at, own in enumerate(labels) if own == label] for label in dict.fromkeys(labels)}
    return np.stack([values[at].mean(axis=0) for at in places.values()])


@dataclass(frozen=True)
class Estimates:
    """What is known of one score."""

    means: list[float]
    """Of each side"""
    contrasts: dict[str, Estimate]
    """By their names"""
    with_breakdowns: dict[str, Estimate]
    """The same with trainings that broke down at chance; empty where none did"""


@dataclass(frozen=True)
class _System:
    """One side's scores of one name."""

    scores: np.ndarray
    drawn: np.ndarray
    parts: Parts | None
    labels: list[Unit]

    @classmethod
    def of(cls, own: Units, one: Resampled, rows: slice, level: float | None = None) -> "_System":
        """Args: rows: of the side's runs. level: what each training that broke down counts, if it does."""
        scores, drawn, labels = one.scores[rows], one.drawn[rows], own.labels
        parts = one.parts and one.parts.of(range(rows.start, rows.stop))
        if level is not None and own.arm.absent:
            more = len(own.arm.absent)
            labels = labels + own.arm.absent
            scores = np.concatenate([scores, np.full(more, level)])
            drawn = np.concatenate([drawn, np.full((more, drawn.shape[1]), level)])
            parts = parts and parts.with_constant(level, more)
        apart = parts and Parts(*(averaged(each, labels) for each in (parts.sums, parts.shares, parts.influence)))
        return cls(averaged(scores, labels), averaged(drawn, labels), apart, list(dict.fromkeys(labels)))


def estimates(units: Sequence[Units], contrasts: Mapping[str, Sequence[int]], how: Bootstrap) -> dict[str, Estimates]:
    """For each score the mean of each side, and the contrasts."""
    runs = [run for one in units for run in one.runs]
    names, several = score_names([run.record for run in runs], how), len(units) > 1
    drawn = resample(runs, names, draws=how.draws, ap_draws=how.ap_draws, paired=several)
    ends = np.cumsum([0, *(len(one.runs) for one in units)]).tolist()
    rows = [slice(start, stop) for start, stop in pairwise(ends)]
    found = {}
    for name, one in drawn.items():
        systems = [_System.of(own, one, part) for own, part in zip(units, rows, strict=True)]
        common = in_pairs([own.labels for own in systems]) or [list(range(len(own.scores))) for own in systems]
        means = [float(own.scores[places].mean()) for own, places in zip(systems, common)]
        made = _contrasts(systems, one, contrasts, runs, name, how.level)
        more: dict[str, Estimate] = {}
        level = chance(runs[0].record, name, runs[0].record.metrics)
        if level is not None and any(own.arm.absent for own in units):
            counted = [_System.of(own, one, part, level) for own, part in zip(units, rows, strict=True)]
            # parts that are right in differences of runs alone say nothing of a constant
            kept = replace(one, parts=None) if one.comparing_only else one
            more = _contrasts(counted, kept, contrasts, runs, name, how.level)
        found[name] = Estimates(means, made, more)
    return found


def _contrasts(
    systems: Sequence[_System],
    one: Resampled,
    contrasts: Mapping[str, Sequence[int]],
    runs: Sequence[Run],
    name: str,
    level: float,
) -> dict[str, Estimate]:
    made = {}
    for label, coefficients in contrasts.items():
        used = [(own, coefficient) for own, coefficient in zip(systems, coefficients, strict=True) if coefficient]
        adding = [own.parts for own, _ in used if own.parts is not None]
        known = one.parts is not None and not (one.comparing_only and len(used) == 1)
        try:
            made[label] = contrast(
                [own.scores for own, _ in used],
                [own.drawn for own, _ in used],
                [coefficient for _, coefficient in used],
                clusters=one.clusters,
                parts=adding if known else None,
                bounds=bounds_of(runs, name),
                seeds=[own.labels for own, _ in used],
                level=level,
            )
        except ValueError as error:
            raise UserError(f"{runs[0].record.run_id}: {name}: {error}") from None
    return made


def bounds_of(runs: Sequence[Run], name: str) -> tuple[float, float]:
    """Between which a sample's value lies; nothing is known of a score that a record does not describe."""
    found = [run.record.metrics.get(name, {}).get("bounds") for run in runs]
    low, high = found[0] or UNKNOWN
    return (float(low), float(high)) if all(one == found[0] for one in found) else UNKNOWN


def means_alone(units: Sequence[Units], how: Bootstrap) -> dict[str, list[float]]:
    """For each score the mean of each side as recorded, where outcomes do not give more."""
    names = score_names([run.record for one in units for run in one.runs], how)
    return {
        name: [float(one.averaged(np.array([run.record.scores[name] for run in one.runs])).mean()) for one in units]
        for name in names
    }


def _left_out(units: Sequence[Units], used: Sequence[Sequence[int]]) -> list[str]:
    """The seeds that have no partner, so that the means are over the others alone."""
    letters = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    notes = []
    for letter, own, places in zip(letters, units, used):
        left = [label for place, label in enumerate(own.seeds) if place not in places]
        for kind, value in left:
            broken = [other for other, side in zip(letters, units) if (kind, value) in side.arm.absent]
            why = f"which broke down in {' and '.join(broken)}" if broken else "which the other side lacks"
            kept = "; what it says of how seeds vary is used" if len(places) == 2 else ""
            notes.append(f"left out of the means is {kind} {value} of {letter}, {why}{kept}")
    return notes


def _few_seeds(sizes: Sequence[int]) -> Iterator[str]:
    """What an interval over so many seeds of each side is not.

    Args:
        sizes: all above 0.
    """
    if max(sizes) == 1:
        yield "one seed, so the interval is that of these models on other samples"
    elif min(sizes) == 1:
        said = "if it varied ten times as much, the interval would cover about 70 %"
        yield f"a side of one seed is taken to vary over seeds as the others do; {said}"
    if sum(size - 1 for size in sizes) == 1:
        yield "two seeds are few, and the interval covers about 90 % where seeds vary"
    if set(sizes) == {2}:
        said = "the interval covers 93 % at worst, and what is called detectable is shown in 87 to 97 %, not 80"
        yield f"two seeds each are few: {said}"
    if min(sizes) > 1 and max(sizes) >= 2 * min(sizes):
        said = f"{sizes[0]} seeds against {sizes[1]}" if len(sizes) == 2 else f"{min(sizes)} to {max(sizes)} seeds"
        yield f"{said}: for so unlike numbers the interval is wide, and covers 94 to 99 %"


def seed_notes(one: MatchedRuns, evidence: Evidence, *, interval: bool) -> list[str]:
    """What a row's seeds do not say.

    Args:
        interval: whether the row has one, so that something is to be said of it.
    """
    units = [Units.of(runs, evidence) for runs in one.sides]
    used = in_pairs([own.seeds for own in units])
    sizes = [len(places) for places in used] if used else [len(own.seeds) for own in units]
    notes = [f"{one.label}: {note}" for note in _left_out(units, used)] if used else []
    notes += [f"{one.label}: {note}" for note in _few_seeds(sizes)] if interval else []
    origins = [{run.record.weights_id for run in own.runs} - {RANDOM} for own in units]
    if max(sizes) > 1 and any(len(own) == 1 for own in origins):
        notes.append(
            f"{one.label}: all seeds start from one set of weights, so nothing is known of pretraining's seeds"
        )
    letters = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    for letter, own in zip(letters, units, strict=True):
        if len(own.labels) > len(own.seeds):
            same = own.seeds[0][0] == "weights" and len(own.seeds) == 1
            why = "seeds change nothing here" if same else "those of one pretraining are averaged"
            notes.append(f"{one.label}: {len(own.labels)} runs of {letter} count as {len(own.seeds)}, since {why}")
    dropped = sum(not run.record.training_failed for runs in one.sides for run in runs) - sum(
        len(own.runs) for own in units
    )
    if dropped:
        notes.append(f"{one.label}: {dropped} repeated seed and weights of a later run, which counts alone")
    return notes


def few_notes(one: MatchedRuns, name: str, found: Estimates) -> list[str]:
    """Where fewer clusters differ than could show anything, or a few large ones decide; each once."""
    notes = []
    for effect, estimate in found.contrasts.items():
        if estimate.discordant is None:
            continue
        if estimate.effective_clusters is not None and 2 * estimate.effective_clusters < estimate.clusters:
            sizes = f"{estimate.clusters} clusters of so unlike sizes that they count as"
            said = "where most favour one side the interval covers about 92 %"
            notes.append(f"{one.label}: {sizes} {estimate.effective_clusters:.0f}; {said}")
        fewest = math.floor(1 - math.log2(1 - estimate.level)) + 1
        if estimate.discordant < fewest:
            differ = f"differs on {estimate.discordant} of {estimate.clusters} clusters"
            what = f"{name} ({effect})" if effect else name
            notes.append(f"{one.label}: {what} {differ}; {fewest}, all one way, are the fewest that show anything")
    return [note for note in dict.fromkeys(notes) if note not in one.notes]
