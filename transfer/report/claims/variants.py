"""Selects the runs of a claim's variants, checks that they can be compared, chooses rates, and reads metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from transfer.comparison.pairing import MatchedRuns, match_runs
from transfer.comparison.selection import Selection, select_arms
from transfer.core.errors import UsageError, UserError, shortened
from transfer.engine.checkpoint import history
from transfer.experiments.claims import Claim
from transfer.records.evidence import Arm, Unit
from transfer.records.fields import order, value_label, value_of
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun

Grid = dict[Any, Arm]
"""The runs of a variant, with what counts as one seed, by the value of a field, such as lr, in ascending order."""


def select_variants(claim: Claim, texts: Sequence[str], runs: StoredRuns) -> list[Selection]:
    """Return the runs of each variant, at the values of the claim's grid.

    Raises:
        UserError: a variant has none, or such as do not count, as smoke runs.
    """
    if not runs.known:
        raise UserError("there are no runs")
    selectors, variants = [claim.selector(text) for text in texts], list[Selection]()
    try:
        selections = select_arms(selectors, runs)
    except UsageError:
        select_arms(selectors, runs.select(runs.known))  # raises where these have none, either
        raise UserError("only smoke runs, or runs by changed files, are selected, which do not count") from None
    name, grid = claim.varied, claim.grid
    for text, selection in zip(texts, selections, strict=True):
        at_grid = selection.runs
        if grid:
            at_grid = [run for run in at_grid if value_of(run.record, name, runs.exports) in grid]
        if not at_grid:
            raise UserError(f"'{text}' has no run at {name} {shortened(grid)}")
        if smoke := sum(run.record.smoke or "smoke" in run.record.origin_marks for run in at_grid):
            raise UserError(f"{smoke} smoke runs, or runs from weights of smoke runs, which do not count")
        fields = (*selection.fields, name) if name else selection.fields
        variants.append(replace(selection, runs=at_grid, fields=fields))
    return variants


def only_match(claim: Claim, texts: Sequence[str], runs: StoredRuns) -> MatchedRuns:
    """Return the only match of variants, in each of which only the seed and the field that the claim varies differ.

    Raises:
        UserError: their runs have different protocols, or some cannot be compared.
    """
    variants = select_variants(claim, texts, runs)
    apart = (claim.varied, "weights", "seed", "run")  # the last three differ from seed to seed
    fields = dict.fromkeys(chain.from_iterable(variant.fields for variant in variants))
    for name in (field for field in fields if field not in apart):
        for text, variant in zip(texts, variants, strict=True):
            values = {value_of(run.record, name, runs.exports) for run in variant.runs}
            if len(values) > 1:
                several = shortened(sorted(values, key=order))
                raise UserError(f"'{text}' has several values of {name} ({several}); choose one")
    matching = match_runs(variants, runs.exports)
    if reasons := dict.fromkeys(f"{exclusion.label}: {exclusion.text}" for exclusion in matching.exclusions):
        raise UserError(shortened(reasons, 3))
    if len(matching.matches) != 1:
        labels = shortened([matched_runs.label for matched_runs in matching.matches])
        raise UserError(f"the runs have {len(matching.matches)} protocols ({labels}); add conditions to `runs`")
    return matching.matches[0]


def grid_of(variant: Sequence[StoredRun], name: str, runs: StoredRuns) -> Grid:
    """Return the runs of a variant by the value of a field; without a name all of them by None."""
    cells = runs.evidence.cells([run.record for run in variant], [name] if name else [])
    arms = {next(iter(cell.values), None): cell.variant for cell in cells}
    return dict(sorted(arms.items(), key=lambda item: order(item[0])))


def equal_grids(claim: Claim, matched_runs: MatchedRuns, texts: Sequence[str], runs: StoredRuns) -> list[Grid]:
    """Return the grid of each variant, with the seeds that all variants have at all values.

    Raises:
        UserError: a variant lacks a value of the claim's grid, or else of another variant, or no seed is at all values.
    """
    name, grids = claim.varied, [grid_of(variant, claim.varied, runs) for variant in matched_runs.variants]
    for grid, text in zip(grids, texts, strict=True):
        if missing := [value for value in claim.grid or dict.fromkeys(chain(*grids)) if value not in grid]:
            raise UserError(f"'{text}' has no run at {name} {shortened([value_label(value) for value in missing])}")
    whole = [set.intersection(*({*arm.units} for arm in grid.values())) for grid in grids]
    if (shared := shared_seeds(whole)) is not None:
        whole = [{unit for unit in units if unit[1] in shared} for units in whole]
    if not all(whole):
        raise UserError(f"no seed has runs at every {name}")
    of_units = zip(grids, whole, strict=True)
    return [{value: arm.of_units(units) for value, arm in grid.items()} for grid, units in of_units]


def shared_seeds(variants: Iterable[Iterable[Unit]]) -> set[Any] | None:
    """Return the seeds that the units of all variants have; None if those of a variant are weights of unknown seeds."""
    seeds = [{seed for kind, seed in units if kind != "weights"} for units in variants]
    return set.intersection(*seeds) if all(seeds) else None


def choose_value(
    claim: Claim, matched_runs: MatchedRuns, texts: Sequence[str], runs: StoredRuns
) -> tuple[MatchedRuns, list[str]]:
    """Return the runs of each variant at the value of `choose` with the best validation metric, and the choices.

    A value at which a training failed is not chosen; of equal ones the first is.

    Raises:
        UserError: grids differ, or a run has no validation metric.
    """
    variants, notes = [], []
    for grid, text in zip(equal_grids(claim, matched_runs, texts, runs), texts, strict=True):
        whole = {value: arm for value, arm in grid.items() if not arm.absent}
        if not whole:
            raise UserError(f"a training failed at every {claim.choose} of '{text}'")
        best = max(whole, key=lambda value: fmean(metric_by_seed(whole[value], claim.chosen_by, runs).values()))
        variants.append([runs.by_id[record.run_id] for record in grid[best].records])
        edge = " (an end of the grid)" if best in (next(iter(grid)), [*grid][-1]) else ""
        notes.append(f"{claim.choose} {value_label(best)}{edge} chosen for '{text}'")
    return replace(matched_runs, variants=variants), notes


def _metric(run: StoredRun, name: str) -> float | None:
    """Return a metric of a run, as `docs/guide/claims.md` names it; None if the run does not have it."""
    name, _, epoch = name.partition("@")
    key, _, rest = name.partition(".")
    if epoch:
        entries = [entry for entry in history(run.folder, key) if str(entry.get("epoch")) == epoch]
        facts = entries[-1] if entries else {}
    else:
        facts = {**run.record.details, **run.record.scores, "cost": run.record.cost}
    if key == "layers":
        place, _, rest = rest.rpartition(".")
        return next((layer.get(rest) for layer in facts.get(key) or () if str(layer["place"]) == place), None)
    return (facts.get(key) or {}).get(rest) if rest else facts.get(key)


def scale_of(record: Record, name: str) -> float:
    """Return the factor to the unit in which a metric is shown: 100 for a fraction."""
    return 1.0 if name.startswith(("cost.", "layers.")) else record.scale(measure(name))


def metric_values(wanted: Sequence[StoredRun], name: str) -> list[float]:
    """Return a metric of runs in the unit in which it is shown. Raises UserError if one does not have it."""
    values = []
    for run in wanted:
        if (value := _metric(run, name)) is None:
            known = ", ".join(run.record.scores) or "none"
            raise UserError(f"{run.record.run_id} lacks {name!r} (scores: {known})")
        values.append(float(value) * scale_of(run.record, name))
    return values


def metric_by_seed(arm: Arm, name: str, runs: StoredRuns, of_failed: Sequence[float] = ()) -> dict[Unit, float]:
    """Return `metric_values` by seed: means over its runs, with `of_failed` for each run whose training failed."""
    return arm.by_unit(lambda record: metric_values([runs.by_id[record.run_id]], name)[0], of_failed)


def measure(name: str) -> str:
    """Return what a metric measures, without its place and epoch: "similarity" of "layers.block 3.similarity@1"."""
    return name.partition("@")[0].rpartition(".")[2]
