"""Compares two variants, or the corners of a 2 x 2, on the same samples: estimates, p values and verdicts as values.

`notes_of` returns as texts what a reader should know beside the verdicts. Imports neither torch nor pandas.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transfer.comparison.paired_intervals import Units, estimates
from transfer.comparison.pairing import Exclusion, MatchedRuns
from transfer.comparison.selection import Axis, Selection
from transfer.core.errors import count
from transfer.core.grouped import values_by_key
from transfer.records.evidence import RANDOM, SCORE_AT_CHANCE, Evidence, ending, is_untrained
from transfer.records.fields import content_label
from transfer.records.record import Record
from transfer.statistics.contrasts import common_seeds
from transfer.statistics.intervals import SKEWED, Estimate, adjusted
from transfer.statistics.verdicts import Breakdowns, Kind, Verdict, verdict_of

PERCENT = 100.0
ARMS = ("a", "b")
FAMILIES = ("primary", "other", "not counted")
"""Families of tests: primary scores that answer which variant transfers better, their other scores, and the rest."""
DIFFERENCE = {"": (1, -1)}
"""The contrast of two variants, a less b."""
BORROWED = (
    "has one completed seed and is taken to vary over seeds as the others do: nothing is concluded; add seeds to it"
)
NO_MORE = "'se of seeds' is 0 where seeds vary no more than their test samples alone would make them"


def effects(f: Axis, g: Axis) -> dict[str, tuple[int, ...]]:
    """Return coefficients of the corners' mean scores for the effects of two fields, by name, the interaction last.

    A simple effect is the score with the first value of a field less that with the second, at one value of the other
    field. The interaction is the effect at the first value of the other field less that at the second.
    """
    (name_f, (f1, f2)), (name_g, (g1, g2)) = f, g
    return {
        f"{name_f}: {f1} less {f2}, {name_g} {g1}": (1, 0, -1, 0),
        f"{name_f}: {f1} less {f2}, {name_g} {g2}": (0, 1, 0, -1),
        f"{name_g}: {g1} less {g2}, {name_f} {f1}": (1, -1, 0, 0),
        f"{name_g}: {g1} less {g2}, {name_f} {f2}": (0, 0, 1, -1),
        f"interaction of {name_f} and {name_g}": (1, -1, -1, 1),
    }


@dataclass
class ComparedScore:
    """One row of a comparison.

    Attributes:
        matched: runs whose scores are compared.
        score: name of the score.
        verdict: conclusion about the contrast.
        means: mean score of each variant in the contrast, in the score's own unit; empty if a variant has no score.
        effect: name of an effect of a 2 x 2; None for a comparison of two variants.
        breakdowns: number of seeds that failed in each variant of the contrast.
        estimate: contrast with its interval; None without an interval.
        with_breakdowns: contrast in which training runs that failed count as chance; None if none failed.
        at_chance: whether no variant scores above chance.
        family: family of tests over which its p value is adjusted, one of `FAMILIES`.
        p: p value, adjusted for the number of tests in its family; None without an estimate.
    """

    matched: MatchedRuns
    score: str
    verdict: Verdict = field(default_factory=lambda: Verdict(Kind.NO_INTERVAL))
    means: tuple[float, ...] = ()
    effect: str | None = None
    breakdowns: tuple[Breakdowns, ...] = ()
    estimate: Estimate | None = None
    with_breakdowns: Estimate | None = None
    at_chance: bool = False
    family: str = FAMILIES[0]
    p: float | None = None

    @property
    def _metric(self) -> dict[str, Any]:
        return next((record.metrics.get(self.score) for record in self.matched.records if record.scores), None) or {}

    @property
    def percent(self) -> bool:
        """Whether the score is a fraction, which is shown in percent."""
        return bool(self._metric.get("unit", "fraction") == "fraction")

    @property
    def higher(self) -> bool:
        """Whether a higher score is better."""
        return bool(self._metric.get("direction", "higher") == "higher")

    @property
    def primary(self) -> bool:
        """Whether the score is the task's primary one."""
        return self.score == self.matched.first.primary

    @property
    def scale(self) -> float:
        """Factor from the score's own unit to the unit in which it is shown: 100 for a fraction."""
        return PERCENT if self.percent else 1.0


