"""Judges claims by their rows: an effect with its interval for each comparison, and the verdict of the row's rule."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from statistics import fmean
from typing import Any

import numpy as np

from transfer.comparison.compare_arms import compared_arms, effects
from transfer.comparison.notes import NO_MORE, notes_of
from transfer.comparison.paired_intervals import Units
from transfer.comparison.selection import axis, corners
from transfer.core.errors import UserError, unknown
from transfer.core.grouped import values_by_key
from transfer.experiments import claims as kinds
from transfer.experiments.claims import UNDERTRAINED, Claim
from transfer.records.evidence import chance as chance_of
from transfer.records.grouping import weights_marks
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.claims import variants
from transfer.report.claims.findings import NO_VERDICT, PERCENTAGE_POINTS, ClaimResult, Finding, Point
from transfer.report.tables.columns import unjudged_note
from transfer.report.tables.table import MeanInterval
from transfer.statistics.contrasts import contrast, paired_seeds
from transfer.statistics.half_score import geometric_mean, half_score_rates, half_way, log_ratio
from transfer.statistics.intervals import Estimate, Scores, newcombe, rank_correlation
from transfer.statistics.verdicts import CONTRADICTION, SUPPORT, UNDECIDED, conclusion

ROUNDED = 0.05
"""Doublings by which a step between rates of two digits may be longer than meant, as that from 2.8 to 4."""


def evaluate_claim(claim: Claim, runs: StoredRuns) -> ClaimResult:
    """Return the result of a claim; what keeps a comparison from a verdict stands in its place."""
    findings = []
    for a, b in () if claim.not_run else claim.comparisons:
        try:
            finding = _KINDS[claim.kind](claim, (a, b), runs)
            finding = _gated(claim, (a, b), finding, runs)
            notes = [f"not a valid result: {mark}" for mark in weights_marks(finding.records, runs.exports)]
            notes += [note.text for note in unjudged_note(finding.records)]
            finding = replace(finding, notes=[*finding.notes, *notes])
        except UserError as error:
            text = re.sub(r" \(fields: .*", "", " ".join(str(error).split()))
            finding = Finding(why=text.replace(f"{claim.runs},", "") if claim.runs else text)
        if finding.seeds is not None and finding.seeds < claim.needs:
            why = f"{finding.seeds} of the {claim.needs} seeds that it needs on all sides"
            finding = replace(finding, verdict=NO_VERDICT, why=why)
        elif finding.seeds is not None and finding.seeds < claim.seeds:
            finding = replace(finding, notes=[*finding.notes, f"{finding.seeds} of the {claim.seeds} seeds planned"])
        findings.append(replace(finding, a=a, b=b))
    return ClaimResult(claim, findings)


def _gated(claim: Claim, arms: Sequence[str], finding: Finding, runs: StoredRuns) -> Finding:
    """Return a finding with the gains over untrained networks, and without a verdict where a variant gained too little.

    Raises:
        UserError: an untrained network has no runs, or too few seeds.
    """
    for text, mean in zip(arms, finding.means, strict=False) if claim.floor else ():
        if mean <= claim.floor["value"]:
            why = f"'{text}' has {mean:.1f}, not more than the {claim.floor['value']:g} of {claim.floor['what']}"
            return replace(finding, verdict=UNDERTRAINED, why=why)
    trained = replace(claim, runs="", expect="a > b")
    for text in arms if claim.untrained else ():
        try:
            gain = _contrast(trained, (claim.selector(text), claim.untrained[text]), runs)
        except UserError as error:
            raise UserError(f"untrained network of '{text}': {error}") from None
        if (gain.seeds or 0) < claim.needs or not gain.effect:
            raise UserError(f"untrained network of '{text}': {gain.seeds} of the {claim.needs} seeds that it needs")
        note = f"'{text}' gained {' '.join(gain.effect.texts)} by its training"
        others = [record for record in gain.records if record not in finding.records]
        finding = replace(finding, notes=[*finding.notes, note], records=[*finding.records, *others])
        if (gain.effect.low or 0.0) <= (claim.margin or 0.0):
            why = f"{note}, not more than {claim.margin:g} for certain"
            finding = replace(finding, verdict=UNDERTRAINED, why=why)
    return finding


def _interaction(claim: Claim, arms: Sequence[str], runs: StoredRuns) -> Finding:
    """Return the effect of a field at one value of another less that at its other value."""
    axes = [axis(text, runs) for text in arms]
    *_, (name, scale) = effects(*axes).items()
    return _contrast(claim, corners(*axes), runs, scale, name)


def _contrast(
    claim: Claim, texts: Sequence[str], runs: StoredRuns, scale: Sequence[int] = (1, -1), name: str = ""
) -> Finding:
    """Return the difference of two variants, or another contrast, with the verdict on it.

    It is over seeds and test samples where these give the metric, else over seeds alone.
    """
    matched_runs, notes = variants.only_match(claim, texts, runs), list[str]()
    if claim.choose:
        matched_runs, notes = variants.choose_value(claim, matched_runs, texts, runs)
    compared = compared_arms(matched_runs, runs.evidence, texts, {name: scale})
    for arm, text in zip(compared.units, texts, strict=True):
        if not arm.runs:
            raise UserError(f"all trainings of '{text}' failed")
        if arm.variant.absent:
            notes.append(f"completed runs only: {len(arm.variant.absent)} trainings of '{text}' failed")
    if any(row.at_chance for row in compared.rows if row.score == variants.measure(claim.metric)):
        raise UserError("no variant scores above chance")
    row = next((row for row in compared.rows if row.score == claim.metric), None)
    unit = variants.scale_of(compared.units[0].runs[0].record, claim.metric)
    if row and row.estimate:
        estimate, means = row.estimate, row.means
        alone = replace(compared, rows=[row])  # without what holds for other scores
        notes += [text for text in notes_of(alone) if not text.startswith(NO_MORE)]
    else:
        reasons = dict.fromkeys(compared.without_interval.values()) if row else ()
        estimate, means = _over_seeds(claim.metric, compared.units, scale, unit)
        notes += [f"over seeds alone: {why}" for why in reasons]
    effect, low, high = (unit * end for end in (estimate.estimate, estimate.low, estimate.high))
    shared = variants.shared_seeds(arm.seeds for arm in compared.units)
    seeds = min([*estimate.seeds, *([] if shared is None else [len(shared)])])
    smallest = unit * estimate.smallest_difference()
    points = list[Point]()
    for arm, text in zip(compared.units, texts, strict=True):
        values = zip(arm.runs, variants.metric_values(arm.runs, claim.metric), strict=True)
        points += [Point(text, f"seed {run.record.seed}", value) for run, value in values]
    verdict = conclusion(claim.expect, low, high, claim.margin, enough=not estimate.few)
    return Finding(
        means=[unit * mean for mean in means],
        effect=MeanInterval(effect, low, high, digits=".2f"),
        unit=PERCENTAGE_POINTS if unit > 1 else variants.measure(claim.metric),
        n=f"{seeds} in pairs" if estimate.paired else ", ".join(map(str, dict.fromkeys(estimate.seeds))),
        seeds=seeds,
        notes=notes,
        points=points,
        records=matched_runs.records,
        verdict=UNDECIDED if estimate.borrowed else verdict,
        detectable=smallest if math.isfinite(smallest) else None,
    )


def _over_seeds(
    metric: str, units: Sequence[Units], scale: Sequence[int], unit: float
) -> tuple[Estimate, tuple[float, ...]]:
    """Return a contrast of a metric, and the means of the variants, over seeds alone, before the factor to its unit."""
    scores = []
    for arm in units:
        by_seed = values_by_key(zip(arm.labels, variants.metric_values(arm.runs, metric), strict=True))
        means = [np.mean(values) for values in by_seed.values()]
        scores.append(Scores.of_seeds(np.array(means) / unit))
        if len(means) < 2:
            raise UserError(f"{metric} has an interval over seeds alone, which needs two seeds of each variant")
    paired_scores, paired = paired_seeds(scores, [arm.seeds for arm in units])
    try:
        return contrast(paired_scores, scale, paired=paired), tuple(float(arm.values.mean()) for arm in paired_scores)
    except ValueError as error:
        raise UserError(f"{metric}: {error}") from None


def _failures(claim: Claim, arms: Sequence[str], runs: StoredRuns) -> Finding:
    """Return the difference of two variants' shares of failed seeds, in points."""
    matched_runs = variants.only_match(claim, arms, runs)
    if claim.over:
        grids = variants.equal_grids(claim, matched_runs, arms, runs)
    else:
        grids = [variants.grid_of(variant, "", runs) for variant in matched_runs.variants]
    endings = [Counter(chain.from_iterable(cell.endings.values() for cell in grid.values())) for grid in grids]
    if unjudged := sum(of_variant["not_judged"] for of_variant in endings):
        raise UserError(f"{unjudged} runs were not checked for failure")
    counts = [(of_variant.total() - of_variant["completed"], of_variant.total()) for of_variant in endings]
    units = [set(chain.from_iterable(cell.units for cell in grid.values())) for grid in grids]
    low, high = (100 * end for end in newcombe(*counts[0], *counts[1]))
    shares = [100 * failed / total for failed, total in counts]
    return Finding(
        means=shares,
        effect=MeanInterval(shares[0] - shares[1], low, high, digits=".2f"),
        unit=PERCENTAGE_POINTS,
        n=", ".join(f"{failed} of {total}" for failed, total in counts),
        seeds=min(map(len, units)),
        verdict=conclusion(claim.expect, low, high, claim.margin),
        notes=[f"n counts a seed once at each {claim.over}, as if these were independent"] if claim.over else [],
        points=[Point(text, "share", share) for text, share in zip(arms, shares, strict=True)],
        records=[record for grid in grids for cell in grid.values() for record in cell.records],
    )


