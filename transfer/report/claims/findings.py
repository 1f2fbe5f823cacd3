"""What one comparison of a claim gives, and the result of a whole row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from transfer.experiments.claims import Claim
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.tables.costs import hours
from transfer.statistics.effects import CONTRADICTION, SUPPORT, UNDECIDED

POINTS = "points"
NO_VERDICT, NOT_RUN = "no verdict", "not run"
WEAKEST = (CONTRADICTION, UNDECIDED, SUPPORT)


class Point(NamedTuple):
    """A value behind an effect, for the figure of a claim.

    Attributes:
        variant: name of the variant.
        setting: seed, rule, or run.
        x: value of the metric, share of failures in percent, or rate.
        y: second metric of a correlation; of a rate 1 where the run trained, 0 where it failed.
    """

    variant: str
    setting: str
    x: float
    y: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One comparison of a row; numbers are in the unit in which they are shown.

    Attributes:
        a, b: what is compared.
        means: value of each variant.
        effect, low, high: effect with its 95 % interval.
        unit: its unit; empty without one.
        n: number of seeds, runs, or failures.
        verdict: conclusion by the row's rule; empty without one.
        why: reason why there is no verdict.
        notes: what a reader should know besides.
        detectable: true effect that such runs show four times in five; None where it is not known.
        points: values behind the effect.
        runs: runs that were compared.
    """

    a: str = ""
    b: str = ""
    means: tuple[float, ...] = ()
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    n: str = ""
    verdict: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()
    detectable: float | None = None
    points: tuple[Point, ...] = ()
    runs: Sequence[Run] = ()


def judged(claim: Claim, finding: Finding, seeds: int, verdict: str) -> Finding:
    """Return a finding with its verdict, or with what it lacks if there are fewer seeds than the row needs."""
    few = (f"{seeds} of {claim.seeds} seeds",) if seeds < claim.seeds else ()
    why = f"{seeds} of the {claim.needs} seeds that it needs" if seeds < claim.needs else ""
    return replace(finding, verdict="" if why else verdict, why=why, notes=finding.notes + few * (not why))


@dataclass(frozen=True)
class Result:
    """A claim with all comparisons of its row."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def why(self) -> str:
        """Reason why there is no verdict; empty with one."""
        return next((one.why for one in self.findings if one.why), "")

    @property
    def verdict(self) -> str:
        """Support if every comparison supports the claim, contradiction if one contradicts it, else undecided."""
        if self.claim.not_run:
            return NOT_RUN
        return NO_VERDICT if self.why else self.shown.verdict

    @property
    def shown(self) -> Finding:
        """The comparison that supports the claim least."""
        sign = -1 if "<" in self.claim.expect else 1

        def place(one: Finding) -> tuple[bool, int, float]:
            least = one.high if sign < 0 else one.low
            return not one.why, WEAKEST.index(one.verdict or CONTRADICTION), sign * (least or 0.0)

        return min(self.findings, key=place) if self.findings else Finding()

    @property
    def notes(self) -> list[str]:
        """Notes of all comparisons, each once."""
        return list(dict.fromkeys(note for one in self.findings for note in one.notes))

    def hours(self, runs: RunSet) -> float:
        """Return the hours of the runs and of the trainings that their weights come from, each once."""
        records = {run.record.run_id: run.record for one in self.findings for run in one.runs}
        for record in list(records.values()):
            records |= {parent.run_id: parent for parent in runs.evidence.lineage(record)}
        return sum(map(hours, records.values()))
