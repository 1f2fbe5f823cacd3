"""Notes below a comparison: its runs, what is left out, and the limits of its intervals."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from transfer.comparison.compare_arms import FAMILIES, ComparedMatch, ComparedScore, Comparison, NoInterval
from transfer.comparison.paired_intervals import Units
from transfer.records.evidence import RANDOM, SCORE_AT_CHANCE, Unit, ending
from transfer.records.labels import content_label
from transfer.report.tables.columns import count, unjudged_note
from transfer.report.tables.table import Note
from transfer.statistics.contrasts import common_seeds
from transfer.statistics.intervals import FEW_SEEDS, LEVEL, SKEWED

BORROWED = "a variant with one seed is assumed to vary over seeds as the others do; add seeds to it"


def notes_of_match(match: ComparedMatch, rows: tuple[int, ...]) -> list[Note]:
    """Return the notes on a match: unshared fields, missing intervals, few clusters, and seeds.

    Args:
        rows: indices of the rows of the match in the table.
    """
    about = match.matched.label
    notes = [Note(text, about, rows) for text in _unshared(match)]
    notes += [Note(_no_interval(cause), about, rows) for cause in match.without_interval]
    notes += [Note(text, about, rows) for text in _few_clusters(match)]
    return notes + [Note(text, about, rows, text == BORROWED) for text in _seeds(match)]


def unjudged_notes(rows: Sequence[ComparedScore]) -> list[Note]:
    """Return the note on training runs of a comparison that were not checked for failure; empty without any."""
    records = {record.run_id: record for row in rows for record in row.matched.records}
    places = tuple(n for n, row in enumerate(rows) if any(record.not_judged for record in row.matched.records))
    return [replace(note, rows=places, in_summary=True) for note in unjudged_note([*records.values()])]


def differing_note(match: ComparedMatch, variants: str, rows: tuple[int, ...]) -> list[Note]:
    """Return the note on the fields in which the variants of a match differ; empty where there are none.

    Args:
        variants: name of the variants in the note, "variants" or "corners".
        rows: indices of the rows of the match in the table.
    """
    fields = match.matched.differing
    text = f"the {variants} differ in {', '.join(fields)}"
    return [Note(text, match.matched.label, rows)] if fields else []


def _unshared(match: ComparedMatch) -> Iterator[str]:
    """Yield the text on fields that differ between the variants but were not selected."""
    contents = dict.fromkeys(content_label(content, content) for content in match.matched.unshared if content)
    if contents:
        yield f"the variants also differ in what was not selected: {' vs. '.join(contents)}"
    if any(name in content for content in match.matched.unshared for name in ("mean", "std")):
        yield "the images are normalized differently; set --mean and --std alike to compare the variants alone"


def _no_interval(cause: NoInterval) -> str:
    scores = ", ".join(cause.scores)
    if not cause.reason:
        return f"no interval: {scores} is not a mean over samples"
    return f"no interval of {scores}: {cause.reason}" if scores else f"no interval: {cause.reason}"


def _few_clusters(match: ComparedMatch) -> list[str]:
    """Return the distinct texts on estimates with too few discordant clusters, or dominated by a few large clusters."""
    texts, few = list[str](), list[str]()
    for score, result in match.results.items():
        for effect, one in result.contrasts.items():
            if 2 * one.effective_clusters < one.clusters:
                texts.append(
                    f"{one.clusters} clusters of unequal sizes count as {one.effective_clusters:.0f} of equal size"
                )
            if one.method == "t" and one.discordant is not None and one.discordant < SKEWED:
                few.append(f"{score} ({effect})" if effect else score)
    told = f"fewer than {SKEWED} clusters differ, so the interval may be too short: {', '.join(few)}"
    return [*dict.fromkeys(texts), *([told] if few else [])]


def _seeds(match: ComparedMatch) -> Iterator[str]:
    """Yield the notes on seeds: left out, few, repeated, of one pretraining, or averaged."""
    units = match.units
    paired = common_seeds([variant.seeds for variant in units])
    sizes = [len(places) for places in paired] if paired else [len(variant.seeds) for variant in units]
    names = "ab" if len(units) == 2 else [f"corner {place + 1}" for place in range(len(units))]
    if paired:
        yield from _left_out(names, units, paired)
    if any(row.estimate is not None for row in match.rows):
        yield from _few_seeds(sizes)
    weights = [{run.record.weights_id for run in variant.runs} - {RANDOM} for variant in units]
    if max(sizes) > 1 and any(len(ids) == 1 for ids in weights):
        yield "all seeds start from one set of weights; variance between pretraining runs is not measured"
    for name, variant in zip(names, units, strict=True):
        if guessing := sum(ending(run.record) == SCORE_AT_CHANCE for run in variant.runs):
            yield f"{guessing} of {len(variant.runs)} runs of {name} are not above chance on these test images"
        if len(variant.labels) > len(variant.seeds):
            same = variant.seeds[0][0] == "weights" and len(variant.seeds) == 1
            why = "the score does not depend on the seed" if same else "those of one pretraining are averaged"
            yield f"{len(variant.labels)} runs of {name} count as {count(len(variant.seeds), 'seed')}: {why}"
    if repeated := sum(variant.repeated for variant in units):
        yield f"{repeated} runs repeat seed and weights of a later run, which alone counts"


def _left_out(names: Sequence[str], units: Sequence[Units], paired: Sequence[Sequence[int]]) -> Iterator[str]:
    """Yield a text for each seed without a counterpart in the other variants, which the means leave out.

    Args:
        paired: for each variant the indices of its seeds with a counterpart.
    """
    for name, variant, places in zip(names, units, paired, strict=True):
        for place, label in enumerate(variant.seeds):
            if place not in places:
                yield f"excluded: {' '.join(map(str, label))} of {name}, {_why(label, names, units)}"


def _why(label: Unit, names: Sequence[str], units: Sequence[Units]) -> str:
    broken = [name for name, variant in zip(names, units, strict=True) if label in variant.variant.absent]
    return f"which failed in {' and '.join(broken)}" if broken else "which the other variant does not have"


def _few_seeds(sizes: Sequence[int]) -> Iterator[str]:
    """Yield the limits of an interval over few seeds.

    Args:
        sizes: number of seeds of each variant, all above 0.
    """
    if min(sizes) == 1 < max(sizes):
        yield BORROWED
    elif 1 < min(sizes) <= FEW_SEEDS:
        yield f"{min(sizes)} seeds are few: coverage of the interval may be as low as 85 %"


def without_common_rows(notes: Sequence[Note], rows: int) -> list[Note]:
    """Return notes in which a text that several name, and that holds for all rows, is said once of the whole table."""
    named: dict[str, list[Note]] = {}
    for note in notes:
        named.setdefault(note.text, []).append(note)
    kept: list[Note] = []
    for text, of_text in named.items():
        is_common = len(of_text) > 1 and len({row for note in of_text for row in note.rows}) == rows
        kept += [Note(text)] if is_common else of_text
    return kept


def adjustment_notes(comparison: Comparison) -> list[Note]:
    """Return the note on the families of tests over which p values are adjusted; empty without a correction."""
    options, families = comparison.options, []
    for name in FAMILIES:
        tests = sum(row.estimate is not None and row.family == name for row in comparison.rows)
        families += [f"{tests} {name} scores"] if tests else []
    if not families or options.correction == "none":
        return []
    level = f"minimum detectable differences are at the level {1 - LEVEL:g} divided by their number"
    text = f"{options.correction} over the {' and over the '.join(families)}; intervals are not adjusted; {level}"
    return [Note(text, "adjusted p")]
