"""Failed training runs of a claim's variants: their share, and the largest rate at which runs train."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from transfer.comparison.pairing import MatchedRuns
from transfer.comparison.selection import selector_fields, selector_of
from transfer.core.errors import UserError
from transfer.experiments.claims import Claim
from transfer.records.evidence import SCORE_AT_CHANCE, ending
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.claims.findings import POINTS, Finding, Point, judged
from transfer.report.claims.metrics import metric_of
from transfer.report.claims.variants import Grid, equal_grids, grid_of, matched, seed_of, selected
from transfer.report.tables.stability_map import Edges, edges
from transfer.statistics.effects import CONTRADICTION, conclusion, newcombe

TRAINED, NOT_JUDGED = "completed", "not_judged"
Status = Callable[[Run], str]
"""The status of a run by a rule: `completed`, `not_judged`, or how it failed."""


def failures(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the difference of two variants' shares of failed runs, in points."""
    found = matched([selected(text, runs, claim.over, claim.grid) for text in (a, b)], runs, claim.over)
    if claim.over and claim.over not in selector_fields(a):
        equal_grids(found, (a, b), claim.over, claim.grid, runs)
    rules = _rules(claim, found, (a, b), runs)
    counts = {
        name: [_share(variant, status) for variant, status in zip(found.variants, statuses, strict=True)]
        for name, statuses in rules.items()
    }
    texts = {name: ", ".join(f"{failed} of {of}" for failed, of in counted) for name, counted in counts.items()}
    *_, (deciding, ((failed_a, of_a), (failed_b, of_b))) = counts.items()
    seeds = min(len({seed_of(run, runs) for run in variant}) for variant in found.variants)
    if not of_a or not of_b:
        raise UserError(f"{of_a} and {of_b} runs were checked for failure")
    low, high = (100 * end for end in newcombe(failed_a, of_a, failed_b, of_b))
    means = 100 * failed_a / of_a, 100 * failed_b / of_b
    finding = Finding(
        means=means,
        effect=means[0] - means[1],
        low=low,
        high=high,
        unit=POINTS,
        n=texts[deciding],
        notes=_told(texts),
        points=tuple(
            Point(text, name, 100 * failed / of)
            for name, counted in counts.items()
            for text, (failed, of) in zip((a, b), counted, strict=True)
            if of
        ),
        runs=[run for variant in found.variants for run in variant],
    )
    return judged(claim, finding, seeds, conclusion(claim.expect, low, high, claim.margin))


def largest_stable(claim: Claim, a: str, b: str, runs: RunSet) -> Finding:
    """Return the ratio of two variants' largest stable rates, from where all seeds train to where any does."""
    found = matched([selected(text, runs, claim.over, claim.grid) for text in (a, b)], runs, claim.over)
    grids = equal_grids(found, (a, b), claim.over, claim.grid, runs)
    rules = _rules(claim, found, (a, b), runs)
    ends = {
        name: [_edges(grid, status) for grid, status in zip(grids, statuses, strict=True)]
        for name, statuses in rules.items()
    }
    texts = {name: ", ".join(_rate(one) for one in found_ends) for name, found_ends in ends.items()}
    *_, (deciding, (one, other)) = ends.items()
    seeds = min(len(of) for grid in grids for of in grid.values())
    means = max(one.largest, 0.0), max(other.largest, 0.0)
    if not max(means):
        raise UserError("no rate trains")
    low, high = _log_ratio(_low(one), _high(other)), _log_ratio(_high(one), _low(other))
    verdict = conclusion(claim.expect, low, high, None if claim.margin is None else math.log(claim.margin))
    if "=" not in claim.expect and (high <= 0 if ">" in claim.expect else low >= 0):
        verdict = CONTRADICTION  # equal rates support no order
    finding = Finding(
        means=means,
        effect=means[0] / means[1] if means[1] else math.inf,
        low=math.exp(low),
        high=math.exp(high),
        unit="times",
        n=f"{seeds} at each of {len(grids[0])}",
        notes=(*_told(texts), f"largest {claim.over} at which most runs train: {texts[deciding]}"),
        points=tuple(
            Point(text, f"seed {run.record.seed}", float(value), float(status(run) == TRAINED))
            for text, grid, status in zip((a, b), grids, rules[deciding], strict=True)
            for value, of in grid.items()
            for run in of
        ),
        runs=[run for variant in found.variants for run in variant],
    )
    return judged(claim, finding, seeds, verdict)


def _rules(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> dict[str, list[Status]]:
    """Return by the name of each rule the status of a run of each variant; the last rule decides."""
    rules: dict[str, list[Status]] = {"the suite's rule": [lambda run: ending(run.record)] * len(texts)}
    if claim.broken_below is not None:
        bests = [_best(claim, variant, text, runs) for variant, text in zip(found.variants, texts, strict=True)]
        name = f"a score below {claim.broken_below:g} of the best"
        rules[name] = [_below(claim, claim.broken_below * best, runs) for best in bests]
    return rules


def _below(claim: Claim, least: float, runs: RunSet) -> Status:
    def status(run: Run) -> str:
        own, found = ending(run.record), metric_of(run, claim.metric or run.record.primary, runs)
        if own not in (TRAINED, NOT_JUDGED):
            return own
        return TRAINED if found and found[0] >= least else SCORE_AT_CHANCE

    return status


def _best(claim: Claim, variant: Sequence[Run], text: str, runs: RunSet) -> float:
    """Return the best mean score of a variant over the values of `over`, also those that its selector leaves out."""
    fields = selector_fields(text)
    wide = selector_of({name: value for name, value in fields.items() if name != claim.over})
    everything = (
        matched([selected(wide, runs, claim.over, claim.grid)], runs, claim.over).variants[0]
        if claim.over in fields
        else variant
    )
    means = []
    for of in grid_of(everything, claim.over, runs).values():
        scores = [one[0] for run in of if (one := metric_of(run, claim.metric or run.record.primary, runs))]
        means += [fmean(scores)] if scores else []
    if not means:
        raise UserError(f"no run of '{wide}' has a score")
    return max(means)


def _share(variant: Sequence[Run], status: Status) -> tuple[int, int]:
    """Return how many runs failed, and of how many that were judged."""
    found = [one for one in map(status, variant) if one != NOT_JUDGED]
    return sum(one != TRAINED for one in found), len(found)


def _edges(grid: Grid, status: Status) -> Edges:
    checked = [(float(value), [one for one in map(status, of) if one != NOT_JUDGED]) for value, of in grid.items()]
    return edges([(value, statuses) for value, statuses in checked if statuses])


def _rate(one: Edges) -> str:
    if one.largest <= 0:
        return "none"
    return f"{'at least ' * math.isinf(one.failed)}{one.largest:g}"


def _low(one: Edges) -> float:
    return max(one.low, 0.0)


def _high(one: Edges) -> float:
    return math.inf if math.isinf(one.failed) else max(one.high, 0.0)


def _log_ratio(a: float, b: float) -> float:
    """Return log(a / b); 0 is a rate below all that were tried, infinity one above them."""
    if a == 0 or math.isinf(b):
        return -math.inf
    return math.inf if b == 0 or math.isinf(a) else math.log(a / b)


def _told(texts: dict[str, str]) -> tuple[str, ...]:
    """Return what the rules say that do not decide."""
    *others, _ = texts.items()
    return tuple(f"by {name}: {text}" for name, text in others)
