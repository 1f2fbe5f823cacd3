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
from transfer.report.claims.findings import POINTS, Finding, Point, Result
from transfer.report.claims.metrics import check_metric, is_score, metric_of
from transfer.report.claims.variants import chosen, corners_of, matched, selected, too_few
from transfer.statistics.contrasts import contrast, paired_seeds
from transfer.statistics.effects import CONTRADICTION, SUPPORT, conclusion, rank_correlation
from transfer.statistics.intervals import Estimate, Scores

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
    texts = corners_of(claim, runs, axes)
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
    check_metric(claim.metric, [run for variant in found.variants for run in variant], runs)
    estimate, means, unit, more = _estimate(claim.metric, found, scale, name, runs)
    notes += more + _failed(found, texts, runs)
    low, high, inner = unit * estimate.low, unit * estimate.high, (unit * estimate.inner[0], unit * estimate.inner[1])
    inner = (-math.inf, math.inf) if estimate.few else inner  # too few samples differ to call variants equivalent
    seeds = min(estimate.seeds)
    finding = Finding(
        means=tuple(unit * mean for mean in means),
        effect=unit * estimate.estimate,
        unit=POINTS if unit > 1 else claim.metric,
        low=low,
        high=high,
        n=f"{seeds} in pairs" if estimate.paired else ", ".join(map(str, dict.fromkeys(estimate.seeds))),
        notes=(*notes, *too_few(claim, seeds)),
        detectable=None if math.isinf(smallest := estimate.smallest_difference()) else unit * smallest,
        points=_points(claim.metric, found, texts, runs),
        runs=[run for variant in found.variants for run in variant],
    )
    if seeds < claim.needs:
        return replace(finding, why=f"{seeds} of the {claim.needs} seeds that it needs")
    return replace(finding, verdict=conclusion(claim.expect, low, high, claim.margin, inner))


def _estimate(
    metric: str, found: MatchedRuns, scale: Sequence[int], name: str, runs: RunSet
) -> tuple[Estimate, Sequence[float], float, list[str]]:
    """Return a contrast, the means of the variants, the factor to the unit that is shown, and notes.

    It is over seeds and test samples where these give the metric, else over seeds alone.
    """
    notes = []
    if is_score(metric):
        labels = [str(place) for place in range(len(scale))]
        compared = compared_arms(found, runs.evidence, labels, {name: scale})
        row = next((row for row in compared.rows if row.score == metric and row.means), None)
        if row and row.at_chance:
            raise UserError("no variant scores above chance")
        if row and row.estimate:
            return row.estimate, row.means, row.scale, []
        notes = [f"over seeds alone: {why}" for why in dict.fromkeys(compared.without_interval.values())]
    units = [Units.of(variant, runs.evidence) for variant in found.variants]
    values, labels_of = [], []
    unit = 1.0
    for one in units:
        by_label: dict[object, list[float]] = {}
        for run, label in zip(one.runs, one.labels, strict=True):
            if (value := metric_of(run, metric, runs)) is not None:
                by_label.setdefault(label, []).append(value[0])
                unit = value[1]
        if len(by_label) < 2:
            raise UserError(f"{metric} has an interval over seeds alone, which needs two seeds of each variant")
        values.append(Scores.of_seeds(np.array([np.mean(of) for of in by_label.values()])))
        labels_of.append(list(by_label))
    kept, paired = paired_seeds(values, labels_of)
    try:
        estimate = contrast(kept, scale, paired=paired)
    except ValueError as error:
        raise UserError(f"{metric}: {error}") from None
    return estimate, [float(one.values.mean()) for one in kept], unit, notes


def _failed(found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> list[str]:
    """Return a note for each variant of which trainings failed, or its pretrainings."""
    notes = []
    for variant, text in zip(found.variants, texts, strict=True):
        arm = runs.evidence.variant([run.record for run in variant])
        if arm.absent:
            notes.append(f"completed runs only: {len(arm.absent)} trainings of '{text}' failed")
    return notes


def _points(metric: str, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> tuple[Point, ...]:
    return tuple(
        Point(text, f"seed {run.record.seed}", value[0] * value[1])
        for variant, text in zip(found.variants, texts, strict=True)
        for run in variant
        if (value := metric_of(run, metric, runs)) is not None
    )


def _correlation(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the rank correlation of two metrics over runs of one protocol, whose backbones may differ."""
    chosen_runs, fields = dict[str, object](), set[str]()
    for text in claim.a:
        selection = selected(claim.selector(text), runs)
        chosen_runs |= {run.record.run_id: run for run in selection.runs}
        fields |= {*selection.fields}
    used = [run for run in runs if run.record.run_id in chosen_runs]
    if differing := distinguishing_fields(displayed_fields(run.record, fields) for run in used):
        told = ", ".join(differing)
        raise UserError(f"the runs have several protocols, which differ in {told}; add conditions to `runs`")
    if smoke := sum(run.record.smoke for run in used):
        raise UserError(f"{smoke} smoke runs, which do not count")
    for name in (claim.metric, claim.against):
        check_metric(name, used, runs)
    pairs = [
        (run, one[0] * one[1], two[0] * two[1])
        for run in used
        if (one := metric_of(run, claim.metric, runs)) and (two := metric_of(run, claim.against, runs))
    ]
    try:
        rho, low, high = rank_correlation([x for _, x, _ in pairs], [y for _, _, y in pairs])
    except ValueError as error:
        raise UserError(str(error)) from None
    notes = [f"{len(used) - len(pairs)} of {len(used)} runs have only one of the metrics"] * (len(pairs) < len(used))
    seeds = len({run.record.seed for run, *_ in pairs})
    finding = Finding(
        effect=rho,
        unit="rho",
        low=low,
        high=high,
        n=f"{len(pairs)} runs",
        notes=(*notes, *too_few(claim, seeds)),
        points=tuple(Point("", run.record.run_id, x, y) for run, x, y in pairs),
        runs=[run for run, *_ in pairs],
    )
    if seeds < claim.needs:
        return replace(finding, why=f"{seeds} of the {claim.needs} seeds that it needs")
    return replace(finding, verdict=conclusion(claim.expect, low, high, claim.margin))


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
    used = []
    if count := COUNTS.get(claim.metric):
        values = [count(a), count(b)]
    else:
        values = []
        for text in (a, b):
            of = selected(text, runs).runs
            check_metric(claim.metric, of, runs)
            found = {value[0] * value[1] for run in of if (value := metric_of(run, claim.metric, runs))}
            if len(found) != 1:
                raise UserError(f"{claim.metric} has {len(found)} values in the runs of '{text}'; a count has one")
            values += found
            used += of
    effect = values[0] - values[1]
    holds = {"a > b": effect > 0, "a < b": effect < 0, "a = b": effect == 0}[claim.expect]
    verdict = SUPPORT if holds else CONTRADICTION
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