def _half_score(claim: Claim, arms: Sequence[str], runs: StoredRuns) -> Finding:
    """Return the ratio of two variants' half-score rates in doublings, with a verdict only where both lines agree."""
    matched_runs = variants.only_match(claim, arms, runs)
    grids = variants.equal_grids(claim, matched_runs, arms, runs)
    chance = _chance(claim, matched_runs.records[0])
    curves = [_curves(claim, grid, chance, runs) for grid in grids]
    if len(seeds := [*curves[0]]) < 2 or curves[1].keys() != curves[0].keys():
        raise UserError(f"a half-score rate needs two seeds at every {claim.over}")
    lines = [half_way(of_seeds, chance) for of_seeds in curves]
    common = [half_score_rates(of_seeds, min(lines)) for of_seeds in curves]
    by_own_line = [half_score_rates(of_seeds, line) for of_seeds, line in zip(curves, lines, strict=True)]
    ratios = [log_ratio(*common), log_ratio(*by_own_line)]
    verdict, other = (ratio.verdict(claim.expect, claim.margin) for ratio in ratios)
    effect, other_effect = (
        MeanInterval(None if math.isnan(ratio.mean) else ratio.mean, ratio.low, ratio.high, digits=".2f")
        for ratio in ratios
    )
    notes = [
        f"by the common line of {min(lines):.1f} %: {verdict}",
        f"by each one's own line, {lines[0]:.1f} and {lines[1]:.1f} %: {' '.join(other_effect.texts).strip()}, {other}",
    ]
    steps = [math.log2(b / a) for a, b in pairwise(map(float, grids[0]))]
    if (step := max(steps, default=math.inf)) > (claim.margin or 0) + ROUNDED:
        notes.append(f"steps of the grid, up to {step:.2g} doublings, are coarser than the smallest relevant effect")
        verdict = UNDECIDED
    points = list[Point]()
    for text, of_seeds in zip(arms, curves, strict=True):
        for seed, curve in of_seeds.items():
            points += [Point(text, f"seed {seed}", rate, score) for rate, score in curve]
    return Finding(
        means=[geometric_mean(of_seeds.values()) for of_seeds in common],
        effect=effect,
        unit=f"doublings of {claim.over}",
        n=f"{len(seeds)} in pairs",
        seeds=len(seeds),
        verdict=verdict if verdict == other else UNDECIDED,
        notes=notes,
        points=points,
        records=matched_runs.records,
    )


