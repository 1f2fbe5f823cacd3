"""Failed training runs of a claim's variants: their share, and the largest rate at which runs train."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from transfer.comparison.pairing import MatchedRuns
from transfer.core.errors import UserError
from transfer.experiments.claims import Claim
from transfer.records.evidence import SCORE_AT_CHANCE, ending
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.claims.findings import POINTS, Finding, Point
from transfer.report.claims.variants import equal_grids, grid_of, matched, values_of
from transfer.report.tables.stability_map import edges
from transfer.report.tables.table import MeanInterval
from transfer.statistics.effects import conclusion, newcombe

TRAINED, NOT_JUDGED = "completed", "not_judged"
Statuses = dict[str, str]
"""The status of each run that was checked for failure by its id: `completed`, or how it failed."""


def failures(claim: Claim, arms: Sequence[str], runs: RunSet) -> Finding:
    """Return the difference of two variants' shares of failed runs, in points."""
    found, notes, points = matched(claim, arms, runs), list[str](), list[Point]()
    if claim.over and _without_over(claim, arms[0]) == arms[0]:
        grids = equal_grids(claim, found, arms, runs)
        found = replace(found, variants=[[run for of in grid.values() for run in of] for grid in grids])
    for rule, statuses in _rules(claim, found, arms, runs):  # the last one decides
        judged = [_judged(variant, statuses) for variant in found.variants]
        counts = [(sum(status != TRAINED for status in of), len(of)) for of in judged]
        points += [Point(text, rule, 100 * k / of) for text, (k, of) in zip(arms, counts, strict=True) if of]
        notes.append(f"failed by {rule}: {', '.join(f'{k} of {of}' for k, of in counts)}")
    if not all(judged):
        raise UserError(f"{' and '.join(str(of) for _, of in counts)} runs were checked for failure")
    low, high = (100 * end for end in newcombe(*counts[0], *counts[1]))
    shares = [100 * k / of for k, of in counts]
    units = [runs.evidence.variant([run.record for run in variant]).labels for variant in found.variants]
    return Finding(
        means=shares,
        effect=MeanInterval(shares[0] - shares[1], low, high, digits=".2f"),
        unit=POINTS,
        n=notes.pop().partition(": ")[2],
        seeds=min(len({*labels}) for labels in units),
        verdict=conclusion(claim.expect, low, high, claim.margin),
        notes=notes,
        points=points,
        records=found.records,
    )


def largest_stable(claim: Claim, arms: Sequence[str], runs: RunSet) -> Finding:
    """Return the ratio of two variants' largest stable rates, from where all seeds train to where any does."""
    found, notes = matched(claim, arms, runs), list[str]()
    grids = equal_grids(claim, found, arms, runs)
    top = float(max(grids[0]))  # what trains at the largest rate tried may train at any
    for rule, statuses in _rules(claim, found, arms, runs):  # the last one decides
        judged = [[(float(rate), _judged(of, statuses)) for rate, of in grid.items()] for grid in grids]
        ends = [edges([(rate, of) for rate, of in cells if of]) for cells in judged]
        means = [max(one["largest_stable"], 0.0) for one in ends]
        told = ", ".join(
            f"{name} {'at least ' * (mean == top)}{mean:g}" for name, mean in zip("ab", means, strict=True)
        )
        notes.append(f"largest {claim.over} at which most runs train, by {rule}: {told}")
    if not max(means):
        raise UserError("no rate trains")
    low_a, low_b = (max(one["largest_low"], 0.0) for one in ends)
    high_a, high_b = (math.inf if one["largest_high"] == top else one["largest_high"] for one in ends)
    low, high = _ratio(low_a, high_b), _ratio(high_a, low_b)
    cells = [
        (text, value, run) for text, grid in zip(arms, grids, strict=True) for value in grid for run in grid[value]
    ]
    trained = {run for run, status in statuses.items() if status == TRAINED}
    seeds = min(len(of) for grid in grids for of in grid.values())
    return Finding(
        means=means,
        effect=MeanInterval(_ratio(*means), low, high, digits=".3g"),
        unit="times",
        n=f"{seeds} at each of {len(grids[0])}",
        seeds=seeds,
        verdict=conclusion(claim.expect, _log(low), _log(high), _log(claim.margin or 1)),
        notes=notes,
        points=[
            Point(text, f"seed {run.record.seed}", float(value), float(run.record.run_id in trained))
            for text, value, run in cells
        ],
        records=found.records,
    )


def _ratio(a: float, b: float) -> float:
    """Return a / b, where 0 is a rate below all that were tried, and infinity one above them."""
    return 0.0 if a <= 0 or b == math.inf else a / b if b > 0 else math.inf


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _rules(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> Iterator[tuple[str, Statuses]]:
    """Yield the name of each rule and the statuses of the runs by it."""
    own = {record.run_id: ending(record) for record in found.records}
    yield "the suite's rule", {run: status for run, status in own.items() if status != NOT_JUDGED}
    if claim.broken_below is None:
        return
    for variant, text in zip(found.variants, texts, strict=True):
        (whole,) = matched(claim, [_without_over(claim, text)], runs).variants  # at all rates, not only the selected
        scored = grid_of([run for run in whole if run.record.scored], claim.over, runs)
        if not scored:
            raise UserError(f"no run of '{text}' has a score at any {claim.over}")
        least = claim.broken_below * max(fmean(values_of(of, claim.metric)) for of in scored.values())
        alive = [run for run in variant if own[run.record.run_id] in (TRAINED, NOT_JUDGED)]
        for run, score in zip(alive, values_of(alive, claim.metric), strict=True):
            own[run.record.run_id] = TRAINED if score >= least else SCORE_AT_CHANCE
    yield f"the row's rule (below {claim.broken_below:g} of the best score)", own


def _without_over(claim: Claim, text: str) -> str:
    """Return a selector without its condition on the field `over`."""
    return re.sub(rf"(^|,){claim.over}=[^,]*", "", text).strip(",")


def _judged(variant: Sequence[Run], statuses: Statuses) -> list[str]:
    return [statuses[run.record.run_id] for run in variant if run.record.run_id in statuses]
