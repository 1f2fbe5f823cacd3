"""Sentences of verdicts on two variants and on effects, with numbers as tables print them.

The cells of tables hold the verdicts as values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from transfer.comparison.compare_arms import FAMILIES, PERCENT, ComparedMatch, ComparedScore, Comparison
from transfer.comparison.paired_intervals import Units
from transfer.core.errors import count
from transfer.records.evidence import RANDOM, SCORE_AT_CHANCE, ending
from transfer.records.fields import content_label
from transfer.report.tables.columns import unjudged_note
from transfer.report.tables.table import Note, cell_text
from transfer.statistics.contrasts import common_seeds
from transfer.statistics.intervals import LEVEL, SKEWED
from transfer.statistics.verdicts import Kind, Verdict

_FAILED = {Kind.A_FAILED: "a", Kind.B_FAILED: "b", Kind.BOTH_FAILED: "a and b"}


@cell_text.register
def verdict_text(verdict: Verdict) -> str:
    """Return the sentence of a verdict on a difference."""
    sentence = _conclusion(verdict) + _caveats(verdict)
    if not verdict.breakdowns:
        return sentence
    broken = ", ".join(f"{one.variant} {one.broken} of {one.of}" for one in verdict.breakdowns if one.broken)
    sentence = f"{sentence}; completed runs only: failed {broken}"
    if (counted := verdict.counted) is None:
        return sentence
    scale = PERCENT if verdict.percent else 1.0
    estimate, low, high = (f"{scale * number:+.1f}" for number in (counted.estimate, counted.low, counted.high))
    return f"{sentence}; failed runs counted at chance level, or at 0 where it is not known: {estimate} [{low}, {high}]"


def verdict_in_short(verdict: Verdict) -> str:
    """Return a verdict without its numbers."""
    return verdict.kind.value + (" (completed runs only)" if verdict.breakdowns else "") + _caveats(verdict)


def _caveats(verdict: Verdict) -> str:
    return f" ({', '.join(verdict.caveats)})" * bool(verdict.caveats)


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
    if verdict.borrowed:
        return f"{kind.value}; one variant has a single seed"
    if verdict.alone:
        return f"{kind.value}; not significant after correction for several tests"
    if verdict.equal:
        return f"{kind.value}; no difference on any sample"
    if verdict.few or verdict.smallest is None:
        return f"{kind.value}; too few clusters differ"
    return f"{kind.value}; minimum detectable difference {verdict_number(verdict.smallest, verdict)}"


def verdict_number(value: float, verdict: Verdict) -> str:
    """Return a number of a verdict as it is shown: in percent where the score is a fraction."""
    return f"{PERCENT * value:.1f}" if verdict.percent else f"{value:.2g}"


BORROWED = (
    "has one completed seed and is taken to vary over seeds as the others do: nothing is concluded; add seeds to it"
)
NO_MORE = "'se of seeds' is 0 where seeds vary no more than their test samples alone would make them"
IN_SUMMARY = (BORROWED, NO_MORE)
"""What the summary of a comparison says, too."""


def notes_of_match(match: ComparedMatch, rows: tuple[int, ...]) -> list[Note]:
    """Return the notes on a match: unshared fields, missing intervals, few clusters, and seeds.

    Args:
        rows: indices of the rows of the match in the table.
    """
    texts = (*_unshared(match), *_no_interval(match), *_few_clusters(match), *_seeds(match))
    return [Note(text, match.matched.label, rows) for text in texts]


def unjudged_notes(rows: Sequence[ComparedScore]) -> list[Note]:
    """Return the note on training runs of a comparison that were not checked for failure; empty without any."""
    records = {record.run_id: record for row in rows for record in row.matched.records}
    places = tuple(n for n, row in enumerate(rows) if any(record.not_judged for record in row.matched.records))
    return [replace(note, rows=places) for note in unjudged_note([*records.values()])]


def _unshared(match: ComparedMatch) -> Iterator[str]:
    """Yield the text on fields that differ between the variants but were not selected."""
    contents = dict.fromkeys(content_label(content, content) for content in match.matched.unshared if content)
    if contents:
        yield f"the variants also differ in what was not selected: {' vs. '.join(contents)}"
    if any(name in content for content in match.matched.unshared for name in ("mean", "std")):
        yield "the images are normalized differently; set --mean and --std alike to compare the variants alone"


def _no_interval(match: ComparedMatch) -> Iterator[str]:
    """Yield each reason why scores have no interval, with their names unless it holds for all."""
    scores: dict[str, list[str]] = {}
    for score, reason in match.without_interval.items():
        scores.setdefault(reason, []).append(score)
    for reason, names in scores.items():
        yield f"no interval{' of ' * any(names)}{', '.join(names)}: {reason}"


def _few_clusters(match: ComparedMatch) -> Iterator[str]:
    """Yield the distinct texts on estimates dominated by a few large clusters, or with too few discordant ones."""
    rows = [(row, row.estimate) for row in match.rows if row.estimate is not None]
    unequal = [one for _, one in rows if 2 * one.effective_clusters < one.clusters]
    sizes = ((one.clusters, f"{one.effective_clusters:.0f}") for one in unequal)
    yield from (
        f"{size} clusters of unequal sizes count as {equal} of equal size" for size, equal in dict.fromkeys(sizes)
    )
    few = [row for row, one in rows if one.method == "t" and one.most_discordant < SKEWED]
    if few:
        names = ", ".join(f"{row.score} ({row.effect})" if row.effect else row.score for row in few)
        yield f"fewer than {SKEWED} clusters differ, so the interval may be too short: {names}"


def _seeds(match: ComparedMatch) -> Iterator[str]:
    """Yield the notes on seeds: left out, a single one, of one pretraining, or averaged."""
    units = match.units
    paired = common_seeds([variant.seeds for variant in units])
    sizes = [len(places) for places in paired] if paired else [len(variant.seeds) for variant in units]
    names = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    if paired:
        yield from _left_out(names, units, paired)
    if min(sizes) == 1 < max(sizes) and any(row.estimate is not None for row in match.rows):
        yield f"{' and '.join(name for name, size in zip(names, sizes, strict=True) if size == 1)} {BORROWED}"
    if zero := dict.fromkeys(row.score for row in match.rows if row.estimate and row.estimate.seed_error == 0):
        yield f"{NO_MORE}: {', '.join(zero)}"
    weights = [{run.record.weights_id for run in variant.runs} - {RANDOM} for variant in units]
    if of := [name for name, ids, size in zip(names, weights, sizes, strict=True) if size > 1 and len(ids) == 1]:
        who = " and ".join(of)
        yield f"all seeds of {who} start from one set of weights; variance between pretraining runs is not measured"
    for name, variant in zip(names, units, strict=True):
        if guessing := sum(ending(run.record) == SCORE_AT_CHANCE for run in variant.runs):
            yield f"{guessing} of {len(variant.runs)} runs of {name} are not above chance on these test images"
        if len(variant.labels) > len(variant.seeds):
            same = variant.seeds[0][0] == "weights" and len(variant.seeds) == 1
            why = "the score does not depend on the seed" if same else "those of one seed or pretraining are averaged"
            yield f"{len(variant.labels)} runs of {name} count as {count(len(variant.seeds), 'seed')}: {why}"


def _left_out(names: Sequence[str], units: Sequence[Units], paired: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield a text for each seed without a counterpart in the other variants, which the means leave out.

    Args:
        paired: for each variant the indices of its seeds with a counterpart.
    """
    for name, variant, places in zip(names, units, paired, strict=True):
        for label in (label for place, label in enumerate(variant.seeds) if place not in places):
            broken = [other for other, of in zip(names, units, strict=True) if label in of.variant.absent]
            why = f"which failed in {' and '.join(broken)}" if broken else "which the other variant does not have"
            yield f"excluded: {' '.join(map(str, label))} of {name}, {why}"


def without_common_rows(notes: Sequence[Note], rows: int) -> list[Note]:
    """Return notes in which a text that several name, and that holds for all rows, is said once of the whole table."""
    named: dict[str, list[Note]] = {}
    for note in notes:
        named.setdefault(note.text, []).append(note)
    kept: list[Note] = []
    for of_text in named.values():
        is_common = len(of_text) > 1 and len({row for note in of_text for row in note.rows}) == rows
        kept += [replace(of_text[0], about="", rows=())] if is_common else of_text
    return kept


def adjustment_notes(comparison: Comparison) -> list[Note]:
    """Return the note on the families of tests over which p values are adjusted; a single test has none."""
    families = []
    for name in FAMILIES:
        tests = sum(row.estimate is not None and row.family == name for row in comparison.rows)
        kind = "scores that are not primary" if name == "other" else f"{name} scores"
        families += [f"{tests} {kind}"] if tests > 1 else []
    if not families:
        return []
    level = f"minimum detectable differences are at the level {1 - LEVEL:g} divided by their number"
    text = f"the p value, corrected for several tests (Holm 1979) among {' and among '.join(families)}"
    text += f"; verdicts follow it, intervals are not corrected; {level}"
    return [Note(text, "adjusted p")]
