"""The table of claims with their verdicts, and the sections of its page."""

from collections import Counter
from collections.abc import Iterator, Sequence

from transfer.experiments import claims as kinds
from transfer.records.run_set import RunSet
from transfer.report.claims.figures import claim_plot
from transfer.report.claims.findings import NO_VERDICT, NOT_RUN, Finding, Result
from transfer.report.page.section_types import Section
from transfer.report.tables.table import RUN, SIGNIFICANT, Column, MeanInterval, Note, Table
from transfer.statistics.effects import VERDICTS

RULE = "verdicts are by the rule of each row, and are not corrected for the number of rows"


DETAIL = {"claim": -1, "verdict": -1, "unit": 1}
DETAIL |= dict.fromkeys(("comparison", "margin", "detectable", "comparisons"), 2)
DETAIL |= dict.fromkeys(("registered", "predicted hours", "kind", "expect", "where"), 3)
"""How soon a narrow terminal does without a column."""


def claim_table(results: Sequence[Result], runs: RunSet) -> Table:
    """Return a row for each claim: effect with its 95 % interval, verdict, n, and hours.

    Columns:
        `effect`: with its interval, of the comparison that supports the claim least, a less b, in `unit`;
        `verdict`: support, contradiction, undecided, or what stands in its place;
        `hours`: of the runs and of the trainings that their weights come from, of GPUs, or of cores on CPUs;
        `detectable`: difference that such runs show four times in five; `registered`: as the row predicted it;
        `predicted hours`: as the row predicted them.
    """
    rows = []
    for result in results:
        claim, shown, hours = result.claim, result.shown, result.hours(runs)
        of = len(result.findings)
        rows.append(
            {
                "id": claim.id,
                "claim": claim.claim,
                "effect": interval(shown, result),
                "verdict": verdict_text(result),
                "n": shown.n or None,
                "hours": hours or None,
                "comparison": f"{shown.a} vs. {shown.b}" if shown.b else shown.a,
                "comparisons": of if of > 1 else None,
                "unit": shown.unit or None,
                "margin": claim.margin,
                "detectable": shown.detectable,
                "registered": claim.detectable,
                "predicted hours": claim.hours,
                "kind": claim.kind or None,
                "expect": claim.expect or None,
                "where": claim.where,
                "changed": "; ".join(f"{one['date']}: {one['what']}" for one in claim.changed) or None,
                RUN: tuple(sorted({run.record.run_id for one in result.findings for run in one.runs})),
            }
        )
    columns = [Column(name, significant_digits=SIGNIFICANT, detail=DETAIL.get(name, 0)) for name in rows[0]]
    notes = [Note(text, one.claim.id, (place,)) for place, one in enumerate(results) for text in reasons(one)]
    return Table.from_rows(rows, columns, [Note(RULE), *notes]).without_empty()


def interval(finding: Finding, result: Result) -> MeanInterval | None:
    """Return an effect with its interval; None without one."""
    if finding.effect is None:
        return None
    digits = ".3g" if result.claim.kind in (kinds.STABLE, kinds.CORRELATION, kinds.COUNT) else ".2f"
    return MeanInterval(finding.effect, finding.low, finding.high, digits=digits)


def verdict_counts(results: Sequence[Result | Finding]) -> str:
    """Return how many claims, or comparisons of one, have each verdict."""
    counts = Counter(one.verdict or NO_VERDICT for one in results)
    return ", ".join(f"{counts[name]} {name}" for name in (*VERDICTS, NO_VERDICT, NOT_RUN) if counts[name])


def verdict_text(result: Result) -> str:
    """Return the verdict, with those of the comparisons where they differ."""
    differ = len({one.verdict for one in result.findings}) > 1
    return result.verdict + f" ({verdict_counts(result.findings)})" * differ


def reasons(result: Result) -> list[str]:
    """Return why there is no verdict, or what the row would cost; then the notes of the comparisons."""
    if missing := result.claim.not_run:
        return [f"{NOT_RUN}: {missing['why']} ({missing['gpu_hours']:g} GPU hours)"]
    return [*dict.fromkeys(f"{NO_VERDICT}: {one.why}" for one in result.findings if one.why), *result.notes]


def claim_sections(title: str, results: Sequence[Result], runs: RunSet, *, plots: bool = False) -> Iterator[Section]:
    """Yield the table of all claims, then the comparisons of each that has several, and with `plots` their figures."""
    table = claim_table(results, runs)
    yield Section(title=title, table=table, note=f"{len(results)} claims: {verdict_counts(results)}.")
    for result in results:
        rows = comparison_rows(result) if len(result.findings) > 1 else None
        plot = claim_plot(result) if plots else None
        if rows or plot:
            yield Section(title=f"{result.claim.id}: {result.claim.claim}", table=rows, plot=plot)


def comparison_rows(result: Result) -> Table:
    """Return a row for each comparison of a claim."""
    rows = [
        {
            "a": one.a,
            "b": one.b or None,
            "mean a": one.means[0] if len(one.means) == 2 else None,
            "mean b": one.means[1] if len(one.means) == 2 else None,
            "effect": interval(one, result),
            "verdict": one.verdict or NO_VERDICT,
            "n": one.n or None,
            "detectable": one.detectable,
            RUN: tuple(run.record.run_id for run in one.runs),
        }
        for one in result.findings
    ]
    columns = [Column(name, significant_digits=SIGNIFICANT) for name in rows[0]]
    return Table.from_rows(rows, columns).without_empty()
