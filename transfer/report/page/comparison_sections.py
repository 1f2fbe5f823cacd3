"""The sections of a report on comparisons of two variants: the answer, effects, costs in turns, samples that differ."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from transfer.comparison.paired_intervals import Settings
from transfer.records.run_set import RunSet
from transfer.report.page.section_types import Section
from transfer.report.render.text import note_text
from transfer.report.tables.cost_ratios import CostRatios, ratio_table

if TYPE_CHECKING:
    from transfer.comparison.compare_arms import Comparison

READING = {
    "answer": "Differences are points of a percent, or in a score's own unit, each with its 95 % interval; where the "
    "interval holds 0, nothing is claimed.",
    "forest": "A square is the difference of two variants on the same samples, its line the 95 % interval; filled "
    "where the corrected test excludes 0. Right of 0 the first variant is better.",
    "ratios": "How many times as long a step of the first variant takes: the median over rounds A B B A in one "
    "process, and their quartiles.",
}
"""How the parts of a page are read."""

_COMPARISONS: "WeakKeyDictionary[RunSet, dict[tuple[tuple[str, str], Settings], Comparison]]" = WeakKeyDictionary()
"""Comparisons that were made, as the text and the page of a sweep show the same."""


def comparisons_of(runs: RunSet, pairs: Sequence[tuple[str, str]], options: Settings) -> "list[Comparison]":
    """Return the comparison of each pair of variants; p values are adjusted within it."""
    if not pairs:
        return []
    from transfer.report.tables.comparison import compared

    made = _COMPARISONS.setdefault(runs, {})
    keys = [((a, b), options) for a, b in pairs]
    for key in keys:
        if key not in made:
            made[key] = compared(runs, *key[0], options)
    return [made[key] for key in keys]


def answers(comparisons: "Sequence[Comparison]", runs: RunSet, ratios: CostRatios) -> list[Section]:
    """Return the section with the verdicts in words; none without a comparison."""
    if not comparisons:
        return []
    from transfer.report.summary.sentences import answer

    told = "\n".join(str(answer(comparison, runs, ratios)) for comparison in comparisons)
    return [Section(title="The answer", note=told, reading=READING["answer"], lead=True)]


def ratios_of(comparison: "Comparison", ratios: CostRatios) -> Iterator[Section]:
    """Yield what the first variant costs beside the second, where that was measured."""
    from transfer.report.summary.naming import arm_name

    a, b = (arm_name(variant.text) for variant in comparison.variants)
    table = ratio_table([match.matched for match in comparison.matches], ratios)
    title, note = f"Cost of {a} beside {b}, measured in turns", "\n".join(map(note_text, table.notes))
    if len(table) or note:
        shown = replace(table, notes=[]) if len(table) else None
        yield Section(title=title, table=shown, note=note, reading=READING["ratios"])


def forests(comparisons: "Sequence[Comparison]", runs: RunSet) -> Iterator[Section]:
    """Yield the effects of each pair of variants as a plot."""
    from transfer.report.figures.forest import forest_plot
    from transfer.report.summary.naming import arm_name

    for number, comparison in enumerate(comparisons):
        a, b = (arm_name(variant.text) for variant in comparison.variants)
        if plot := forest_plot(comparison, runs, name=f"forest-{number}"):
            title = f"Effects of {a} against {b}"
            yield Section(title=title, plot=plot, reading=READING["forest"], lead=True)


def samples(comparisons: "Sequence[Comparison]", pictures: bool) -> Iterator[Section]:
    """Yield the samples with the largest differences in each primary score and both variants' lists.

    Args:
        comparisons: of two variants each.
        pictures: whether pictures are embedded.
    """
    from transfer.report.page.side_by_side import side_by_side
    from transfer.report.summary.differing_samples import differing_samples
    from transfer.report.summary.naming import arm_name
    from transfer.report.summary.sentences import row_name

    for comparison in comparisons:
        a, b = (arm_name(variant.text) for variant in comparison.variants)
        for row in comparison.rows:
            if row.primary and row.effect is None and len(table := differing_samples(row)):
                yield Section(title=f"Where variants differ most: {row_name(row)}, {a} against {b}", table=table)
        yield from side_by_side(comparison, pictures=pictures)


def difference_table(comparison: "Comparison", runs: RunSet) -> Section:
    """Return the table of a comparison. Raises UserError if it has no rows."""
    from transfer.report.tables.comparison import comparison_table

    a, b = (variant.text for variant in comparison.variants)
    return Section(title=f"{a} against {b}", table=comparison_table(comparison, runs))
