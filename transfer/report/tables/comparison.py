"""Tables that compare two backbones, or the four of a 2 x 2, on the same samples. Imports no torch.

Scores that are fractions are shown in percent, all others in their own unit.
"""

import re
from collections.abc import Iterable
from dataclasses import astuple, replace
from functools import lru_cache
from typing import Any

from transfer.comparison.compare_arms import FAMILIES, ComparedScore, Comparison, compared_arms, effects, judge
from transfer.comparison.pairing import Exclusion, MatchedRuns, match
from transfer.comparison.selection import axis, corners, select_arms
from transfer.core.errors import UserError, count
from transfer.records.fields import value_label
from transfer.records.grouping import dataset_label, machines_of_tasks, nearness_to_pretraining
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import run_ids
from transfer.report.tables.comparison_text import (
    IN_SUMMARY,
    adjustment_notes,
    notes_of_match,
    unjudged_notes,
    without_common_rows,
)
from transfer.report.tables.table import SIGNIFICANT, Column, Note, Row, Table
from transfer.report.tables.text import note_texts
from transfer.statistics.intervals import Estimate
from transfer.statistics.verdicts import Breakdowns

ERRORS = ("se of seeds", "se of samples")
NUMBERS = ("difference", "low", "high")
P_VALUES = ("p", "adjusted p")
COUNTS = ("clusters", "method")
RESULTS = (*NUMBERS, "verdict", *P_VALUES, "seeds", *ERRORS, *COUNTS)
"""Columns of a difference, in order."""
OF_OPTIONS = 12
"""Significant digits of options, which are shown as they were given."""
FAILED = "failed"
"""Prefix of the names of the columns with rates of failed training runs, which are last."""


def compare(runs: RunSet, a: str, b: str, margin: float | None = None) -> Table:
    """Return the table of the differences a - b, a row for each task, dataset, protocol and score.

    Runs are paired by the names of their samples, and by their seeds as far as both variants have the same ones. `se of
    seeds` and `se of samples` are the two components of the difference's standard error; with one seed the first is
    unknown. Runs that failed have no score; their rate is in the row with its interval. Where per-sample outcomes
    are missing, damaged or of other samples, a row has the means alone, and a note gives the reason.

    Args:
        a, b: selectors of the two variants, see `transfer.comparison.selection.select`.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.

    Raises:
        UsageError: a selector matches no run, or both match one run.
        UserError: nothing can be compared.
    """
    return comparison_table(compared(runs, a, b, margin), runs)


def comparison_table(comparison: Comparison, runs: RunSet) -> Table:
    """Return the table of a comparison of two variants, see `compare`, or of the effects and the interaction of two
    fields in each task, dataset and score.

    An interaction is the effect of the first field at the first value of the second less that at its second value.

    Raises:
        UserError: no task has both variants, or scores in all four corners.
    """
    rows, crossed = comparison.rows, bool(comparison.effects)
    excluded = [Note(exclusion.text, exclusion.label) for exclusion in comparison.exclusions]
    if not rows:
        what = "no interaction in {}, {}, {}, {}" if crossed else "'{}' and '{}' cannot be compared"
        reasons = "; ".join(note_texts(excluded)) or "no task has all under one protocol"
        raise UserError(f"{what.format(*(variant.text for variant in comparison.variants))}: {reasons}")
    notes = [
        Note(f"{re.sub('sha256:[0-9a-f]{64}:', '', variant.text)} ({count(len(variant.runs), 'run')})", letter)
        for letter, variant in zip("ab", () if crossed else comparison.variants)
    ]
    notes += excluded
    selected = {name for variant in comparison.variants for name in variant.fields}
    settings, cells = dict.fromkeys(name for row in rows for name in row.matched.setting), list[Row]()
    for one in comparison.matches:
        places = tuple(range(len(cells), len(cells) + len(one.rows)))
        if (differing := one.matched.differing) and (crossed or not selected.issuperset(differing)):
            told = f"the {'corners' if crossed else 'variants'} differ in {', '.join(differing)}"
            notes.append(Note(told, one.matched.label, places))
        notes += notes_of_match(one, places)
        head, ids = _head(one.matched, runs, settings), run_ids(one.matched.records)
        cells += [head | (_effect(row) if row.effect else _difference(row)) | ids for row in one.rows]
    notes = [*without_common_rows(notes, len(rows)), *unjudged_notes(rows), *adjustment_notes(comparison)]
    return Table.from_rows(cells, _columns(any(row.percent for row in rows), settings), notes)


@lru_cache(maxsize=16)  # the text and the page of a sweep show the same ones
def compared(runs: RunSet, a: str, b: str, margin: float | None = None) -> Comparison:
    """Return the comparison behind `compare` as values; without rows where nothing can be compared.

    Counted are tasks on other datasets than the pretraining's; without any, those on its dataset; else the pretraining.
    """
    variants = select_arms((a, b), runs)
    matching = match(variants, runs.exports)
    matches = [compared_arms(matched, runs.evidence) for matched in matching.matches]
    comparison = Comparison(variants, {}, matches, matching.exclusions)
    nearness = [nearness_to_pretraining(row.matched.records, runs.exports) for row in comparison.rows]
    for row, near in zip(comparison.rows, nearness, strict=True):
        row.family = row.family if near == min(nearness) else FAMILIES[2]
    judge(comparison.rows, margin)
    return comparison


