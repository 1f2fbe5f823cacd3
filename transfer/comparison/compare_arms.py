"""Compares two variants, or the corners of a 2 x 2, on the same samples: estimates, p values and verdicts as values.

Imports neither torch nor pandas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from transfer.comparison.paired_intervals import Estimates, Settings, Units, estimates, recorded_means
from transfer.comparison.paired_scores import NotPaired
from transfer.comparison.pairing import Exclusion, MatchedRuns
from transfer.comparison.selection import Axis, Selection
from transfer.core.errors import UserError
from transfer.records.evidence import Evidence, is_untrained
from transfer.records.record import Record
from transfer.statistics.intervals import Estimate, adjusted
from transfer.statistics.verdicts import Breakdowns, Kind, Verdict, broken_down, verdict_of

PERCENT = 100.0
ARMS = ("a", "b")
FAMILIES = ("primary", "other", "not counted")
"""Families of tests: primary scores that answer which variant transfers better, their other scores, and the rest."""
DIFFERENCE = {"": (1, -1)}
"""The contrast of two variants, a less b."""


@dataclass(frozen=True)
class Effect:
    """A contrast of the four corners of a 2 x 2.

    Attributes:
        field: name of the field whose effect it is, such as "stem".
        values: two values of the field; the effect is the score with the first less that with the second.
        other: name of the other field.
        at: value of the other field; None for the interaction, which is the effect at its first value less that at its
            second.
        coefficients: coefficients of the corners' mean scores.
    """

    field: str
    values: tuple[str, str]
    other: str
    at: str | None
    coefficients: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the effect, unique in its 2 x 2."""
        if self.at is None:
            return f"interaction of {self.field} and {self.other}"
        return f"{self.field}: {self.values[0]} less {self.values[1]}, {self.other} {self.at}"


def effects(f: Axis, g: Axis) -> list[Effect]:
    """Return the simple effects of two fields, each at each value of the other, and their interaction."""
    (name_f, values_f), (name_g, values_g) = f, g
    return [
        Effect(name_f, values_f, name_g, values_g[0], (1, 0, -1, 0)),
        Effect(name_f, values_f, name_g, values_g[1], (0, 1, 0, -1)),
        Effect(name_g, values_g, name_f, values_f[0], (1, -1, 0, 0)),
        Effect(name_g, values_g, name_f, values_f[1], (0, 0, 1, -1)),
        Effect(name_f, values_f, name_g, None, (1, -1, -1, 1)),
    ]


@dataclass
class ComparedScore:
    """One row of a comparison.

    Attributes:
        matched: runs whose scores are compared.
        score: name of the score.
        verdict: conclusion about the contrast.
        means: mean score of each variant in the contrast, in the score's own unit; empty if a variant has no score.
        effect: effect of a 2 x 2; None for a comparison of two variants.
        percent: whether the score is a fraction that is shown in percent.
        higher: whether a higher score is better.
        primary: whether the score is the task's primary one.
        breakdowns: number of seeds that failed in each variant of the contrast.
        estimate: contrast with its interval; None without an interval.
        with_breakdowns: contrast in which training runs that failed count as chance; None if none failed.
        p: p value, adjusted for the number of tests in the table; None without an estimate.
    """

    matched: MatchedRuns
    score: str
    verdict: Verdict
    means: tuple[float, ...] = ()
    effect: Effect | None = None
    percent: bool = True
    higher: bool = True
    primary: bool = True
    breakdowns: tuple[Breakdowns, ...] = ()
    estimate: Estimate | None = None
    with_breakdowns: Estimate | None = None
    p: float | None = None
    at_chance: bool = False
    """Whether no variant scores above chance."""
    family: str = FAMILIES[0]
    """The family of tests over which its p value is adjusted, one of `FAMILIES`."""

    @property
    def scale(self) -> float:
        """Factor from the score's own unit to the unit in which it is shown: 100 for a fraction."""
        return PERCENT if self.percent else 1.0


@dataclass(frozen=True)
class NoInterval:
    """The reason why some scores have means but no interval.

    Attributes:
        scores: names of the scores; empty for all scores of a match.
        reason: error in the per-sample outcomes; empty if samples do not add up to these scores.
    """

    scores: tuple[str, ...]
    reason: str = ""


