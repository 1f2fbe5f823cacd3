"""Contrasts of the scores of runs, by what counts as one seed of a configuration. Imports no torch.

Letters: R runs, S seeds, B draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backbones.errors import UserError
from transfer.contrasts import UNKNOWN, contrast
from transfer.protocols import pretraining
from transfer.resampling import AP_DRAWS, DRAWS, resample
from transfer.results import Record, Run
from transfer.selecting import Exports, Match, known_exports
from transfer.statistics import LEVEL, Estimate
from transfer.systems import Parts, in_pairs


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
    runs: Sequence[Run], score: str, *, draws: int = DRAWS, ap_draws: int = AP_DRAWS, level: float = LEVEL
) -> Estimate | None:
    """The mean of a score over the runs of one configuration that have it, in [0, 1], with its interval.

    None where no run has the score or it is not one that samples add up to. Raises UserError as `compare`.
    """
    own = [run for run in runs if score in run.record.scores]
    if not own:
        return None
    units = [Units.of(own, known_exports(runs))]
    how = Bootstrap(draws, ap_draws, level=level, scores=(score,))
    found = estimates(units, {"": (1,)}, how)
    return found[score][1][""] if score in found else None


def score_names(records: Sequence[Record], how: Bootstrap) -> list[str]:
    """The scores to compare that all records have."""
    common = [name for name in records[0].scores if all(name in record.scores for record in records)]
    if how.scores:
        return [name for name in common if name in how.scores]
    prefixes = ("box_", "mask_")
    return [name for name in common if not name.startswith(prefixes) or name.endswith(("_AP", "_AP50", "_AP75"))]


@dataclass(frozen=True)
class Units:
    """The runs of a side that have a score, by what counts as one seed."""

    runs: list[Run]
    labels: list[tuple[str, Any]]

    @classmethod
    def of(cls, runs: Sequence[Run], exports: Exports) -> "Units":
        """Weights of several pretraining runs are the seeds, and fine-tunings of one of them are averaged."""
        latest: dict[tuple[str, int], Run] = {}
        for run in sorted(runs, key=lambda run: str(run.record.environment.get("started"))):
            if not run.record.broke_down:
                latest[run.record.weights_id, run.record.seed] = run
        kept = list(latest.values())
        if len({run.record.weights_id for run in kept}) < 2:
            return cls(kept, [("seed", run.record.seed) for run in kept])
        seeds = {run.record.weights_id: parent.seed for run in kept if (parent := pretraining(run.record, exports))}
        ids = {run.record.weights_id for run in kept}
        if len(seeds) == len(ids) == len({*seeds.values()}):
            return cls(kept, [("pretraining", seeds[run.record.weights_id]) for run in kept])
        return cls(kept, [("weights", run.record.weights_id) for run in kept])

    def averaged(self, values: np.ndarray) -> np.ndarray:
        """[R, ...] -> [S, ...], in the order of `seeds`."""
        places = {label: [at for at, own in enumerate(self.labels) if own == label] for label in self.seeds}
        return np.stack([values[at].mean(axis=0) for at in places.values()])

    def parts(self, parts: Parts, places: Sequence[int]) -> Parts:
        """Those of the runs at these places, as those of seeds."""
        own = parts.of(places)
        return Parts(*(self.averaged(one) for one in (own.sums, own.shares, own.influence)))

    @property
    def seeds(self) -> list[tuple[str, Any]]:
        """Each label once."""
        return list(dict.fromkeys(self.labels))


def estimates(
    units: Sequence[Units], contrasts: Mapping[str, Sequence[int]], how: Bootstrap
) -> dict[str, tuple[list[float], dict[str, Estimate]]]:
    """For each score the mean of each side, and the contrasts."""
    runs = [run for one in units for run in one.runs]
    drawn = resample(runs, score_names([run.record for run in runs], how), draws=how.draws, ap_draws=how.ap_draws)
    ends = np.cumsum([0, *(len(one.runs) for one in units)])
    found = {}
    for name, one in drawn.items():
        parts = list(zip(units, ends, ends[1:]))
        scores = [own.averaged(one.scores[start:stop]) for own, start, stop in parts]
        draws = [own.averaged(one.drawn[start:stop]) for own, start, stop in parts]
        adding = one.parts and [own.parts(one.parts, range(start, stop)) for own, start, stop in parts]
        made = {}
        for label, coefficients in contrasts.items():
            used = [place for place, coefficient in enumerate(coefficients) if coefficient]
            alone = len(used) == 1
            try:
                made[label] = contrast(
                    [scores[place] for place in used],
                    [draws[place] for place in used],
                    [coefficients[place] for place in used],
                    clusters=one.clusters,
                    parts=[adding[place] for place in used] if adding and not (one.comparing_only and alone) else None,
                    bounds=bounds_of(runs, name),
                    seeds=[units[place].seeds for place in used],
                    level=how.level,
                )
            except ValueError as error:
                raise UserError(f"{runs[0].record.run_id}: {name}: {error}") from None
        common = in_pairs([own.seeds for own in units]) or [list(range(len(own))) for own in scores]
        found[name] = [float(own[places].mean()) for own, places in zip(scores, common)], made
    return found


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


def _left_out(one: Match, units: Sequence[Units], used: Sequence[Sequence[int]]) -> list[str]:
    """The seeds that have no partner, so that the means are over the others alone."""
    letters = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    notes = []
    for letter, own, places in zip(letters, units, used):
        left = [label for place, label in enumerate(own.seeds) if place not in places]
        for kind, value in left:
            broken = [
                other
                for other, runs in zip(letters, one.sides)
                if kind == "seed" and any(run.record.broke_down and run.record.seed == value for run in runs)
            ]
            why = f"which broke down in {' and '.join(broken)}" if broken else "which the other side lacks"
            kept = "; what it says of how seeds vary is used" if len(places) == 2 else ""
            notes.append(f"left out of the means is {kind} {value} of {letter}, {why}{kept}")
    return notes


def seed_notes(one: Match, exports: Exports) -> list[str]:
    """What a row's seeds do not say."""
    units = [Units.of(runs, exports) for runs in one.sides]
    used = in_pairs([own.seeds for own in units])
    sizes = [len(places) for places in used] if used else [len(own.seeds) for own in units]
    notes = [f"{one.label}: {note}" for note in _left_out(one, units, used)] if used else []
    if max(sizes) == 1:
        notes.append(f"{one.label}: one seed, so the interval is that of these models on other samples")
    elif min(sizes) == 1:
        said = "if it varied ten times as much, the interval would cover about 70 %"
        notes.append(f"{one.label}: a side of one seed is taken to vary over seeds as the others do; {said}")
    if sum(size - 1 for size in sizes) == 1:
        notes.append(f"{one.label}: two seeds are few, and the interval covers about 90 % where seeds vary")
    if set(sizes) == {2}:
        said = "the interval covers 93 % at worst, and what is called detectable is shown in 87 to 97 %, not 80"
        notes.append(f"{one.label}: two seeds each are few: {said}")
    if min(sizes) > 1 and max(sizes) >= 2 * min(sizes):
        said = f"{sizes[0]} seeds against {sizes[1]}" if len(sizes) == 2 else f"{min(sizes)} to {max(sizes)} seeds"
        notes.append(f"{one.label}: {said}: for so unlike numbers the interval is wide, and covers 94 to 99 %")
    origins = [{run.record.weights_id for run in own.runs} - {"random"} for own in units]
    if max(sizes) > 1 and any(len(own) == 1 for own in origins):
        notes.append(
            f"{one.label}: all seeds start from one set of weights, so nothing is known of pretraining's seeds"
        )
    dropped = sum(not run.record.broke_down for runs in one.sides for run in runs) - sum(len(own.runs) for own in units)
    if dropped:
        notes.append(f"{one.label}: {dropped} repeated seed and weights of a later run, which counts alone")
    return notes