@dataclass(frozen=True)
class ComparedMatch:
    """The rows of one match.

    Attributes:
        matched: runs that are compared.
        units: runs of each variant by what counts as one seed.
        rows: a row for each score, or for each score and effect; one without numbers if a variant has no scores.
        without_interval: reason why there is no interval, by score; that of all scores has an empty name.
    """

    matched: MatchedRuns
    units: Sequence[Units]
    rows: Sequence[ComparedScore]
    without_interval: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A comparison of variants: its rows, and the runs that were not compared.

    Attributes:
        variants: chosen runs of each variant.
        effects: coefficients of each effect of a 2 x 2, by its name; empty for two variants.
        matches: matches with their rows.
        exclusions: reasons why chosen runs are in no row.
    """

    variants: list[Selection]
    effects: Mapping[str, Sequence[int]]
    matches: list[ComparedMatch]
    exclusions: list[Exclusion]

    @property
    def rows(self) -> list[ComparedScore]:
        """Rows of all matches."""
        return [row for match in self.matches for row in match.rows]


def compared_arms(
    matched: MatchedRuns,
    evidence: Evidence,
    names: Sequence[str] = ARMS,
    contrasts: Mapping[str, Sequence[int]] = DIFFERENCE,
) -> ComparedMatch:
    """Return a match with a row for each score of two variants, or for each score and effect of four corners.

    Args:
        matched: runs of each variant.
        evidence: the records among which pretrainings are looked for.
        names: name of each variant.
        contrasts: a coefficient for each variant, by the name of the effect.
    """
    units = [Units.of(runs, evidence) for runs in matched.variants]
    breakdowns = [Breakdowns(name, *one.variant.breakdowns) for name, one in zip(names, units, strict=True)]
    if not all(one.runs for one in units):
        failed = [not one.runs and bool(one.variant.absent) for one in units]
        kind = Kind.BOTH_FAILED if all(failed) else Kind.A_FAILED if failed[0] else Kind.B_FAILED
        verdict = Verdict(kind if any(failed) else Kind.NO_INTERVAL)
        row = ComparedScore(matched, matched.first.primary, verdict, breakdowns=tuple(breakdowns))
        return ComparedMatch(matched, units, [row])
    results, without = estimates(units, contrasts)
    at_chance = not any(one.variant.above_chance for one in units)
    rows = []
    for score, result in results.items():
        for name, coefficients in contrasts.items():
            used = [place for place, coefficient in enumerate(coefficients) if coefficient]
            row = ComparedScore(matched, score, effect=name or None, at_chance=at_chance)
            row.means = tuple(result.means[place] for place in used)
            row.breakdowns = tuple(breakdowns[place] for place in used)
            row.estimate, row.with_breakdowns = result.contrasts.get(name), result.with_breakdowns.get(name)
            row.family = FAMILIES[not row.primary]
            rows.append(row)
    return ComparedMatch(matched, units, rows, without)


def judge(rows: Sequence[ComparedScore], margin: float | None) -> None:
    """Write the p values, adjusted over each family of tests, and the verdicts into the rows.

    Args:
        margin: margin of equivalence in percentage points; None makes no test of equivalence.
    """
    for name in FAMILIES:
        family = [(row, row.estimate) for row in rows if row.estimate is not None and row.family == name]
        p_values = adjusted([estimate.p for _, estimate in family])
        for (row, estimate), p in zip(family, p_values, strict=True):
            row.p = p
            row.verdict = verdict_of(
                estimate,
                p=p,
                higher=row.higher,
                effect=row.effect is not None,
                tests=len(family),
                margin=margin / PERCENT if margin and row.percent else None,
                percent=row.percent,
            )
            if any(variant.broken for variant in row.breakdowns):
                row.verdict = replace(row.verdict, breakdowns=row.breakdowns, counted=row.with_breakdowns)
            if row.at_chance:
                row.verdict = Verdict(Kind.AT_CHANCE, row.percent)
            row.verdict = replace(row.verdict, caveats=tuple(_caveats(row.matched.records, estimate)))


def _caveats(records: Sequence[Record], estimate: Estimate) -> list[str]:
    """Return what stands beside a verdict."""
    subsets = {f"subset {record.subset}" for record in records if record.subset is not None}
    caveats = ["one seed"] * (estimate.seed_error is None) + sorted(subsets)
    caveats += ["random weights"] * any(map(is_untrained, records))
    return caveats + ["training not judged"] * any(record.not_judged for record in records)


def notes_of(match: ComparedMatch) -> list[str]:
    """Return the texts on a match: unshared fields, missing intervals, few clusters, and seeds."""
    return [*_unshared(match), *_no_interval(match), *_few_clusters(match), *_seeds(match)]


def _unshared(match: ComparedMatch) -> Iterator[str]:
    """Yield the text on fields that differ between the variants but were not selected."""
    contents = dict.fromkeys(content_label(content, content) for content in match.matched.unshared if content)
    if contents:
        yield f"the variants also differ in what was not selected: {' vs. '.join(contents)}"
    if any(name in content for content in match.matched.unshared for name in ("mean", "std")):
        yield "the images are normalized differently; set --mean and --std alike to compare the variants alone"


def _no_interval(match: ComparedMatch) -> Iterator[str]:
    """Yield each reason why scores have no interval, with their names unless it holds for all."""
    for reason, names in values_by_key((why, score) for score, why in match.without_interval.items()).items():
        yield f"no interval{' of ' * any(names)}{', '.join(names)}: {reason}"


def _few_clusters(match: ComparedMatch) -> Iterator[str]:
    """Yield the distinct texts on estimates dominated by a few large clusters, or with too few discordant ones."""
    rows = [(row, row.estimate) for row in match.rows if row.estimate is not None]
    unequal = [one for _, one in rows if 2 * one.effective_clusters < one.clusters]
    for size, equal in dict.fromkeys((one.clusters, f"{one.effective_clusters:.0f}") for one in unequal):
        yield f"{size} clusters of unequal sizes count as {equal} of equal size"
    few = [row for row, one in rows if one.method == "t" and one.most_discordant < SKEWED]
    if few:
        names = ", ".join(f"{row.score} ({row.effect})" if row.effect else row.score for row in few)
        yield f"fewer than {SKEWED} clusters differ, so the interval may be too short: {names}"


def _seeds(match: ComparedMatch) -> Iterator[str]:
    """Yield the notes on seeds: left out, a single one, of one pretraining, or averaged."""
    units = match.units
    paired = common_seeds([variant.seeds for variant in units])
    sizes = [len(places) for places in paired] if paired else [len(variant.seeds) for variant in units]
    names = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    if paired:
        yield from _left_out(names, units, paired)
    if min(sizes) == 1 < max(sizes) and any(row.estimate is not None for row in match.rows):
        yield f"{' and '.join(name for name, size in zip(names, sizes, strict=True) if size == 1)} {BORROWED}"
    if zero := dict.fromkeys(row.score for row in match.rows if row.estimate and row.estimate.seed_error == 0):
        yield f"{NO_MORE}: {', '.join(zero)}"
    weights = [{run.record.weights_id for run in variant.runs} - {RANDOM} for variant in units]
    if of := [name for name, ids, size in zip(names, weights, sizes, strict=True) if size > 1 and len(ids) == 1]:
        who = " and ".join(of)
        yield f"all seeds of {who} start from one set of weights; variance between pretraining runs is not measured"
    for name, variant in zip(names, units, strict=True):
        if guessing := sum(ending(run.record) == SCORE_AT_CHANCE for run in variant.runs):
            yield f"{guessing} of {len(variant.runs)} runs of {name} are not above chance on these test images"
        if len(variant.labels) > len(variant.seeds):
            same = variant.seeds[0][0] == "weights" and len(variant.seeds) == 1
            why = "the score does not depend on the seed" if same else "those of one seed or pretraining are averaged"
            yield f"{len(variant.labels)} runs of {name} count as {count(len(variant.seeds), 'seed')}: {why}"


def _left_out(names: Sequence[str], units: Sequence[Units], paired: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield a text for each seed without a counterpart in the other variants, which the means leave out.

    Args:
        paired: for each variant the indices of its seeds with a counterpart.
    """
    for name, variant, places in zip(names, units, paired, strict=True):
        for label in (label for place, label in enumerate(variant.seeds) if place not in places):
            broken = [other for other, of in zip(names, units, strict=True) if label in of.variant.absent]
            why = f"which failed in {' and '.join(broken)}" if broken else "which the other variant does not have"
            yield f"excluded: {' '.join(map(str, label))} of {name}, {why}"
