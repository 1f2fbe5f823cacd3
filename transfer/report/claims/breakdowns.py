"""Failed training runs of a claim's variants: their share, and the largest rate at which runs train."""

import math
from collections.abc import Sequence
from statistics import fmean

from transfer.comparison.pairing import MatchedRuns
from transfer.comparison.selection import selector_fields, selector_of
from transfer.core.errors import UserError
from transfer.experiments.claims import Claim
from transfer.records.evidence import SCORE_AT_CHANCE, ending
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.claims.findings import POINTS, Finding, Point, judged
from transfer.report.claims.metrics import values_of
from transfer.report.claims.variants import equal_grids, grid_of, matched, seed_of, selected
from transfer.report.tables.stability_map import Edges, edges
from transfer.statistics.effects import conclusion, newcombe

TRAINED, NOT_JUDGED = "completed", "not_judged"
Statuses = dict[str, str]
"""The status of each run by its id: `completed`, `not_judged`, or how it failed."""


def failures(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the difference of two variants' shares of failed runs, in points."""
    found = matched([selected(text, runs, claim.over, claim.grid) for text in (a, b)], runs, claim.over)
    if claim.over and claim.over not in selector_fields(a):
        equal_grids(found, (a, b), claim.over, claim.grid, runs)
    rules = _rules(claim, found, (a, b), runs)
    counts = {name: [_failed(variant, statuses) for variant in found.variants] for name, statuses in rules.items()}
    texts = {name: ", ".join(f"{failed} of {of}" for failed, of in counted) for name, counted in counts.items()}
    *_, (deciding, ((failed_a, of_a), (failed_b, of_b))) = counts.items()
    if not of_a or not of_b:
        raise UserError(f"{of_a} and {of_b} runs were checked for failure")
    low, high = (100 * end for end in newcombe(failed_a, of_a, failed_b, of_b))
    means = 100 * failed_a / of_a, 100 * failed_b / of_b
    points = [Point(text, name, 100 * k / of) for name in counts for text, (k, of) in zip((a, b), counts[name]) if of]
    finding = Finding(
        means=means,
        effect=means[0] - means[1],
        low=low,
        high=high,
        unit=POINTS,
        n=texts.pop(deciding),
        notes=tuple(f"by {name}: {text}" for name, text in texts.items()),
        points=tuple(points),
        runs=[run for variant in found.variants for run in variant],
    )
    seeds = min(len({seed_of(run, runs) for run in variant}) for variant in found.variants)
    return judged(claim, finding, seeds, conclusion(claim.expect, low, high, claim.margin))


def largest_stable(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the ratio of two variants' largest stable rates, from where all seeds train to where any does."""
    found = matched([selected(text, runs, claim.over, claim.grid) for text in (a, b)], runs, claim.over)
    grids = equal_grids(found, (a, b), claim.over, claim.grid, runs)
    top, ends, texts, points = float(max(grids[0])), list[Edges](), dict[str, str](), list[Point]()
    for name, statuses in _rules(claim, found, (a, b), runs).items():  # the last one decides
        checked = [[(float(value), _judged(of, statuses)) for value, of in grid.items()] for grid in grids]
        ends = [edges([(value, of) for value, of in one if of]) for one in checked]
        largest = (f"{'at least ' * (one.largest == top)}{max(one.largest, 0):g}" for one in ends)
        texts[name] = f"largest {claim.over} at which most runs train, by {name}: {', '.join(largest)}"
        points = [
            Point(text, f"seed {run.record.seed}", float(value), float(statuses[run.record.run_id] == TRAINED))
            for text, grid in zip((a, b), grids, strict=True)
            for value, of in grid.items()
            for run in of
        ]
    means = max(ends[0].largest, 0.0), max(ends[1].largest, 0.0)
    if not max(means):
        raise UserError("no rate trains")
    # what trains at the largest rate tried may train at any
    (low_a, high_a), (low_b, high_b) = ((max(one.low, 0.0), math.inf if one.high == top else one.high) for one in ends)
    low, high = _log_ratio(low_a, high_b), _log_ratio(high_a, low_b)
    seeds = min(len(of) for grid in grids for of in grid.values())
    finding = Finding(
        means=means,
        effect=means[0] / means[1] if means[1] else math.inf,
        low=math.exp(low),
        high=math.exp(high),
        unit="times",
        n=f"{seeds} at each of {len(grids[0])}",
        notes=tuple(texts.values()),
        points=tuple(points),
        runs=[run for variant in found.variants for run in variant],
    )
    return judged(claim, finding, seeds, conclusion(claim.expect, low, high, math.log(claim.margin or 1)))


def _rules(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> dict[str, Statuses]:
    """Return the statuses of all runs by the name of each rule; the last rule decides."""
    own = {record.run_id: ending(record) for record in found.records}
    rules = {"the suite's rule": own}
    if claim.broken_below is not None:
        below = dict(own)
        for variant, text in zip(found.variants, texts, strict=True):
            least = claim.broken_below * _best(claim, variant, text, runs)
            alive = [run for run in variant if own[run.record.run_id] in (TRAINED, NOT_JUDGED)]
            for run, score in zip(alive, _scores(claim, alive, runs), strict=True):
                below[run.record.run_id] = TRAINED if score >= least else SCORE_AT_CHANCE
        rules[f"the row's rule (below {claim.broken_below:g} of the best score)"] = below
    return rules


def _scores(claim: Claim, variant: Sequence[Run], runs: RunSet) -> list[float]:
    return values_of(variant, claim.metric or variant[0].record.primary, runs) if variant else []


def _best(claim: Claim, variant: Sequence[Run], text: str, runs: RunSet) -> float:
    """Return the best mean score of a variant over the values of `over`, also those that its selector leaves out."""
    fields = selector_fields(text)
    if fields.pop(claim.over, None):
        wide = selected(selector_of(fields), runs, claim.over, claim.grid)
        (variant,) = matched([wide], runs, claim.over).variants
    scored = ([run for run in of if run.record.scored] for of in grid_of(variant, claim.over, runs).values())
    means = [fmean(_scores(claim, of, runs)) for of in scored if of]
    if not means:
        raise UserError(f"no run of '{text}' has a score at any {claim.over}")
    return max(means)


def _judged(variant: Sequence[Run], statuses: Statuses) -> list[str]:
    found = (statuses[run.record.run_id] for run in variant)
    return [status for status in found if status != NOT_JUDGED]


def _failed(variant: Sequence[Run], statuses: Statuses) -> tuple[int, int]:
    """Return how many runs failed, and of how many that were judged."""
    found = _judged(variant, statuses)
    return sum(status != TRAINED for status in found), len(found)


def _log_ratio(a: float, b: float) -> float:
    """Return log(a / b); 0 is a rate below all that were tried, infinity one above them."""
    if a <= 0 or math.isinf(b):
        return -math.inf
    return math.inf if b <= 0 or math.isinf(a) else math.log(a / b)
