"""Where training stops to work, by a claim's variants: shares of failed runs, and half-score rates."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise

from transfer.core.errors import UserError
from transfer.experiments.claims import Claim
from transfer.records.evidence import chance as chance_of
from transfer.records.evidence import ending
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.claims.findings import POINTS, Finding, Point
from transfer.report.claims.variants import Grid, equal_grids, matched, scale_of, values_of
from transfer.report.tables.table import MeanInterval
from transfer.statistics.half_score import geometric_mean, half_score_rates, half_way, log_ratio
from transfer.statistics.intervals import newcombe
from transfer.statistics.verdicts import UNDECIDED, conclusion


def failures(claim: Claim, arms: Sequence[str], runs: RunSet) -> Finding:
    """Return the difference of two variants' shares of failed runs, in points."""
    found = matched(claim, arms, runs)
    if claim.over:
        grids = equal_grids(claim, found, arms, runs)
        found = replace(found, variants=[list(chain(*grid.values())) for grid in grids])
    endings = [[ending(run.record) for run in variant] for variant in found.variants]
    counts = [(sum(one not in ("completed", "not_judged") for one in of), len(of)) for of in endings]
    if unjudged := sum(of.count("not_judged") for of in endings):
        raise UserError(f"{unjudged} runs were not checked for failure")
    low, high = (100 * end for end in newcombe(*counts[0], *counts[1]))
    shares = [100 * failed / of for failed, of in counts]
    units = [runs.evidence.variant([run.record for run in variant]).labels for variant in found.variants]
    return Finding(
        means=shares,
        effect=MeanInterval(shares[0] - shares[1], low, high, digits=".2f"),
        unit=POINTS,
        n=", ".join(f"{failed} of {of}" for failed, of in counts),
        seeds=min(len({*labels}) for labels in units),
        verdict=conclusion(claim.expect, low, high, claim.margin),
        points=[Point(text, "share", share) for text, share in zip(arms, shares, strict=True)],
        records=found.records,
    )


def half_score(claim: Claim, arms: Sequence[str], runs: RunSet) -> Finding:
    """Return the ratio of two variants' half-score rates in doublings, with a verdict only where both lines agree."""
    found = matched(claim, arms, runs)
    grids = equal_grids(claim, found, arms, runs)
    curves = [_curves(claim, grid) for grid in grids]
    if len(seeds := [*curves[0]]) < 2:
        raise UserError(f"a half-score rate needs two seeds at every {claim.over}")
    chance = _chance(claim, found.records[0])
    own = [half_way(of_seeds, chance) for of_seeds in curves]
    common = [half_score_rates(of_seeds, min(own)) for of_seeds in curves]
    by_own = [half_score_rates(of_seeds, line) for of_seeds, line in zip(curves, own, strict=True)]
    ratios = [log_ratio(*common), log_ratio(*by_own)]
    verdict, other = (ratio.verdict(claim.expect, claim.margin) for ratio in ratios)
    effect, by_own_line = (
        MeanInterval(None if math.isnan(ratio.mean) else ratio.mean, ratio.low, ratio.high, digits=".2f")
        for ratio in ratios
    )
    notes = [
        f"by the common line of {min(own):.1f} %: {verdict}",
        f"by each one's own line, {own[0]:.1f} and {own[1]:.1f} %: {' '.join(by_own_line.texts).strip()}, {other}",
    ]
    steps = [math.log2(b / a) for a, b in pairwise(map(float, grids[0]))]
    if (step := max(steps, default=math.inf)) > (claim.margin or 0) + 1e-9:
        notes.append(f"steps of the grid, up to {step:.2g} doublings, are coarser than the smallest relevant effect")
        verdict = UNDECIDED
    return Finding(
        means=[geometric_mean(of_seeds.values()) for of_seeds in common],
        effect=effect,
        unit=f"doublings of {claim.over}",
        n=f"{len(seeds)} in pairs",
        seeds=len(seeds),
        verdict=verdict if verdict == other else UNDECIDED,
        notes=notes,
        points=[
            Point(text, f"seed {seed}", rate, score)
            for text, of_seeds in zip(arms, curves, strict=True)
            for seed, curve in of_seeds.items()
            for rate, score in curve
        ],
        records=found.records,
    )


def _curves(claim: Claim, grid: Grid) -> dict[int, list[tuple[float, float]]]:
    """Return the score of each seed over the rates of a grid; of runs that failed that of chance."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for rate, of_rate in grid.items():
        for run in of_rate:
            failed = run.record.training_failed
            score = _chance(claim, run.record) if failed else values_of([run], claim.metric)[0]
            curves.setdefault(run.record.seed, []).append((float(rate), score))
    return curves


def _chance(claim: Claim, record: Record) -> float:
    level = chance_of(record, claim.metric, record.metrics)
    if level is None:
        raise UserError(f"{claim.metric} has no chance level, so that no score is half-way to it")
    return scale_of(record, claim.metric) * level
