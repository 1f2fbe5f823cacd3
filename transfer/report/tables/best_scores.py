"""Scores of a table that are shown to be the best: LaTeX prints them in bold. Imports neither torch nor pandas."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from transfer.comparison.compare_arms import ComparedScore, compared_arms, judge
from transfer.comparison.paired_intervals import Settings
from transfer.comparison.pairing import MatchedRuns
from transfer.records.comparability import comparable_with
from transfer.records.grouping import Group
from transfer.records.run_set import RunSet
from transfer.report.tables.table import Table, is_missing
from transfer.statistics.verdicts import Kind


def with_best(table: Table, runs: RunSet, options: Settings) -> Table:
    """Return a table of configurations whose best scores are emphasised where they are told apart from the next best.

    Rows of one protocol are compared on the same samples; p values are adjusted over all these tests of the table.

    Args:
        table: with a row for each of `runs.groups`, and scores in columns of their names.
        runs: of one task.
        options: settings of the intervals and p values.
    """
    tests = [*_tests(table, runs, options)]
    judge([row for _, row in tests], options)
    shown = {
        (place, row.score) for place, row in tests if row.verdict.kind is Kind.A_BETTER and not row.verdict.breakdowns
    }
    return replace(table, emphasised=frozenset(shown))


def _tests(table: Table, runs: RunSet, options: Settings) -> Iterator[tuple[int, ComparedScore]]:
    """Yield the place of the best row of each protocol and score, with its comparison with the next best."""
    by_protocol: dict[tuple[Any, ...], list[int]] = {}
    for place, key in enumerate(comparable_with([group.first for group in runs.groups])):
        by_protocol.setdefault(key, []).append(place)
    for places in by_protocol.values():
        pairs: dict[tuple[int, int], list[str]] = {}
        for name in runs.groups[places[0]].first.metrics:
            ranked = _ranked(table, runs.groups, places, name)
            if len(ranked) > 1:
                pairs.setdefault((ranked[0], ranked[1]), []).append(name)
        for (best, second), names in pairs.items():
            ids = [{record.run_id for record in runs.groups[place].records} for place in (best, second)]
            variants = [[run for run in runs if run.record.run_id in of_arm] for of_arm in ids]
            match = compared_arms(MatchedRuns(variants), runs.evidence, replace(options, scores=tuple(names)))
            yield from ((best, row) for row in match.rows if row.score in names)


def _ranked(table: Table, groups: Sequence[Group], places: Sequence[int], name: str) -> list[int]:
    """Return the rows that have a score, the best first."""
    if name not in table:
        return []
    scored = [place for place in places if not is_missing(table.rows[place][name])]
    lower = groups[places[0]].first.metrics[name].get("direction") == "lower"
    return sorted(scored, key=lambda place: table.rows[place][name], reverse=not lower)
