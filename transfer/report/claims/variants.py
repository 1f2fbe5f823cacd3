"""Selects the runs of a claim's variants, checks that they can be compared, and chooses the rate of each variant."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean

from transfer.comparison.pairing import MatchedRuns, match
from transfer.comparison.selection import Axis, Selection, has_value, select, selector_fields
from transfer.core.errors import UsageError, UserError
from transfer.experiments.claims import Claim
from transfer.records.fields import order, value_label, value_of
from transfer.records.protocol import PRETRAINING, pretraining
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.claims.metrics import check_metric, metric_of


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


Seed = tuple[int | None, int]
"""Seed of the training that the weights come from, if it is known, and of the run."""


def seed_of(run: Run, runs: RunSet) -> Seed:
    """Return what tells the runs of one setting apart."""
    parent = pretraining(run.record, runs.exports)
    return parent.seed if parent else None, run.record.seed


@dataclass(frozen=True)
class Grid:
    """The runs of a variant by the value of a field, such as the learning rate.

    Attributes:
        cells: finished runs at each value, in ascending order.
        seeds: seeds at each value, with those whose training failed.
        failed: values at which a training failed.
    """

    cells: Mapping[object, list[Run]]
    seeds: Mapping[object, frozenset[object]]
    failed: frozenset[object]

    @classmethod
    def of(cls, variant: Sequence[Run], text: str, name: str, runs: RunSet, wanted: Sequence[object] = ()) -> "Grid":
        """Return the grid of a field.

        Args:
            variant: runs of the variant.
            text: its selector, by which failed pretrainings are found, which left no run.
            name: the field.
            runs: all runs.
            wanted: the values that count; empty for all.
        """
        cells: dict[object, list[Run]] = {}
        for run in sorted(variant, key=lambda run: order(value_of(run.record, name, runs.exports))):
            cells.setdefault(value_of(run.record, name, runs.exports), []).append(run)
        seeds = {
            value: {seed_of(run, runs)[0 if name.startswith(PRETRAINING) else 1] for run in of}
            for value, of in cells.items()
        }
        failed = {value for value, of in cells.items() if any(run.record.training_failed for run in of)}
        for value, seed in _lost(variant, text, name, runs):
            if wanted and value not in wanted:
                continue
            failed.add(value)
            seeds.setdefault(value, set()).add(seed)
        return cls(cells, {value: frozenset(of) for value, of in seeds.items()}, frozenset(failed))

    def __str__(self) -> str:
        return ", ".join(f"{value_label(value)} (seeds {_joined(of)})" for value, of in self.seeds.items())


def too_few(claim: Claim, seeds: int) -> list[str]:
    """Return the note on fewer seeds than are wanted."""
    return [f"{seeds} of {claim.seeds} seeds"] if seeds < claim.seeds else []


def _joined(seeds: frozenset[object]) -> str:
    return " ".join(sorted(map(str, seeds)))


def _lost(variant: Sequence[Run], text: str, name: str, runs: RunSet) -> list[tuple[object, int]]:
    """Return value and seed of each pretraining of a variant that failed, for a field of the pretraining."""
    parents = [parent for run in variant if (parent := pretraining(run.record, runs.exports))]
    kinds = {(parent.task, parent.task_version, str(parent.dataset.get("digest"))) for parent in parents}
    if not name.startswith(PRETRAINING) or not parents:
        return []
    wanted = {
        key.removeprefix(PRETRAINING): value
        for key, value in selector_fields(text).items()
        if key.startswith(PRETRAINING) or key in parents[0].backbone
    }
    failed = [
        run.record
        for run in runs.known
        if run.record.training_failed
        and (run.record.task, run.record.task_version, str(run.record.dataset.get("digest"))) in kinds
        and not run.record.smoke
        and all(has_value(run.record, key, value, {}) for key, value in wanted.items())
    ]
    return [(value_of(record, name.removeprefix(PRETRAINING), {}), record.seed) for record in failed]


def equal_grids(
    variants: Sequence[Sequence[Run]], texts: Sequence[str], name: str, runs: RunSet, wanted: Sequence[object] = ()
) -> list[Grid]:
    """Return the grid of each variant.

    Raises:
        UserError: not all have the same values with the same seeds, or one lacks a wanted value.
    """
    grids = [Grid.of(variant, text, name, runs, wanted) for variant, text in zip(variants, texts, strict=True)]
    for grid, text in zip(grids, texts, strict=True):
        if missing := [value for value in wanted if value not in grid.seeds]:
            raise UserError(f"'{text}' has no run at {name} {' '.join(map(value_label, missing))}")
    if any(grid.seeds != grids[0].seeds for grid in grids):
        shown = "; ".join(f"'{text}': {grid}" for text, grid in zip(texts, grids, strict=True))
        raise UserError(f"the grids of {name} differ: {shown}")
    return grids


def chosen(claim: Claim, found: MatchedRuns, texts: Sequence[str], runs: RunSet) -> tuple[MatchedRuns, list[str]]:
    """Return the runs of each variant at the value of `choose` with the best validation metric, and the choices.

    A value at which a training failed is not chosen; of equal ones the first is.

    Raises:
        UserError: grids differ, or a run has no validation metric.
    """
    grids = equal_grids(found.variants, texts, claim.choose, runs, claim.grid)
    variants, notes = [], []
    for grid, text in zip(grids, texts, strict=True):
        means = {}
        for value, of in grid.cells.items():
            if value not in grid.failed:
                check_metric(claim.chosen_by, of, runs)
                values = [metric_of(run, claim.chosen_by, runs) for run in of]
                if None in values:
                    raise UserError(f"{value_label(value)} of '{text}': some runs have no {claim.chosen_by}")
                means[value] = fmean(one[0] for one in values if one)
        if not means:
            raise UserError(f"a training failed at every {claim.choose} of '{text}'")
        best = max(means, key=lambda value: means[value])
        variants.append(grid.cells[best])
        edge = " (an end of the grid)" if best in (next(iter(grid.seeds)), list(grid.seeds)[-1]) else ""
        notes.append(f"{claim.choose} {value_label(best)}{edge} chosen for '{text}'")
    return replace(found, variants=variants), notes


def corners_of(claim: Claim, runs: RunSet, axes: Sequence[Axis]) -> list[str]:
    """Return the selectors of the four corners of an interaction."""
    (f, values_f), (g, values_g) = axes
    return [claim.selector(f"{f}={one},{g}={other}") for one in values_f for other in values_g]
