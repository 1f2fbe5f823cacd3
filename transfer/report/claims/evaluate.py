"""Judges claims by their rows: an effect with its interval for each comparison, and the verdict of the row's rule."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from transfer.comparison.compare_arms import compared_arms, effects
from transfer.comparison.paired_intervals import Units
from transfer.comparison.pairing import MatchedRuns
from transfer.comparison.selection import axis
from transfer.core.errors import UserError, unknown
from transfer.experiments import claims as kinds
from transfer.experiments.claims import Claim
from transfer.records.protocol import displayed_fields, distinguishing_fields
from transfer.records.run_set import RunSet
from transfer.report.claims.breakdowns import failures, largest_stable
from transfer.report.claims.findings import POINTS, Finding, Point, Result, judged
from transfer.report.claims.metrics import is_score, metric_of, values_of
from transfer.report.claims.variants import chosen, matched, selected
from transfer.report.tables.comparison_text import FEW, NO_MORE, notes_of_match
from transfer.statistics.contrasts import contrast, paired_seeds
from transfer.statistics.effects import CONTRADICTION, SUPPORT, conclusion, rank_correlation
from transfer.statistics.intervals import FEW_SEEDS, Estimate, Scores

CONTRAST = (1, -1)


def evaluate(claim: Claim, runs: RunSet) -> Result:
    """Return the result of a claim; what keeps a comparison from a verdict stands in its place."""
    if claim.not_run:
        return Result(claim, ())
    findings = []
    for a, b in _comparisons(claim):
        try:
            finding = _KINDS[claim.kind](claim, a, b, runs)
        except UserError as error:
            finding = Finding(why=re.sub(r" \(fields: .*", "", " ".join(str(error).split())))
        findings.append(_short(replace(finding, a=a, b=b), f"{claim.runs}," if claim.runs else ""))
    return Result(claim, tuple(findings))


def _short(finding: Finding, conditions: str) -> Finding:
    """Return a finding whose texts leave out the conditions of all runs of the row."""

    def short(text: str) -> str:
        return text.replace(conditions, "")

    points = tuple(point._replace(variant=short(point.variant)) for point in finding.points)
    notes = tuple(map(short, finding.notes))
    return replace(finding, a=short(finding.a), b=short(finding.b), why=short(finding.why), notes=notes, points=points)


def _comparisons(claim: Claim) -> list[tuple[str, str]]:
    if claim.kind == kinds.INTERACTION:
        return list(zip(claim.a, claim.b, strict=False))
    if claim.kind == kinds.CORRELATION:
        return [("; ".join(map(claim.selector, claim.a)), "")]
    if claim.kind == kinds.COUNT and claim.metric in COUNTS:
        return [(a, b) for a in claim.a for b in claim.b]
    return claim.arms


def _difference(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the difference of two variants, for a difference and an equivalence."""
    found = matched([selected(text, runs, claim.choose, claim.grid) for text in (a, b)], runs, claim.choose)
    return _contrast(claim, found, (a, b), CONTRAST, "", runs)


