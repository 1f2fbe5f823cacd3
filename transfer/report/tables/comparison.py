"""Tables that compare two backbones, or the four of a 2 x 2, on the same samples, and the sentences of verdicts.

Cells hold the verdicts as values. Scores that are fractions are shown in percent, all others in their own unit. Imports
no torch.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any

from transfer.comparison.compare_arms import PERCENT, ComparedScore, Comparison, Family, compared_arms, decide, effects
from transfer.comparison.notes import BORROWED, NO_MORE, notes_of
from transfer.comparison.paired_intervals import Contrasts
from transfer.comparison.pairing import Exclusion, MatchedRuns, match_runs
from transfer.comparison.selection import axis, corners, select_arms
from transfer.core.errors import UserError, count
from transfer.core.grouped import grouped_by
from transfer.records.fields import value_label
from transfer.records.grouping import dataset_label, machines_of_tasks
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.report.tables.columns import run_ids, unjudged_note
from transfer.report.tables.table import SIGNIFICANT, Column, Note, Row, Table, cell_text
from transfer.report.tables.text import note_texts
from transfer.statistics.intervals import LEVEL, Estimate
from transfer.statistics.verdicts import Breakdowns, Kind, Verdict

ERROR_COLUMNS = ("se of seeds", "se of samples")
NUMBERS = ("difference", "low", "high")
P_VALUES = ("p", "adjusted p")
INTERVAL_COLUMNS = ("clusters", "method")
RESULT_COLUMNS = (*NUMBERS, "verdict", *P_VALUES, "seeds", *ERROR_COLUMNS, *INTERVAL_COLUMNS)
"""Columns of a difference, in order."""
OF_OPTIONS = 12
"""Significant digits of options, which are shown as they were given."""
FAILED = "failed"
"""Prefix of the names of the columns with rates of failed training runs, which are last."""
KEPT = {"score": -1, "means": -1, "difference": -3, "verdict": -3}
"""Details of columns in brief: the one primary score of a task goes before a setting, the verdict last."""
IN_SUMMARY = (BORROWED, NO_MORE)
"""What the summary of a comparison says, too."""


def comparison_table(comparison: Comparison, runs: StoredRuns) -> Table:
    """Return the table of a comparison of two variants, or of the effects and the interaction of two fields, a row for
    each task, dataset, protocol and score.

    A difference is that of the first variant less the second. An interaction is the effect of the first field at the
    first value of the second less that at its second value. `se of seeds` and `se of samples` are the two components of
    a difference's standard error; with one seed the first is unknown. Runs that failed have no score; their rate is in
    the row with its interval. Where per-sample outcomes are missing, damaged or of other samples, a row has the means
    alone, and a note gives the reason.

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
    ] + excluded
    settings = dict.fromkeys(chain.from_iterable(row.matched.setting for row in rows))
    cells, records = list[Row](), dict[str, Record]()
    for compared_match in comparison.matches:
        places = tuple(range(len(cells), len(cells) + len(compared_match.rows)))
        if not comparison.selected.issuperset(differing := compared_match.matched.differing):
            text = f"the {'corners' if crossed else 'variants'} differ in {', '.join(differing)}"
            notes.append(Note(text, compared_match.matched.label, places))
        notes += [Note(text, compared_match.matched.label, places) for text in notes_of(compared_match)]
        records |= {record.run_id: record for record in compared_match.matched.records}
        head, ids = _head(compared_match.matched, runs, settings), run_ids(compared_match.matched.records)
        cells += [head | (_effect(row) if row.effect else _difference(row)) | ids for row in compared_match.rows]
    notes = [*without_common_rows(notes, len(rows)), *unjudged_note([*records.values()]), *adjustment_notes(comparison)]
    return Table.from_rows(cells, _columns(all(row.percent for row in rows), settings), notes)


@lru_cache(maxsize=16)  # the text and the page of a sweep show the same ones
def compare_variants(runs: StoredRuns, a: str, b: str, margin: float | None = None) -> Comparison:
    """Return the comparison of two variants as values; without rows where nothing can be compared.

    Runs are paired by the names of their samples, and by their seeds as far as both variants have the same ones.

    Args:
        runs: the runs.
        a, b: selectors of the two variants, see `transfer.comparison.selection.select`.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.

    Raises:
        UsageError: a selector matches no run, or both match one run.
    """
    return _compared(runs, (a, b), {}, margin)


def compare_corners(runs: StoredRuns, f: str, g: str, margin: float | None = None) -> Comparison:
    """Return the comparison of the four corners of two fields; without rows where no task has all four.

    Args:
        runs: the runs.
        f, g: field with two values among the runs, for instance stem, or field=value/value.
        margin: margin of equivalence in percentage points; None makes no test of equivalence.

    Raises:
        UsageError: a field is unknown or does not have two values, or a corner has no runs.

    """
    axes = axis(f, runs), axis(g, runs)
    return _compared(runs, corners(*axes), effects(*axes), margin)


def _compared(runs: StoredRuns, texts: Sequence[str], contrasts: Contrasts, margin: float | None) -> Comparison:
    """Return the comparison of the variants that selectors name; of those with effects all need a completed run."""
    variants = select_arms(texts, runs)
    matching = match_runs(variants, runs.exports)
    comparison = Comparison(variants, contrasts, [], matching.exclusions)
    for matched in matching.matches:
        of_variants = zip(texts, matched.variants, strict=True)
        failed = [text for text, part in of_variants if all(run.record.training_failed for run in part)]
        if contrasts and failed:
            text = f"no interaction: all runs failed with {'; with '.join(failed)}"
            comparison.exclusions.append(Exclusion(matched.label, text))
        else:
            how = (texts, contrasts) if contrasts else ()
            comparison.matches.append(compared_arms(matched, runs.evidence, *how))
    decide(comparison.rows, runs.exports, margin)
    return comparison