def crossed(runs: RunSet, f: str, g: str, margin: float | None = None) -> Comparison:
    """Return the comparison of the four corners of two fields; without rows where no task has all four.

    Args:
        runs: the runs.
        f, g: field with two values among the runs, for instance stem, or field=value/value.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.

    Raises:
        UsageError: a field is unknown, or does not have two values.
        UserError: a corner has no runs.
    """
    axes = axis(f, runs), axis(g, runs)
    variants, contrasts = corners(*axes, runs), effects(*axes)
    if empty := [variant.text for variant in variants if not variant.runs]:
        raise UserError(f"no run with {'; none with '.join(empty)}")
    matching = match(variants, runs.exports)
    comparison = Comparison(variants, contrasts, [], matching.exclusions)
    names = [variant.text for variant in variants]
    for matched in matching.matches:
        corner_runs = zip(names, matched.variants, strict=True)
        if broken := [name for name, own in corner_runs if all(run.record.training_failed for run in own)]:
            told = f"no interaction: all runs failed with {'; with '.join(broken)}"
            comparison.exclusions.append(Exclusion(matched.label, told))
        else:
            comparison.matches.append(compared_arms(matched, runs.evidence, names, contrasts))
    judge(comparison.rows, margin)
    return comparison


def in_brief(comparison: Comparison, table: Table) -> Table:
    """Return the differences of a comparison's table in primary scores."""
    names = table.names[: table.names.index("score")]
    names += [name for name in ("score", "effect", "means", *NUMBERS, "verdict") if name in table]
    notes = [note for note in table.notes if comparison.effects or not any(told in note.text for told in IN_SUMMARY)]
    columns = [replace(column, detail=-1) for column in table.columns]
    primary = [row for row, compared in zip(table.rows, comparison.rows) if compared.family == FAMILIES[0]]
    return Table(columns, primary, notes).select(names)


def _columns(in_percent: bool, settings: Iterable[str]) -> list[Column]:
    """Return the columns that hold numbers."""
    digits = None if in_percent else SIGNIFICANT
    columns = [Column(name, significant_digits=OF_OPTIONS) for name in settings]
    columns += [Column(name, significant_digits=digits) for name in ("a", "b", *NUMBERS, *ERRORS, *COUNTS)]
    return columns + [Column(name, significant_digits=SIGNIFICANT) for name in P_VALUES]


def _head(matched: MatchedRuns, runs: RunSet, settings: Iterable[str]) -> Row:
    """Return the cells that identify a match; `settings` are the fields in which any matches differ."""
    task = matched.first.task
    machines = sorted(machines_of_tasks(matched.records)[task])
    head: Row = {"task": task, "dataset": dataset_label(matched.records, runs.exports, machines)}
    values = matched.setting.items()
    shown = {name: value if isinstance(value, int | float) else value_label(value) for name, value in values}
    return head | dict.fromkeys(settings) | shown


def _difference(row: ComparedScore) -> Row:
    """Return the cells of a row of two variants."""
    means: Row = {"a": None, "b": None} | {name: row.scale * mean for name, mean in zip("ab", row.means)}
    rates = {f"{FAILED} {variant.variant}": variant for variant in row.breakdowns}
    return {"score": row.score, **means, **_numbers(row), **rates}


def _effect(row: ComparedScore) -> Row:
    """Return the cells of a row of an effect."""
    means = ", ".join(f"{row.scale * mean:.2f}" for mean in row.means)
    rate = Breakdowns("", *map(sum, zip(*(astuple(variant)[1:] for variant in row.breakdowns), strict=True)))
    cells: Row = {"score": row.score, "effect": row.effect, "means": means}
    return cells | {**_numbers(row), FAILED: rate}


def _numbers(row: ComparedScore) -> dict[str, Any]:
    estimate, scale = row.estimate, row.scale
    if estimate is None:
        return dict.fromkeys(RESULTS) | {"verdict": row.verdict}
    seeds = None if estimate.seed_error is None else scale * estimate.seed_error
    values = (scale * estimate.estimate, scale * estimate.low, scale * estimate.high, row.verdict, estimate.p, row.p)
    errors = (_seeds(estimate), seeds, scale * estimate.cluster_error)
    return dict(zip(RESULTS, (*values, *errors, estimate.clusters, _method(estimate, scale)), strict=True))


def _seeds(estimate: Estimate) -> str:
    """Return the number of seeds in each variant, once if they are paired or one each."""
    if estimate.paired:
        return f"{estimate.seeds[0]} in pairs"
    return "1" if {*estimate.seeds} == {1} else ", ".join(map(str, estimate.seeds))


def _method(estimate: Estimate, scale: float) -> str:
    """Return the method of an interval; of a wide one over one or two seeds with that for these trained models."""
    few = {1: "one seed", 2: "two seeds"}.get(min(estimate.seeds))
    if not few or estimate.seed_error is None or estimate.method != "t":
        return estimate.method
    low, high = (scale * end for end in estimate.of_models)
    return f"{estimate.method}, {few}; these models [{low:.2f}, {high:.2f}]"
