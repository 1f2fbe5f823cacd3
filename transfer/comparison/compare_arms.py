"""Compares two variants, or the corners of a 2 x 2, on the same samples: estimates, p values and verdicts as values.

Imports neither torch nor pandas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from transfer.comparison.paired_intervals import Contrasts, Units, estimates
from transfer.comparison.pairing import Exclusion, MatchedRuns
from transfer.comparison.selection import Axis, Selection
from transfer.records.evidence import Evidence, is_untrained
from transfer.records.grouping import nearness_to_pretraining
from transfer.records.protocol import Exports
from transfer.records.record import Record
from transfer.statistics.intervals import Estimate, adjusted
from transfer.statistics.verdicts import Breakdowns, Kind, Verdict, verdict_of

PERCENT = 100.0
ARMS = ("a", "b")
DIFFERENCE = {"": (1, -1)}
"""The contrast of two variants, a less b."""


class Family(StrEnum):
    """Families of tests: primary scores that answer which variant transfers better, other scores of these, the rest."""

    PRIMARY = "primary"
    OTHER = "other"
    NOT_COUNTED = "not counted"


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
        family: family of tests over which its p value is adjusted.
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
    family: Family = Family.PRIMARY
    p: float | None = None

    @property
    def _metric(self) -> dict[str, Any]:
        scored = (record for record in self.matched.records if record.scores)
        return next((record.metrics.get(self.score) for record in scored), None) or {}

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
    effects: Contrasts
    matches: list[ComparedMatch]
    exclusions: list[Exclusion]

    @property
    def selected(self) -> set[str]:
        """Fields that all selectors name; a reader sees there how the variants differ in these."""
        return set.intersection(*({*variant.fields} for variant in self.variants))

    @property
    def rows(self) -> list[ComparedScore]:
        """Rows of all matches."""
        return [row for match in self.matches for row in match.rows]


def compared_arms(
    matched: MatchedRuns,
    evidence: Evidence,
    names: Sequence[str] = ARMS,
    contrasts: Contrasts = DIFFERENCE,
) -> ComparedMatch:
    """Return a match with a row for each score of two variants, or for each score and effect of four corners.

    Args:
        matched: runs of each variant.
        evidence: the records among which pretrainings are looked for.
        names: name of each variant.
        contrasts: a coefficient for each variant, by the name of the effect.
    """
    units = [Units.of(runs, evidence) for runs in matched.variants]
    breakdowns = [Breakdowns(name, *arm.variant.breakdowns) for name, arm in zip(names, units, strict=True)]
    if not all(arm.runs for arm in units):
        failed = [not arm.runs and bool(arm.variant.absent) for arm in units]
        kind = Kind.BOTH_FAILED if all(failed) else Kind.A_FAILED if failed[0] else Kind.B_FAILED
        verdict = Verdict(kind if any(failed) else Kind.NO_INTERVAL)
        row = ComparedScore(matched, matched.first.primary, verdict, breakdowns=tuple(breakdowns))
        return ComparedMatch(matched, units, [row])
    results, without = estimates(units, contrasts)
    at_chance = not any(arm.variant.above_chance for arm in units)
    rows = []
    for score, result in results.items():
        for name, coefficients in contrasts.items():
            used = [place for place, coefficient in enumerate(coefficients) if coefficient]
            row = ComparedScore(matched, score, effect=name or None, at_chance=at_chance)
            row.means = tuple(result.means[place] for place in used)
            row.breakdowns = tuple(breakdowns[place] for place in used)
            row.estimate, row.with_breakdowns = result.contrasts.get(name), result.with_breakdowns.get(name)
            row.family = Family.PRIMARY if row.primary else Family.OTHER
            rows.append(row)
    return ComparedMatch(matched, units, rows, without)


def decide(rows: Sequence[ComparedScore], exports: Exports, margin: float | None) -> None:
    """Write the families of tests, the p values, adjusted over each, and the verdicts into the rows.

    Counted are tasks on other datasets than the pretraining's; without any, those on its dataset; else the pretraining.

    Args:
        exports: see `transfer.records.protocol.by_export`.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.
    """
    nearness = [nearness_to_pretraining(row.matched.records, exports) for row in rows]
    nearest = min(nearness, default=0)
    for row, near in zip(rows, nearness, strict=True):
        if near > nearest:
            row.family = Family.NOT_COUNTED
    for family in Family:
        members = [row for row in rows if row.family is family]
        tests = [(row, row.estimate) for row in members if row.estimate is not None]
        p_values = adjusted([estimate.p for _, estimate in tests])
        for (row, estimate), p in zip(tests, p_values, strict=True):
            row.p = p
            row.verdict = verdict_of(
                estimate,
                p=p,
                higher=row.higher,
                effect=row.effect is not None,
                tests=len(tests),
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
    caveats = ["one seed"] if estimate.seed_error is None else []
    caveats += sorted({f"subset {record.subset}" for record in records if record.subset is not None})
    if any(map(is_untrained, records)):
        caveats.append("random weights")
    if any(record.not_judged for record in records):
        caveats.append("training not judged")
    return caveats
