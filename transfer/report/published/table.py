"""Published tables beside the user's own numbers: `python -m transfer.report RUNS --paper scaled_relu --table 4`.

Own numbers are means over seeds, in percent. A row has a verdict only if its runs differ from the full tier of the
table's sweep in nothing but the seed; every other row lists its differences. `docs/concepts/statistics.md` explains how
verdicts are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import transfer.report.tables.comparison_text  # noqa: F401 - registers the texts of verdicts
from transfer.experiments.published_rows import Cost, PublishedTable, Reason, read_paper, table_of
from transfer.experiments.published_verdicts import MARGIN
from transfer.experiments.sweep_file import read_sweep
from transfer.records.evidence import Evidence
from transfer.records.protocol import configurations
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.published.cells import COLUMNS, OwnRunInputs, cell_row
from transfer.report.published.differences import Reading
from transfer.report.published.matching import Matcher, PublishedMatch
from transfer.report.published.own_runs import OwnRuns, own_runs
from transfer.report.published.texts import REASONS, lettered, merged, rules, table_notes
from transfer.report.tables.table import Note, Row, Table

_read_sweep = lru_cache(read_sweep)

COST_COLUMNS = ("claim", "published", "own GMACs", "own", "reading", REASONS, "runs")


@dataclass(frozen=True)
class Pair:
    """A run with the costly part, and an otherwise equal run without it."""

    with_it: PublishedMatch
    without: PublishedMatch

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why the pair cannot be compared with the published one."""
        both = (self.with_it, self.without)
        return tuple(dict.fromkeys(reason for match in both for reason in match.reasons))


def cost_rows(cost: Cost, matcher: Matcher) -> list[Row]:
    """Return a row for each reading, with its most comparable pair; among equals the pair that started last."""
    empty: Row = dict.fromkeys(COST_COLUMNS)
    empty |= {"claim": cost.claim, "published": f"+{cost.more} % hours"}
    best: dict[Reading, Pair] = {}
    for pair in sorted(_pairs(cost, matcher), key=_rank):
        best[pair.with_it.reading] = pair
    return [empty | _shown(pair) for pair in best.values()] or [empty]


def _pairs(cost: Cost, matcher: Matcher) -> list[Pair]:
    variants = [_completed(matcher.matches(row, cost.value)) for row in (cost.with_it, cost.without)]
    records = [match.record for variant in variants for match in variant]
    keys = dict(
        zip((record.run_id for record in records), configurations(records, matcher.exports, cost.parts), strict=True)
    )
    without = {(keys[match.record.run_id], match.record.seed): match for match in variants[1]}
    pairs = [(match, without.get((keys[match.record.run_id], match.record.seed))) for match in variants[0]]
    return [Pair(match, other) for match, other in pairs if other is not None]


def _completed(matches: Sequence[PublishedMatch]) -> list[PublishedMatch]:
    """Return the completed runs with counted operations, in the order in which they started."""
    counted = [match for match in matches if not match.record.training_failed and match.record.cost.get("gflops")]
    return sorted(counted, key=lambda match: str(match.record.environment.get("started")))


def _rank(pair: Pair) -> tuple[int, str]:
    return -len(pair.reasons), str(pair.with_it.record.environment.get("started"))


def _shown(pair: Pair) -> Row:
    """Return the multiply-adds of an image with and without the costly part, and how many more there are."""
    with_it, without = (match.record.cost["gflops"] / 2 for match in (pair.with_it, pair.without))
    return {
        "own GMACs": f"{with_it:.4g} vs. {without:.4g}",
        "own": f"{100 * (with_it / without - 1):+.1f} % MACs",
        "reading": pair.with_it.reading,
        REASONS: pair.reasons,
        "runs": (pair.with_it.record.run_id, pair.without.record.run_id),
    }


def paper_table(runs: RunSet, paper: str, table: str, *, margin: float | None = None) -> Table:
    """Return the cells of a published table, one row each, with the user's own numbers; of a figure its claims.

    A cell has a row for each reading of its printed options that was run, and for each comparable configuration. If
    none is comparable, the configuration that differs least from the table's is shown; `others` counts the rest. See
    `transfer.report.published.cells.COLUMNS` for the columns.

    Args:
        margin: largest difference at which numbers agree, in points; by default `published_verdicts.MARGIN`.

    Raises:
        UsageError: the paper or table is unknown, or the file of published numbers cannot be read.
    """
    margin = MARGIN if margin is None else margin
    published = table_of(paper, table)
    return _figure(published, runs) if published.claims else _numbers(published, runs, margin)


def _numbers(published: PublishedTable, runs: RunSet, margin: float) -> Table:
    inputs = OwnRunInputs(
        _matcher(published, runs),
        Evidence(_known(runs)),
        dict(zip((record.run_id for record in runs.records), configurations(runs.records, runs.exports), strict=True)),
        {run.record.run_id: run for run in runs},
        margin,
    )
    rows = []
    for row in published.rows:
        for value in row.values:
            shown: list[OwnRuns | None] = [*own_runs(inputs.matcher.matches(row, value), inputs.keys, runs.exports)]
            rows += [cell_row(row, value, of_cell, inputs) for of_cell in shown or [None]]
    cells = [row for row, _ in rows]
    notes = table_notes(published) + rules(cells, margin)
    notes += merged((place, note) for place, (_, notes_of_row) in enumerate(rows) for note in notes_of_row)
    return Table(list(COLUMNS), cells, notes + lettered(cells))


def _figure(figure: PublishedTable, runs: RunSet) -> Table:
    """Return the claims of a figure, and its ratios of hours beside the operations of the user's own runs."""
    sweep = f"no legible numbers; `python -m transfer.sweep {figure.sweep} --tier full` makes yours"
    rows: list[Row] = [{"claim": claim} for claim in figure.claims]
    if figure.costs:
        matcher = _matcher(figure, runs)
        rows += [row for cost in figure.costs for row in cost_rows(cost, matcher)]
    return Table.from_rows(rows, notes=[*table_notes(figure), Note(sweep)])


def _matcher(published: PublishedTable, runs: RunSet) -> Matcher:
    return Matcher(_read_sweep(published.sweep, "full"), read_paper(published.paper), runs.exports, runs.records)


def _known(runs: RunSet) -> list[Record]:
    """Return the records among which pretrainings are looked up: completed ones, and shown ones that failed."""
    shown = {record.run_id for record in runs.records}
    records = (run.record for run in runs.known)
    return [record for record in records if not record.training_failed or record.run_id in shown]
