"""Selects the runs of a claim's variants, checks that they can be compared, chooses rates, and reads metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from transfer.comparison.pairing import MatchedRuns, match
from transfer.comparison.selection import Selection, select
from transfer.core.errors import UsageError, UserError
from transfer.engine.checkpoint import history
from transfer.experiments.claims import Claim
from transfer.records.fields import order, value_label, value_of
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run

Grid = dict[Any, list[Run]]
"""The runs of a variant by the value of a field, such as the learning rate, in ascending order."""


def selected(claim: Claim, text: str, runs: RunSet) -> Selection:
    """Return the runs of a variant, at the values of the claim's grid.

    Raises:
        UserError: there are none, or only such as do not count, as smoke runs.
    """
    if not runs.known:
        raise UserError("there are no runs")
    try:
        found = select(claim.selector(text), runs)
    except UsageError:
        select(claim.selector(text), runs.select(runs.known))  # raises where these have none, either
        raise UserError(f"'{text}' selects only smoke runs, or runs by changed files, which do not count") from None
    values = {run.folder: value_of(run.record, claim.varied, runs.exports) for run in found.runs if claim.grid}
    kept = [run for run in found.runs if not claim.grid or values[run.folder] in claim.grid]
    if not kept:
        raise UserError(f"'{text}' selects no run at {claim.varied} {' '.join(map(str, claim.grid))}")
    if smoke := sum(run.record.smoke or "smoke" in run.record.origin_marks for run in kept):
        raise UserError(f"{smoke} smoke runs, or runs from weights of smoke runs, which do not count")
    return replace(found, runs=kept, fields=tuple(dict.fromkeys([*found.fields, *filter(None, [claim.varied])])))


def matched(claim: Claim, texts: Sequence[str], runs: RunSet) -> MatchedRuns:
    """Return the only match of variants, in each of which only the seed and the field that the claim varies differ.

    Raises:
        UserError: their runs have different protocols, or some cannot be compared.
    """
    variants = [selected(claim, text, runs) for text in texts]
    apart = (claim.varied, "weights", "seed", "run")  # the last three differ from seed to seed
    for name in dict.fromkeys(name for one in variants for name in one.fields if name not in apart):
        for one in variants:
            values = {value_label(value_of(run.record, name, runs.exports)) for run in one.runs}
            if len(values) > 1:
                raise UserError(f"'{one.text}' has several values of {name} ({', '.join(sorted(values))}); choose one")
    ids = [run.record.run_id for one in variants for run in one.runs]
    if len({*ids}) < len(ids):
        raise UserError(f"{' and '.join(map(repr, texts))} select the same runs")
    found = match(variants, runs.exports)
    if reasons := list(dict.fromkeys(f"{one.label}: {one.text}" for one in found.exclusions)):
        raise UserError("; ".join(reasons[:3]))
    if len(found.matches) != 1:
        labels = "; ".join(one.label for one in found.matches[:4])
        raise UserError(f"the runs have {len(found.matches)} protocols ({labels}); add conditions to `runs`")
    return found.matches[0]


def grid_of(variant: Sequence[Run], name: str, runs: RunSet) -> Grid:
    """Return the runs of a variant by the value of a field."""
    cells: Grid = {}
    for run in variant:
        cells.setdefault(value_of(run.record, name, runs.exports), []).append(run)
    return dict(sorted(cells.items(), key=lambda cell: order(cell[0])))


def equal_grids(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> list[Grid]:
    """Return the grid of each variant; of registered values with the seeds that all have at all of them.

    Raises:
        UserError: not all have the same values with the same seeds, or one lacks a registered value.
    """
    name, grids = claim.varied, [grid_of(variant, claim.varied, runs) for variant in found.variants]
    for grid, text in zip(grids, texts, strict=True):
        if missing := [value for value in claim.grid if value not in grid]:
            raise UserError(f"'{text}' has no run at {name} {' '.join(map(value_label, missing))}")
    common = set.intersection(*({run.record.seed for run in of} for grid in grids for of in grid.values()))
    if claim.grid and common:
        grids = [{at: [run for run in of if run.record.seed in common] for at, of in grid.items()} for grid in grids]
    told = [", ".join(f"{value_label(at)} (seeds {_seeds(of)})" for at, of in grid.items()) for grid in grids]
    if len({*told}) > 1:
        shown = "; ".join(f"'{text}': {grid}" for text, grid in zip(texts, told, strict=True))
        raise UserError(f"the grids of {name} differ: {shown}")
    return grids


def _seeds(runs: Sequence[Run]) -> str:
    return " ".join(sorted({str(run.record.seed) for run in runs}))


def chosen(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> tuple[MatchedRuns, list[str]]:
    """Return the runs of each variant at the value of `choose` with the best validation metric, and the choices.

    A value at which a training failed is not chosen; of equal ones the first is.

    Raises:
        UserError: grids differ, or a run has no validation metric.
    """
    variants, notes = [], []
    for grid, text in zip(equal_grids(claim, found, texts, runs), texts, strict=True):
        whole = {value: of for value, of in grid.items() if not any(run.record.training_failed for run in of)}
        if not whole:
            raise UserError(f"a training failed at every {claim.choose} of '{text}'")
        means = {value: fmean(values_of(of, claim.chosen_by)) for value, of in whole.items()}
        best = max(means, key=lambda value: means[value])
        variants.append(grid[best])
        edge = " (an end of the grid)" if best in (next(iter(grid)), [*grid][-1]) else ""
        notes.append(f"{claim.choose} {value_label(best)}{edge} chosen for '{text}'")
    return replace(found, variants=variants), notes


COST, LAYERS, HELD_OUT = "cost.", "layers.", "held_out."


def metric_of(run: Run, name: str) -> float | None:
    """Return a metric of a run; None if the run does not have it.

    Args:
        run: the run.
        name: top1, top1@3 (after an epoch), held_out.top1, cost.train_seconds, layers.PLACE.MEASURE,
            layers.PLACE.MEASURE@3.
    """
    base, _, epoch = name.partition("@")
    if base.startswith(COST):
        return run.record.cost.get(base.removeprefix(COST))
    if base.startswith(HELD_OUT):
        return (run.record.details.get("held_out") or {}).get(base.removeprefix(HELD_OUT))
    if base.startswith(LAYERS):
        place, _, measure = base.removeprefix(LAYERS).rpartition(".")
        facts: Iterable[Mapping[str, Any]] = _at(run, "layers", epoch) if epoch else [run.record.details]
        layers = [layer for fact in facts for layer in fact.get("layers") or () if str(layer["place"]) == place]
        return layers[-1].get(measure) if layers else None
    return (
        next((entry[base] for entry in reversed(_at(run, base, epoch))), None) if epoch else run.record.scores.get(base)
    )


def scale_of(record: Record, name: str) -> float:
    """Return the factor to the unit in which a metric is shown: 100 for a fraction."""
    return 1.0 if name.startswith((COST, LAYERS)) else record.scale(name.partition("@")[0].removeprefix(HELD_OUT))


def _at(run: Run, key: str, epoch: str) -> list[dict[str, Any]]:
    return [entry for entry in history(run.folder, key) if str(entry.get("epoch")) == epoch]


def values_of(wanted: Sequence[Run], name: str) -> list[float]:
    """Return a metric of runs in the unit in which it is shown. Raises UserError if one does not have it."""
    found = {run.record.run_id: metric_of(run, name) for run in wanted}
    if lacking := [run.record for run in wanted if found[run.record.run_id] is None]:
        known = f"scores: {', '.join(lacking[0].scores) or 'none'}"
        raise UserError(f"{len(lacking)} of {len(wanted)} runs lack {name!r}, as {lacking[0].run_id} ({known})")
    return [float(found[run.record.run_id] or 0.0) * scale_of(run.record, name) for run in wanted]
