"""Selects the runs of a claim's variants, checks that they can be compared, and chooses the rate of each variant."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean
from typing import Any

from transfer.comparison.pairing import MatchedRuns, match
from transfer.comparison.selection import Selection, has_value, select
from transfer.core.errors import UsageError, UserError
from transfer.experiments.claims import Claim
from transfer.records.fields import order, value_label, value_of
from transfer.records.protocol import pretraining
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.claims.metrics import values_of


def selected(text: str, runs: RunSet, name: str = "", grid: Sequence[object] = ()) -> Selection:
    """Return the runs of a selector.

    Args:
        text: the selector.
        runs: all runs.
        name: field in which the runs of a variant may differ, too, such as the learning rate; empty for none.
        grid: its values that count; empty for all.

    Raises:
        UserError: it names no run, or only runs that do not count, as smoke runs.
    """
    if not runs.known:
        raise UserError("there are no runs")
    try:
        found = select(text, runs)
    except UsageError:
        hidden = list[Run]()
        with suppress(UsageError):
            hidden = select(text, runs.select(run for run in runs.known if run.record.run_id not in runs.by_id)).runs
        if not hidden:
            raise
        smoke = sum(run.record.smoke for run in hidden)
        kinds = [f"{smoke} smoke runs"] * (smoke > 0) + [f"{len(hidden) - smoke} by changed files"] * (
            smoke < len(hidden)
        )
        raise UserError(f"'{text}' selects only runs that do not count: {', '.join(kinds)}") from None
    kept = [run for run in found.runs if not grid or _in_grid(run, name, grid, runs)]
    if not kept:
        raise UserError(f"'{text}' selects no run at {name} {' '.join(map(str, grid))}")
    return replace(found, runs=kept, fields=tuple(dict.fromkeys([*found.fields, *filter(None, [name])])))


def _in_grid(run: Run, name: str, grid: Sequence[object], runs: RunSet) -> bool:
    return any(has_value(run.record, name, str(value), runs.exports) for value in grid)


def matched(variants: Sequence[Selection], runs: RunSet, *varied: str) -> MatchedRuns:
    """Return the only match of the variants, in each of which only the `varied` fields have several values.

    Raises:
        UserError: their runs have different protocols, or some cannot be compared.
    """
    apart = (*varied, "weights", "seed", "run")  # differ from seed to seed
    for name in dict.fromkeys(name for one in variants for name in one.fields if name not in apart):
        for one in variants:
            values = {value_label(value_of(run.record, name, runs.exports)) for run in one.runs}
            if len(values) > 1:
                raise UserError(f"'{one.text}' has several values of {name} ({', '.join(sorted(values))}); choose one")
    for place, one in enumerate(variants):
        for other in variants[:place]:
            if {run.record.run_id for run in one.runs} & {run.record.run_id for run in other.runs}:
                raise UserError(f"'{other.text}' and '{one.text}' select the same runs")
    found = match(variants, runs.exports)
    if reasons := list(dict.fromkeys(f"{one.label}: {one.text}" for one in found.exclusions)):
        raise UserError("; ".join(reasons[:3]))
    if len(found.matches) != 1:
        labels = "; ".join(one.label for one in found.matches[:4])
        raise UserError(f"the runs have {len(found.matches)} protocols ({labels}); add conditions to `runs`")
    if smoke := sum(record.smoke or "smoke" in record.origin_marks for record in found.matches[0].records):
        raise UserError(f"{smoke} smoke runs, or runs from weights of smoke runs, which do not count")
    return found.matches[0]


def seed_of(run: Run, runs: RunSet) -> tuple[int | None, int]:
    """Return the seed of the training that a run's weights come from, if it is known, and its own."""
    parent = pretraining(run.record, runs.exports)
    return parent.seed if parent else None, run.record.seed


Grid = dict[Any, list[Run]]
"""The runs of a variant by the value of a field, such as the learning rate, in ascending order."""


def grid_of(variant: Sequence[Run], name: str, runs: RunSet) -> Grid:
    """Return the runs of a variant by the value of a field."""
    values = {run.folder: value_of(run.record, name, runs.exports) for run in variant}
    cells: Grid = {value: [] for value in sorted(values.values(), key=order)}
    for run in variant:
        cells[values[run.folder]].append(run)
    return cells


def equal_grids(
    found: MatchedRuns, texts: Sequence[str], name: str, wanted: Sequence[object], runs: RunSet
) -> list[Grid]:
    """Return the grid of each variant; of registered values with the seeds that all have at all of them.

    Raises:
        UserError: not all have the same values with the same seeds, or one lacks a wanted value.
    """
    grids = [grid_of(variant, name, runs) for variant in found.variants]
    for grid, text in zip(grids, texts, strict=True):
        if missing := [value for value in wanted if value not in grid]:
            raise UserError(f"'{text}' has no run at {name} {' '.join(map(value_label, missing))}")
    if wanted:
        of_all = [{seed_of(run, runs)[1] for run in of} for grid in grids for of in grid.values()]
        if common := set.intersection(*of_all):
            grids = [
                {value: [run for run in of if seed_of(run, runs)[1] in common] for value, of in grid.items()}
                for grid in grids
            ]
    seeds = [
        {value: sorted(map(str, {seed_of(run, runs)[1] for run in of})) for value, of in grid.items()} for grid in grids
    ]
    if any(of != seeds[0] for of in seeds):
        shown = [
            ", ".join(f"{value_label(value)} (seeds {' '.join(of)})" for value, of in one.items()) for one in seeds
        ]
        told = "; ".join(f"'{text}': {one}" for text, one in zip(texts, shown, strict=True))
        raise UserError(f"the grids of {name} differ: {told}")
    return grids


def chosen(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> tuple[MatchedRuns, list[str]]:
    """Return the runs of each variant at the value of `choose` with the best validation metric, and the choices.

    A value at which a training failed is not chosen; of equal ones the first is.

    Raises:
        UserError: grids differ, or a run has no validation metric.
    """
    variants, notes = [], []
    for grid, text in zip(equal_grids(found, texts, claim.choose, claim.grid, runs), texts, strict=True):
        whole = {value: of for value, of in grid.items() if not any(run.record.training_failed for run in of)}
        if not whole:
            raise UserError(f"a training failed at every {claim.choose} of '{text}'")
        means = {value: fmean(values_of(of, claim.chosen_by, runs)) for value, of in whole.items()}
        best = max(means, key=lambda value: means[value])
        variants.append(grid[best])
        edge = " (an end of the grid)" if best in (next(iter(grid)), [*grid][-1]) else ""
        notes.append(f"{claim.choose} {value_label(best)}{edge} chosen for '{text}'")
    return replace(found, variants=variants), notes
