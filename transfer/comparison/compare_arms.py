"""Two arms, or the four of a 2 x 2, compared on the same samples: estimates, p values and verdicts as values.

Imports neither torch nor pandas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from backbones.errors import UserError
from transfer.comparison.bootstrap import NotPaired
from transfer.comparison.exclusions import Exclusion
from transfer.comparison.paired_intervals import Bootstrap, Estimates, Units, estimates, recorded_means
from transfer.comparison.pairing import MatchedRuns
from transfer.comparison.selection import Selection
from transfer.records.evidence import Evidence
from transfer.statistics.intervals import Estimate, adjusted
from transfer.statistics.verdicts import Breakdowns, Kind, Verdict, broken_down, verdict_of

PERCENT = 100.0
ARMS = ("a", "b")
DIFFERENCE = {"": (1, -1)}
"""The contrast of two arms."""


@dataclass(frozen=True)
class Effect:
    """A contrast of the four corners of a 2 x 2.

    Attributes:
        field: the field whose effect it is, as "stem".
        values: its two values; the effect is the score with the first less that with the second.
        other: the other field.
        at: the value of the other field; None for the interaction, which is the effect at its first value less that at
            its second.
        coefficients: of the corners' means.
    """

    field: str
    values: tuple[str, str]
    other: str
    at: str | None
    coefficients: tuple[int, ...]

    @property
    def name(self) -> str:
        """A name that no other effect of the 2 x 2 has."""
        if self.at is None:
            return f"interaction of {self.field} and {self.other}"
        return f"{self.field}: {self.values[0]} less {self.values[1]}, {self.other} {self.at}"


@dataclass
class ComparedScore:
    """One row of a comparison.

    Attributes:
        matched: the runs behind it.
        score: its name.
        means: the mean of each arm that takes part, in the score's own unit; empty where an arm has no score.
        effect: of a 2 x 2; None for a comparison of two arms.
        percent: whether the score is a fraction, shown in percent.
        higher: whether more of it is better.
        primary: whether it is the task's primary score.
        breakdowns: of each arm that takes part.
        estimate: the difference with its interval; None where there is none.
        counted: the same with trainings that broke down at chance.
        p: adjusted over the table; None without an estimate.
        verdict: what it concludes.
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
    counted: Estimate | None = None
    p: float | None = None

    @property
    def scale(self) -> float:
        """By what readers are shown its numbers: 100 for fractions."""
        return PERCENT if self.percent else 1.0


@dataclass(frozen=True)
class NoInterval:
    """Why some scores have means alone.

    Attributes:
        scores: their names; empty for all of a match.
        reason: what is wrong with the per-sample outcomes; empty where samples do not add up to these scores.
    """

    scores: tuple[str, ...]
    reason: str = ""


