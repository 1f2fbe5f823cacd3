"""What one comparison of a claim gives, and the result of a whole row."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from transfer.experiments.claims import UNDERTRAINED, Claim
from transfer.records.record import Record, total_hours
from transfer.records.run_set import StoredRuns
from transfer.report.tables.table import MeanInterval
from transfer.statistics.verdicts import CONTRADICTION, NO_EFFECT, SUPPORT, UNDECIDED, VERDICTS

PERCENTAGE_POINTS = "points"
NO_VERDICT, NOT_RUN = "no verdict", "not run"
WEAKEST = (CONTRADICTION, UNDERTRAINED, NO_VERDICT, UNDECIDED, NO_EFFECT, SUPPORT)
BEST_FIRST = (*VERDICTS, UNDERTRAINED, NO_VERDICT, NOT_RUN)


class Point(NamedTuple):
    """A value behind an effect, for the figure of a claim.

    Attributes:
        variant: name of the variant.
        setting: seed, rule, or run.
        x: value of the metric, share of failures in percent, or rate.
        y: second metric of a correlation, or the score at a rate.
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
        effect: effect with its 95 % interval; None without one.
        unit: its unit; empty without one.
        n: number of seeds, runs, or failures.
        seeds: number of seeds with a value, of the variant with the fewest; None where seeds do not matter.
        verdict: conclusion by the row's rule.
        why: reason why there is no verdict.
        notes: what a reader should know besides.
        detectable: true effect that such runs show four times in five; None where it is not known.
        points: values behind the effect.
        records: records of the runs that were compared.
    """

    a: str = ""
    b: str = ""
    means: Sequence[float] = ()
    effect: MeanInterval | None = None
    unit: str = ""
    n: str = ""
    seeds: int | None = None
    verdict: str = NO_VERDICT
    why: str = ""
    notes: Sequence[str] = ()
    detectable: float | None = None
    points: Sequence[Point] = ()
    records: Sequence[Record] = ()

    @property
    def name(self) -> str:
        """What is compared, as one text."""
        return f"{self.a} vs. {self.b}" if self.b else self.a


@dataclass(frozen=True)
class ClaimResult:
    """A claim with all comparisons of its row."""

    claim: Claim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> str:
        """Support if every comparison supports the claim, contradiction if one contradicts it, else the weakest."""
        return NOT_RUN if self.claim.not_run else self.shown.verdict

    @property
    def verdict_text(self) -> str:
        """The verdict, with those of the comparisons where they differ."""
        if len({finding.verdict for finding in self.findings}) > 1:
            return f"{self.verdict} ({verdict_counts(self.findings)})"
        return self.verdict

    @property
    def shown(self) -> Finding:
        """The comparison that supports the claim least."""
        expect = self.claim.expect

        def place(finding: Finding) -> tuple[int, float]:
            effect = finding.effect or MeanInterval(None)
            low, high = effect.low or 0.0, -(effect.high or 0.0)
            least = high if "<" in expect else min(low, high) if expect == "a = b" else low
            return WEAKEST.index(finding.verdict), least

        return min(self.findings, key=place) if self.findings else Finding()

    @property
    def remarks(self) -> list[str]:
        """Why there is no verdict, or what the row would cost; then the notes of the comparisons, each once."""
        if missing := self.claim.not_run:
            return [f"{NOT_RUN}: {missing['why']} ({missing['gpu_hours']:g} GPU hours)"]
        why = [f"{finding.verdict}: {finding.why}" for finding in self.findings if finding.why]
        return list(dict.fromkeys([*why, *chain.from_iterable(finding.notes for finding in self.findings)]))

    @property
    def records(self) -> dict[str, Record]:
        """The records of all comparisons by their runs' ids."""
        return {record.run_id: record for finding in self.findings for record in finding.records}

    @property
    def is_evaluated(self) -> bool:
        """Whether some comparison has a verdict."""
        return any(finding.effect and finding.verdict != NO_VERDICT for finding in self.findings)


def hours_of(records: Mapping[str, Record], runs: StoredRuns) -> str | None:
    """Return the hours of runs, by id, and of the trainings that their weights come from, by kind."""
    parents = chain.from_iterable(map(runs.evidence.lineage, records.values()))
    return total_hours([*records.values(), *parents])


def verdict_counts(results: Sequence[ClaimResult | Finding]) -> str:
    """Return how many claims, or comparisons of one, have each verdict."""
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[name]} {name}" for name in BEST_FIRST if counts[name])