def _interaction(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    among = runs.select(selected(claim.runs, runs).runs) if claim.runs else runs
    axes = axis(a, among), axis(b, among)
    (f, values_f), (g, values_g) = axes
    texts = [claim.selector(f"{f}={one},{g}={other}") for one in values_f for other in values_g]
    found = matched([selected(text, runs, claim.choose, claim.grid) for text in texts], runs, claim.choose)
    *_, (name, coefficients) = effects(*axes).items()
    return _contrast(claim, found, texts, coefficients, name, runs)


def _contrast(
    claim: Claim, found: MatchedRuns, texts: Sequence[str], scale: Sequence[int], name: str, runs: RunSet
) -> Finding:
    """Return the contrast of the variants of a match, with the verdict on it."""
    notes: list[str] = []
    if claim.choose:
        found, notes = chosen(claim, found, texts, runs)
    units = [Units.of(variant, runs.evidence) for variant in found.variants]
    for one, text in zip(units, texts, strict=True):
        if not one.runs:
            raise UserError(f"all trainings of '{text}' failed")
        if one.variant.absent:
            notes.append(f"completed runs only: {len(one.variant.absent)} trainings of '{text}' failed")
    estimate, means, unit, more = _estimate(claim.metric, found, units, scale, name, runs)
    low, high, inner = unit * estimate.low, unit * estimate.high, (unit * estimate.inner[0], unit * estimate.inner[1])
    inner = (-math.inf, math.inf) if estimate.few else inner  # too few samples differ to call variants equivalent
    seeds, smallest = min(estimate.seeds), estimate.smallest_difference()
    finding = Finding(
        means=tuple(unit * mean for mean in means),
        effect=unit * estimate.estimate,
        unit=POINTS if unit > 1 else claim.metric,
        low=low,
        high=high,
        n=f"{seeds} in pairs" if estimate.paired else ", ".join(map(str, dict.fromkeys(estimate.seeds))),
        notes=(*notes, *more),
        detectable=unit * smallest if math.isfinite(smallest) else None,
        points=tuple(
            Point(text, f"seed {run.record.seed}", value)
            for one, text in zip(units, texts, strict=True)
            for run, value in zip(one.runs, values_of(one.runs, claim.metric, runs), strict=True)
        ),
        runs=[run for variant in found.variants for run in variant],
    )
    return judged(claim, finding, seeds, conclusion(claim.expect, low, high, claim.margin, inner))


def _estimate(
    metric: str, found: MatchedRuns, units: Sequence[Units], scale: Sequence[int], name: str, runs: RunSet
) -> tuple[Estimate, Sequence[float], float, list[str]]:
    """Return a contrast, the means of the variants, the factor to the unit that is shown, and notes.

    It is over seeds and test samples where these give the metric, else over seeds alone.
    """
    notes, values, factor = [], [], 1.0
    if is_score(metric):
        compared = compared_arms(found, runs.evidence, [str(place) for place in range(len(scale))], {name: scale})
        row = next((row for row in compared.rows if row.score == metric and row.means), None)
        if row and row.at_chance:
            raise UserError("no variant scores above chance")
        if row and row.estimate:
            told = [note.text for note in notes_of_match(compared, ()) if not note.text.startswith(NO_MORE)]
            return row.estimate, row.means, row.scale, told
        notes = [f"over seeds alone: {why}" for why in dict.fromkeys(compared.without_interval.values())]
    for one in units:
        factor = (metric_of(one.runs[0], metric, runs) or (0.0, 1.0))[1]
        labelled = list(zip(one.labels, values_of(one.runs, metric, runs), strict=True))
        of_seeds = [[value for label, value in labelled if label == seed] for seed in one.seeds]
        values.append(Scores.of_seeds(np.array([np.mean(of) for of in of_seeds]) / factor))
        if len(of_seeds) < 2:
            raise UserError(f"{metric} has an interval over seeds alone, which needs two seeds of each variant")
    kept, paired = paired_seeds(values, [one.seeds for one in units])
    try:
        estimate = contrast(kept, scale, paired=paired)
    except ValueError as error:
        raise UserError(f"{metric}: {error}") from None
    notes += [f"{min(estimate.seeds)} {FEW}"] * (min(estimate.seeds) <= FEW_SEEDS)
    return estimate, [float(one.values.mean()) for one in kept], factor, notes


def _correlation(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the rank correlation of two metrics over runs of one protocol, whose backbones may differ."""
    selections = [selected(claim.selector(text), runs) for text in claim.a]
    texts = {run.folder: one.text for one in selections for run in one.runs}
    everyone = list({run.folder: run for one in selections for run in one.runs}.values())
    fields = {name for one in selections for name in one.fields}
    if differing := distinguishing_fields(displayed_fields(run.record, fields) for run in everyone):
        told = ", ".join(differing)
        raise UserError(f"the runs have several protocols, which differ in {told}; add conditions to `runs`")
    if smoke := sum(run.record.smoke for run in everyone):
        raise UserError(f"{smoke} smoke runs, which do not count")
    used = [run for run in everyone if run.record.scored]
    x, y = values_of(used, claim.metric, runs), values_of(used, claim.against, runs)
    try:
        rho, low, high = rank_correlation(x, y)
    except ValueError as error:
        raise UserError(str(error)) from None
    failed = len(everyone) - len(used)
    finding = Finding(
        effect=rho,
        low=low,
        high=high,
        unit="rho",
        n=f"{len(used)} runs",
        notes=(f"completed runs only: {failed} failed",) * bool(failed),
        points=tuple(Point(texts[run.folder], run.record.run_id, *at) for run, *at in zip(used, x, y, strict=True)),
        runs=used,
    )
    verdict = conclusion(claim.expect, low, high, claim.margin)
    return judged(claim, finding, len({run.record.seed for run in used}), verdict)


def _collectives(attention: str) -> float:
    from backbones.attention import ATTENTIONS
    from backbones.token_shards import forward_collectives

    if attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    return float(forward_collectives(ATTENTIONS[attention]))


COUNTS: Mapping[str, Callable[[str], float]] = {"collectives": _collectives}
"""What is counted without runs, by the metric's name."""


def _count(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the difference of two numbers that no seed varies."""
    variants = [] if claim.metric in COUNTS else [selected(text, runs).runs for text in (a, b)]
    values = [COUNTS[claim.metric](text) for text in (a, b) if not variants]
    for variant, text in zip(variants, (a, b)):
        found = {*values_of(variant, claim.metric, runs)}
        if len(found) != 1:
            raise UserError(f"{claim.metric} has {len(found)} values in the runs of '{text}'; a count has one")
        values += found
    effect = values[0] - values[1]
    holds = {"a > b": effect > 0, "a < b": effect < 0, "a = b": effect == 0}[claim.expect]
    verdict = SUPPORT if holds else CONTRADICTION
    used = [run for variant in variants for run in variant]
    return Finding(means=tuple(values), effect=effect, unit=claim.metric, n="counted", verdict=verdict, runs=used)


_KINDS: Mapping[str, Callable[[Claim, str, str, RunSet], Finding]] = {
    kinds.DIFFERENCE: _difference,
    kinds.EQUIVALENCE: _difference,
    kinds.INTERACTION: _interaction,
    kinds.FAILURES: failures,
    kinds.STABLE: largest_stable,
    kinds.CORRELATION: _correlation,
    kinds.COUNT: _count,
}
