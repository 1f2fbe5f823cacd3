"""The sections of a report on comparisons of two variants: summary, effects, measured costs, differing samples."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from transfer.comparison.paired_intervals import Settings
from transfer.records.run_set import RunSet
from transfer.report.page.section_types import Section
from transfer.report.summary.naming import versus
from transfer.report.tables.cost_ratios import CostRatios, ratio_table
from transfer.report.tables.table import Note
from transfer.report.tables.text import note_text, note_texts

if TYPE_CHECKING:
    from transfer.comparison.compare_arms import Comparison

READING = {
    "forest": "Each square is the paired difference of two variants on the same samples, its line the 95 % confidence "
    "interval. A filled square is significant after correction for multiple tests; a line across 0 is inconclusive.",
    "ratios": "Time of a step of the first variant, as a multiple of the second's: median and quartiles over "
    "alternating rounds (A B B A) in one process.",
}
"""How to read the sections of a page."""
MOST_OTHERS = 20
"""Differences in other metrics than the primary ones that a terminal shows."""


def comparisons_of(runs: RunSet, pairs: Sequence[tuple[str, str]], options: Settings) -> "list[Comparison]":
    """Return the comparison of each pair of variants; p values are adjusted within it."""
    return [_compared(runs, a, b, options) for a, b in pairs]


@lru_cache(maxsize=16)  # the text and the page of a sweep show the same ones
def _compared(runs: RunSet, a: str, b: str, options: Settings) -> "Comparison":
    from transfer.report.tables.comparison import compared

    return compared(runs, a, b, options)


def comparison_sections(comparisons: "Sequence[Comparison]", runs: RunSet, ratios: CostRatios) -> Iterator[Section]:
    """Yield the summary of all comparisons with their cost and limits, then the effects of each as a plot."""
    from transfer.report.figures.forest import forest_plot
    from transfer.report.summary.sentences import answer

    told = [answer(comparison, runs, ratios) for comparison in comparisons]
    shared = [limit for limit in told[0].limits if all(limit in one.limits for one in told)]
    limits = [
        Note(limit, "" if limit in shared else versus(comparison, runs))
        for comparison, one in zip(comparisons, told, strict=True)
        for limit in one.limits
    ]
    said: set[str] = set()
    blocks = []
    for one in told:
        new = [line for line in (*one.caveats, *one.effects) if line not in said or line.startswith("- ")]
        blocks.append("\n".join([one.headline, *new, "Same cost as above." if one.cost in said else one.cost]))
        said |= {*new, one.cost} - {""}
    yield Section(title="Summary", note="\n\n".join(blocks), reading="\n".join(note_texts(limits)), lead=True)
    for number, (comparison, one) in enumerate(zip(comparisons, told, strict=True)):
        plot = forest_plot(comparison, runs, name=f"forest-{number}")
        if plot or one.rates:
            reading = READING["forest"] if plot else ""
            yield Section(title=versus(comparison, runs), note="\n".join(one.rates), plot=plot, reading=reading)


def in_words(comparison: "Comparison", runs: RunSet, ratios: CostRatios) -> Section:
    """Return the section with all sentences on one comparison."""
    from transfer.report.summary.sentences import answer

    return Section(title=f"Summary: {versus(comparison, runs)}", note=str(answer(comparison, runs, ratios)), lead=True)


def ratios_of(comparison: "Comparison", runs: RunSet, ratios: CostRatios) -> Iterator[Section]:
    """Yield what the first variant costs beside the second, where that was measured."""
    table = ratio_table([match.matched for match in comparison.matches], ratios)
    if len(table) or table.notes:
        note, shown = "\n".join(map(note_text, table.notes)), replace(table, notes=[]) if len(table) else None
        title = f"Measured cost: {versus(comparison, runs)}"
        yield Section(title=title, table=shown, note=note, reading=READING["ratios"])


def samples(comparisons: "Sequence[Comparison]", runs: RunSet, pictures: bool) -> Iterator[Section]:
    """Yield the samples with the largest differences in each primary score and both variants' lists.

    Args:
        comparisons: of two variants each.
        runs: among which they were compared.
        pictures: whether pictures are embedded.
    """
    from transfer.report.page.galleries import side_by_side
    from transfer.report.summary.differing_samples import differing_samples
    from transfer.report.summary.sentences import row_name

    for comparison in comparisons:
        for row in comparison.rows:
            if row.primary and row.effect is None and len(table := differing_samples(row)):
                title = f"Samples with the largest differences: {row_name(row)}, {versus(comparison, runs)}"
                yield Section(title=title, table=table)
        yield from side_by_side(comparison, runs, pictures=pictures)


def brief_tables(comparison: "Comparison", runs: RunSet) -> Iterator[Section]:
    """Yield the differences in primary scores, then those in other metrics if they are few."""
    from transfer.report.tables.comparison import comparison_table, in_brief

    told = "Means, p values and the numbers of seeds and clusters: --format markdown or csv."
    primary, others = in_brief(comparison, comparison_table(comparison, runs))
    yield Section(title=versus(comparison, runs), table=primary, note=told)
    if 0 < len(others) <= MOST_OTHERS:
        yield Section(title=f"{versus(comparison, runs)}: other metrics", table=others)


def difference_table(comparison: "Comparison", runs: RunSet) -> Section:
    """Return the table of a comparison. Raises UserError if it has no rows."""
    from transfer.report.tables.comparison import comparison_table

    table = comparison_table(comparison, runs).without_empty()
    return Section(title=f"{versus(comparison, runs)}: all metrics", table=table)