@dataclass
class ComparedMatch:
    """The rows of one match.

    Attributes:
        matched: runs that are compared.
        units: runs of each variant by what counts as one seed.
        rows: a row for each score, or for each score and effect.
        results: estimates of all contrasts, by score.
        without_interval: scores that have means but no interval, with the reasons.
    """

    matched: MatchedRuns
    units: list[Units]
    rows: list[ComparedScore] = field(default_factory=list)
    results: dict[str, Estimates] = field(default_factory=dict)
    without_interval: list[NoInterval] = field(default_factory=list)

    @classmethod
    def of(cls, matched: MatchedRuns, evidence: Evidence) -> "ComparedMatch":
        """Return the match without rows."""
        return cls(matched, [Units.of(runs, evidence) for runs in matched.variants])

    def estimate(self, contrasts: Mapping[str, Sequence[int]], options: Settings) -> None:
        """Compute means and contrasts of each score, or only the means if per-sample outcomes cannot be used."""
        means_only = {name: Estimates(means) for name, means in recorded_means(self.units, options).items()}
        self.results = means_only | self._contrasts(contrasts, options, list(means_only))

    def _contrasts(
        self, contrasts: Mapping[str, Sequence[int]], options: Settings, names: Sequence[str]
    ) -> dict[str, Estimates]:
        """Return the estimates of the scores that have an interval; note the reason for each of the others."""
        try:
            results = estimates(self.units, contrasts, options)
        except NotPaired as error:
            self.without_interval.append(NoInterval((error.score,), str(error)))
            others = tuple(name for name in names if name != error.score)
            return self._contrasts(contrasts, replace(options, scores=others), others) if others else {}
        except UserError as error:
            self.without_interval.append(NoInterval((), str(error)))
            return {}
        if missing := tuple(name for name in names if name not in results):
            self.without_interval.append(NoInterval(missing))
        return results

    def row(
        self, score: str, means: Sequence[float], contrast: str, breakdowns: tuple[Breakdowns, ...]
    ) -> ComparedScore:
        """Return the row of a contrast of a score; `judge` writes its verdict once p values are adjusted."""
        first, result = self.matched.first, self.results[score]
        percent = first.scale(score) == PERCENT
        metric = next((record.metrics.get(score) for record in self.matched.records if record.scores), None) or {}
        return ComparedScore(
            self.matched,
            score,
            Verdict(Kind.NO_INTERVAL, percent),
            means=tuple(means),
            percent=percent,
            higher=metric.get("direction", "higher") == "higher",
            primary=score == first.primary,
            family=FAMILIES[score != first.primary],
            breakdowns=breakdowns,
            estimate=result.contrasts.get(contrast),
            with_breakdowns=result.with_breakdowns.get(contrast),
            at_chance=not any(variant.variant.above_chance for variant in self.units),
        )

    def breakdowns(self, variants: Sequence[str]) -> tuple[Breakdowns, ...]:
        """Return how many seeds of each variant failed.

        Args:
            variants: names of the variants.
        """
        return tuple(
            Breakdowns(name, *variant.variant.breakdowns) for name, variant in zip(variants, self.units, strict=True)
        )


@dataclass(frozen=True)
class Comparison:
    """A comparison of variants: its rows, and the runs that were not compared.

    Attributes:
        variants: chosen runs of each variant.
        effects: effects of a 2 x 2; empty for two variants.
        matches: matches with their rows.
        exclusions: reasons why chosen runs are in no row.
        options: settings of the intervals and p values.
    """

    variants: list[Selection]
    effects: list[Effect]
    matches: list[ComparedMatch]
    exclusions: list[Exclusion]
    options: Settings

    @property
    def rows(self) -> list[ComparedScore]:
        """Rows of all matches."""
        return [row for match in self.matches for row in match.rows]


def compared_arms(matched: MatchedRuns, evidence: Evidence, options: Settings) -> ComparedMatch:
    """Return a match with a row for each score of two variants; one row without numbers if a variant has no scores."""
    match = ComparedMatch.of(matched, evidence)
    breakdowns = match.breakdowns(ARMS)
    if not all(variant.runs for variant in match.units):
        failed = [not variant.runs and bool(variant.variant.absent) for variant in match.units]
        verdict = broken_down(*failed) if any(failed) else Verdict(Kind.NO_INTERVAL)
        match.rows = [ComparedScore(matched, matched.first.primary, verdict, breakdowns=breakdowns)]
        return match
    match.estimate(DIFFERENCE, options)
    match.rows = [match.row(score, result.means, "", breakdowns) for score, result in match.results.items()]
    return match


def crossed_arms(
    matched: MatchedRuns,
    variants: Sequence[Selection],
    effects: Sequence[Effect],
    evidence: Evidence,
    options: Settings,
) -> ComparedMatch:
    """Return a match with a row for each score and effect of four corners, all of which have scores."""
    match = ComparedMatch.of(matched, evidence)
    breakdowns = match.breakdowns([variant.text for variant in variants])
    match.estimate({effect.name: effect.coefficients for effect in effects}, options)
    for score, result in match.results.items():
        for effect in effects:
            used = [index for index, coefficient in enumerate(effect.coefficients) if coefficient]
            means = [result.means[index] for index in used]
            row = match.row(score, means, effect.name, tuple(breakdowns[index] for index in used))
            match.rows.append(replace(row, effect=effect))
    return match


def judge(rows: Sequence[ComparedScore], options: Settings) -> None:
    """Write the p values, adjusted over each family of tests, and the verdicts into the rows."""
    for name in FAMILIES:
        family = [(row, row.estimate) for row in rows if row.estimate is not None and row.family == name]
        p_values = adjusted([estimate.p for _, estimate in family], options.correction)
        for (row, estimate), p in zip(family, p_values, strict=True):
            row.p = p
            row.verdict = verdict_of(
                estimate,
                p=p,
                higher=row.higher,
                effect=row.effect is not None,
                tests=len(family) if options.correction != "none" else 1,
                margin=options.margin / PERCENT if options.margin and row.percent else None,
                percent=row.percent,
                breakdowns=row.breakdowns,
                counted=row.with_breakdowns,
            )
            if row.at_chance:
                row.verdict = Verdict(Kind.AT_CHANCE, row.percent)
            row.verdict = replace(row.verdict, caveats=tuple(_caveats(row.matched.records, estimate)))


def _caveats(records: Sequence[Record], estimate: Estimate) -> list[str]:
    """Return what stands beside a verdict."""
    subsets = {f"subset {record.subset}" for record in records if record.subset is not None}
    caveats = ["one seed"] * (estimate.seed_error is None) + sorted(subsets)
    caveats += ["random weights"] * any(map(is_untrained, records))
    return caveats + ["training not judged"] * any(record.not_judged for record in records)