def _curves(claim: Claim, grid: variants.Grid, chance: float, runs: StoredRuns) -> dict[Any, list[tuple[float, float]]]:
    """Return the score of each seed over the rates of a grid; of runs that failed that of chance."""
    scores = ((float(rate), variants.metric_by_seed(arm, claim.metric, runs, [chance])) for rate, arm in grid.items())
    return values_by_key((seed, (rate, score)) for rate, of_rate in scores for (_, seed), score in of_rate.items())


def _chance(claim: Claim, record: Record) -> float:
    level = chance_of(record, variants.measure(claim.metric))
    if level is None:
        raise UserError(f"{claim.metric} has no chance level, so that no score is half-way to it")
    return variants.scale_of(record, claim.metric) * level


def _correlation(claim: Claim, arms: Sequence[str], runs: StoredRuns) -> Finding:
    """Return the rank correlation of two metrics over the seeds of several variants together."""
    points, pairs, seeds = list[Point](), list[tuple[float, float]](), list[int]()
    used, of_variants = list[StoredRun](), variants.only_match(claim, claim.a, runs).variants
    for text, variant in zip(claim.a, of_variants, strict=True):
        units = Units.of(variant, runs.evidence)
        for of_seed in values_by_key(zip(units.labels, units.runs, strict=True)).values():
            x, y = (fmean(variants.metric_values(of_seed, name)) for name in (claim.metric, claim.against))
            pairs.append((x, y))
            points.append(Point(text, " ".join(run.record.run_id for run in of_seed), x, y))
        seeds.append(len(units.seeds))
        used += units.runs
    failed = sum(map(len, of_variants)) - len(used)
    rho, low, high = rank_correlation([x for x, _ in pairs], [y for _, y in pairs])
    return Finding(
        effect=MeanInterval(rho, low, high, digits=".3g"),
        unit="rho",
        n=f"{len(used)} runs" + (f", {len(pairs)} seeds" if len(pairs) < len(used) else ""),
        seeds=min(filter(None, seeds), default=0),
        verdict=conclusion(claim.expect, low, high, claim.margin),
        notes=[f"completed runs only: {failed} failed"] if failed else [],
        points=points,
        records=[run.record for run in used],
    )