@dataclass
class ComparedMatch:
    """The rows of one match.

    Attributes:
        matched: the runs.
        units: of each arm, what counts as one seed.
        rows: a row for each score, or for each score and effect.
        results: by score, the estimates of all contrasts.
        without_interval: the scores that have means alone.
    """

    matched: MatchedRuns
    units: list[Units]
    rows: list[ComparedScore] = field(default_factory=list)
    results: dict[str, Estimates] = field(default_factory=dict)
    without_interval: list[NoInterval] = field(default_factory=list)

    @classmethod
    def of(cls, matched: MatchedRuns, evidence: Evidence) -> "ComparedMatch":
        """Return a match without rows yet."""
        return cls(matched, [Units.of(runs, evidence) for runs in matched.arms])

    def estimate(self, contrasts: Mapping[str, Sequence[int]], options: Bootstrap) -> None:
        """Work out means and contrasts of each score; means alone where per-sample outcomes cannot be used."""
        alone = {name: Estimates(means) for name, means in recorded_means(self.units, options).items()}
        self.results = alone | self._contrasts(contrasts, options, list(alone))

    def _contrasts(
        self, contrasts: Mapping[str, Sequence[int]], options: Bootstrap, names: Sequence[str]
    ) -> dict[str, Estimates]:
        """The estimates of those of the scores that have an interval."""
        try:
            results = estimates(self.units, contrasts, options)
        except NotPaired as error:
            self.without_interval.append(NoInterval((error.score,), str(error)))
            others = tuple(name for name in names if name != error.score)
            return self._contrasts(contrasts, replace(options, scores=others), others) if others else {}
        except UserError as error:
            self.without_interval.append(NoInterval((), str(error)))
            return {}
        if lacking := tuple(name for name in names if name not in results):
            self.without_interval.append(NoInterval(lacking))
        return results

    def row(
        self, score: str, means: Sequence[float], contrast: str, breakdowns: tuple[Breakdowns, ...]
    ) -> ComparedScore:
        """Return the row of a contrast of a score, whose verdict waits for the adjusted p value."""
        first, result = self.matched.first, self.results[score]
        percent = first.scale(score) == PERCENT
        return ComparedScore(
            self.matched,
            score,
            Verdict(Kind.NO_INTERVAL, percent),
            means=tuple(means),
            percent=percent,
            higher=_is_higher_better(self.matched, score),
            primary=score == first.primary,
            breakdowns=breakdowns,
            estimate=result.contrasts.get(contrast),
            counted=result.with_breakdowns.get(contrast),
        )

    def breakdowns(self, arms: Sequence[str]) -> tuple[Breakdowns, ...]:
        """Return how many seeds of each arm broke down.

        Args:
            arms: what the arms are called.
        """
        return tuple(Breakdowns(name, *arm.arm.breakdowns) for name, arm in zip(arms, self.units, strict=True))


@dataclass(frozen=True)
class Comparison:
    """What was compared, and what was not.

    Attributes:
        arms: what was chosen.
        effects: of a 2 x 2; empty for two arms.
        matches: the matches with their rows.
        exclusions: why runs are in no row.
        options: how intervals and p values were made.
    """

    arms: list[Selection]
    effects: list[Effect]
    matches: list[ComparedMatch]
    exclusions: list[Exclusion]
    options: Bootstrap

    @property
    def rows(self) -> list[ComparedScore]:
        """The rows of all matches."""
        return [row for match in self.matches for row in match.rows]


def compared_arms(matched: MatchedRuns, evidence: Evidence, options: Bootstrap) -> ComparedMatch:
    """Return a row for each score of two arms; one without numbers where an arm has none."""
    match = ComparedMatch.of(matched, evidence)
    breakdowns = match.breakdowns(ARMS)
    if not all(arm.runs for arm in match.units):
        verdict = broken_down(*(not arm.runs for arm in match.units))
        match.rows = [ComparedScore(matched, matched.first.primary, verdict, breakdowns=breakdowns)]
        return match
    match.estimate(DIFFERENCE, options)
    match.rows = [match.row(score, result.means, "", breakdowns) for score, result in match.results.items()]
    return match


def crossed_arms(
    matched: MatchedRuns, arms: Sequence[Selection], effects: Sequence[Effect], evidence: Evidence, options: Bootstrap
) -> ComparedMatch:
    """Return a row for each score and effect of the four corners, all of which have scores."""
    match = ComparedMatch.of(matched, evidence)
    match.estimate({effect.name: effect.coefficients for effect in effects}, options)
    breakdowns = match.breakdowns([arm.text for arm in arms])
    for score, result in match.results.items():
        for effect in effects:
            used = [place for place, coefficient in enumerate(effect.coefficients) if coefficient]
            broken = tuple(breakdowns[place] for place in used)
            row = match.row(score, [result.means[place] for place in used], effect.name, broken)
            match.rows.append(replace(row, effect=effect))
    return match


def judge(rows: Sequence[ComparedScore], options: Bootstrap) -> None:
    """Adjust the p values over each family of tests, and write these and the verdicts into the rows."""
    for primary in (True, False):
        family = [(row, row.estimate) for row in rows if row.estimate is not None and row.primary == primary]
        ps = adjusted([estimate.p for _, estimate in family], options.correction)
        for (row, estimate), p in zip(family, ps, strict=True):
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
                counted=row.counted,
            )


def _is_higher_better(matched: MatchedRuns, score: str) -> bool:
    metric = next((record.metrics.get(score) for record in matched.records if record.scores), None) or {}
    return bool(metric.get("direction", "higher") == "higher")