def in_brief(comparison: Comparison, table: Table) -> Table:
    """Return the differences of a comparison's table in primary scores."""
    names = table.names[: table.names.index("score")]
    names += [name for name in ("score", "effect", "means", *NUMBERS, "verdict") if name in table]
    said = () if comparison.effects else IN_SUMMARY
    notes = [note for note in table.notes if not any(text in note.text for text in said)]
    columns = [replace(column, detail=KEPT.get(column.name, -2)) for column in table.columns]
    primary = [row for row, compared in zip(table.rows, comparison.rows) if compared.family is Family.PRIMARY]
    return Table(columns, primary, notes).select(names)


def _columns(in_percent: bool, settings: Iterable[str]) -> list[Column]:
    """Return the columns that hold numbers."""
    digits = None if in_percent else SIGNIFICANT
    columns = [Column(name, significant_digits=OF_OPTIONS) for name in settings]
    numbers = ("a", "b", *NUMBERS, *ERROR_COLUMNS, *INTERVAL_COLUMNS)
    columns += [Column(name, significant_digits=digits) for name in numbers]
    return columns + [Column(name, significant_digits=SIGNIFICANT) for name in P_VALUES]


def _head(matched: MatchedRuns, runs: StoredRuns, settings: Iterable[str]) -> Row:
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
    counts = [(variant.broken, variant.judged, variant.not_judged) for variant in row.breakdowns]
    rate = Breakdowns("", *map(sum, zip(*counts, strict=True)))
    cells: Row = {"score": row.score, "effect": row.effect, "means": means}
    return cells | {**_numbers(row), FAILED: rate}


def _numbers(row: ComparedScore) -> dict[str, Any]:
    estimate, scale = row.estimate, row.scale
    if estimate is None:
        return dict.fromkeys(RESULT_COLUMNS) | {"verdict": row.verdict}
    seeds = None if estimate.seed_error is None else scale * estimate.seed_error
    values = (scale * estimate.estimate, scale * estimate.low, scale * estimate.high, row.verdict, estimate.p, row.p)
    errors = (_seeds(estimate), seeds, scale * estimate.cluster_error)
    return dict(zip(RESULT_COLUMNS, (*values, *errors, estimate.clusters, _method(estimate, scale)), strict=True))


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


def without_common_rows(notes: Sequence[Note], rows: int) -> list[Note]:
    """Return notes in which a text that several name, and that holds for all rows, is said once of the whole table."""
    merged: list[Note] = []
    for namesakes in grouped_by(notes, lambda note: note.text).values():
        places = set(chain.from_iterable(note.rows for note in namesakes))
        is_common = len(namesakes) > 1 and len(places) == rows
        merged += [replace(namesakes[0], about="", rows=())] if is_common else namesakes
    return merged


def adjustment_notes(comparison: Comparison) -> list[Note]:
    """Return the note on the families of tests over which p values are adjusted; a single test has none."""
    tests = Counter(row.family for row in comparison.rows if row.estimate is not None)
    families = [f"{tests[family]} {family} scores" for family in Family if tests[family] > 1]
    if not families:
        return []
    level = f"minimum detectable differences are at the level {1 - LEVEL:g} divided by their number"
    text = f"the p value, corrected for several tests (Holm 1979) among {' and among '.join(families)}"
    text += f"; verdicts follow it, intervals and equivalence are not corrected; {level}"
    return [Note(text, "adjusted p")]


_FAILED = {Kind.A_FAILED: "a", Kind.B_FAILED: "b", Kind.BOTH_FAILED: "a and b"}


@cell_text.register
def verdict_text(verdict: Verdict) -> str:
    """Return the sentence of a verdict on a difference."""
    sentence = _conclusion(verdict) + (f" ({', '.join(verdict.caveats)})" if verdict.caveats else "")
    if not verdict.breakdowns:
        return sentence
    failed = [variant for variant in verdict.breakdowns if variant.broken]
    texts = ", ".join(f"{variant.variant} {variant.broken} of {variant.judged}" for variant in failed)
    sentence = f"{sentence}; completed runs only: failed {texts}"
    if (counted := verdict.counted) is None:
        return sentence
    scale = PERCENT if verdict.percent else 1.0
    estimate, low, high = (f"{scale * number:+.1f}" for number in (counted.estimate, counted.low, counted.high))
    return f"{sentence}; failed runs counted at chance level, or at 0 where it is not known: {estimate} [{low}, {high}]"


def _conclusion(verdict: Verdict) -> str:
    """Return the sentence without the numbers of breakdowns."""
    kind = verdict.kind
    if kind in _FAILED:
        return f"not compared: {_FAILED[kind]} failed"
    margin = "" if verdict.margin is None else verdict_number(verdict.margin, verdict)
    if kind is Kind.EQUIVALENT:
        return f"equivalent within {margin}"
    if kind is not Kind.INCONCLUSIVE:
        return str(kind.value) + (f", by less than {margin}" if verdict.within else "")
    if verdict.why:
        return f"{kind.value}; {verdict.why}"
    if verdict.percent and verdict.smallest > 1:
        return f"{kind.value}; no difference up to 100 points is detectable; add seeds"
    return f"{kind.value}; minimum detectable difference {verdict_number(verdict.smallest, verdict)}"


def verdict_number(value: float, verdict: Verdict) -> str:
    """Return a number of a verdict as it is shown: in percent where the score is a fraction."""
    return f"{PERCENT * value:.1f}" if verdict.percent else f"{value:.2g}"