def _count(claim: Claim, arms: Sequence[str], runs: StoredRuns) -> Finding:
    """Return the difference of two numbers that no seed varies, of runs or of attentions."""
    selections = [] if claim.metric == COLLECTIVES else variants.select_variants(claim, arms, runs)
    values = [{*variants.metric_values(selection.runs, claim.metric)} for selection in selections]
    values = values or [{_collectives(text)} for text in arms]
    if max(map(len, values)) > 1:
        raise UserError(f"{claim.metric} differs between the runs of a variant; a count does not")
    (a,), (b,) = values
    holds = {"a > b": a > b, "a < b": a < b, "a = b": a == b}[claim.expect]
    return Finding(
        means=[a, b],
        effect=MeanInterval(a - b, digits=".3g"),
        unit=variants.measure(claim.metric),
        n="counted",
        verdict=SUPPORT if holds else CONTRADICTION,
        records=[run.record for run in chain.from_iterable(selection.runs for selection in selections)],
    )


COLLECTIVES = "collectives"
"""The metric of attentions that is counted without runs."""


def _collectives(attention: str) -> float:
    from backbones.attention import ATTENTIONS
    from backbones.token_shards import forward_collectives

    if attention not in ATTENTIONS:
        raise unknown("attention", attention, ATTENTIONS)
    return float(forward_collectives(ATTENTIONS[attention]))


_KINDS: Mapping[str, Callable[[Claim, Sequence[str], StoredRuns], Finding]] = {
    kinds.DIFFERENCE: _contrast,
    kinds.EQUIVALENCE: _contrast,
    kinds.INTERACTION: _interaction,
    kinds.FAILURES: _failures,
    kinds.HALF_SCORE: _half_score,
    kinds.CORRELATION: _correlation,
    kinds.COUNT: _count,
}
