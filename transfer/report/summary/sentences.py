"""The verdict of a comparison in a few sentences: what differs, how surely, at what cost, and what is missing.

No sentence says more than the verdict of its row, which follows from the interval. At the end: the variants that a page
compares when nobody names them, and their names in sentences, headings and figures. Imports no torch.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from transfer.comparison.compare_arms import FAMILIES, PERCENT, ComparedScore, Comparison
from transfer.comparison.selection import fields_of
from transfer.core.errors import count, shortened
from transfer.measure.ratios import UNMEASURED, CostRatio, CostRatios, Ratio
from transfer.records.evidence import is_seeded, is_untrained
from transfer.records.fields import BASELINE, NAMED_BY_VALUE, differing, parts_label, value_label, value_of
from transfer.records.grouping import nearness_to_pretraining
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.comparison import verdict_number
from transfer.report.tables.pivot import names_of_runs
from transfer.report.tables.stability_map import StabilityMap, largest_stable
from transfer.report.tables.table import is_missing, is_number
from transfer.statistics.intervals import Estimate
from transfer.statistics.verdicts import CORRECTED, NO_DIFFERENCE, Kind

COUNTED = (
    "primary scores on other datasets than the pretraining's",
    "primary scores on the dataset of the pretraining, as there are no others",
    "scores of the pretraining runs themselves, as there are no others",
)
SAME = 0.005
"""Costs whose ratio is nearer to 1 than this are called the same."""
COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("gflops", "GFLOP per image", "{:.3g}".format),
    ("params", "M parameters", lambda number: f"{number / 1e6:.2f}"),
)
"""Costs that are told of both variants: the entry of a record, its unit, and the text of its number."""
WORDS = {
    Kind.A_BETTER: "better",
    Kind.B_BETTER: "worse",
    Kind.A_FAILED: "{a} failed",
    Kind.B_FAILED: "{b} failed",
    Kind.BOTH_FAILED: "both failed",
    Kind.AT_CHANCE: "not above chance",
    Kind.EQUIVALENT: "equivalent",
    Kind.INCONCLUSIVE: "inconclusive",
    Kind.NO_INTERVAL: "no interval",
}
"""What is said of the first variant, in the order in which it is told."""
MOST_PAIRS = 5
"""Pairs that a page compares by itself; further ones are compared on demand."""
MOST_RUNS = 500
"""Runs beyond which nothing is compared unasked: intervals over all of them take minutes."""


def answer(comparison: Comparison, runs: RunSet, ratios: CostRatios | None = None) -> list[str]:
    """Return the lines of the answer of a comparison of two variants on the tasks' primary scores.

    The headline says how often the first variant is better, worse, or neither. Below it are what the reader must know
    before using the verdict, a line for each score with means, difference and interval, what the first variant costs
    beside the second, where anything is known, and which runs are counted.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
        ratios: measured costs; without them the variants' costs are compared by their operations alone.
    """
    excluded = count(len(comparison.exclusions), "group")
    limits = [f"{excluded} of runs not compared: see the notes below the table."] * bool(comparison.exclusions)
    primary = [row for row in comparison.rows if row.primary and row.effect is None]
    rows = [row for row in primary if row.family == FAMILIES[0]]
    a, b = compared_names(comparison, runs)
    if not rows:
        return [f"{a} vs. {b}: not compared.", *limits]
    by_word: dict[str, list[ComparedScore]] = {}
    for row in sorted(rows, key=lambda row: [*WORDS].index(row.verdict.kind)):
        word = WORDS[row.verdict.kind].format(a=a, b=b) + " (completed runs only)" * bool(row.verdict.breakdowns)
        by_word.setdefault(word, []).append(row)
    tasks = len({row.matched.first.task for row in rows})
    records = [record for row in rows for record in row.matched.records]
    smoke = "Smoke test, not a valid result. " if any(record.smoke for record in records) else ""
    datasets = len({row.matched.first.dataset.get("name") for row in rows})
    scores, of = count(len(rows), "score"), f"{count(tasks, 'task')} on {count(datasets, 'dataset')}{_seeds(rows)}"
    told = f"{', '.join(f'{word} in {len(found)}' for word, found in by_word.items())} of {scores} of {of}"
    if len(by_word) == 1:
        told = f"{next(iter(by_word))}{f' on all {scores} ({of})' if len(rows) > 1 else f' ({scores} of {of})'}"
    headline = f"{smoke}{a} vs. {b}{_further_differences(comparison, rows)}: {told}."
    tests = sum(row.estimate is not None for row in rows)
    key = f"Mean of {a} over seeds vs. that of {b}, then the difference with its 95 % interval:"
    effects = [key] * any(row.estimate is not None for row in rows)
    for word, found in by_word.items():
        ending = f", {word}" * (len(by_word) > 1)
        effects += [f"- {_effect(row, tests)}{ending}" for row in found]
    variants = zip((a, b), zip(*(row.matched.variants for row in rows), strict=True), strict=True)
    random = [name for name, of_rows in variants if any(is_untrained(run.record) for of in of_rows for run in of)]
    caveats = [f"Random weights, no pretraining: {' and '.join(random)}."] * bool(random)
    caveats += [*_marks(records), *_broken(rows, {"a": a, "b": b}), *_of_intervals(rows, tests)]
    others = "; ".join(row_name(row, "`") for row in primary if row not in rows)
    counted = f"Counted: {COUNTED[nearness_to_pretraining(records, runs.exports)]}"
    limits = [f"{counted}{'; not counted: ' * bool(others)}{others}.", *limits]
    return [headline, *caveats, *effects, *_cost(primary, a, b, ratios or CostRatios()), *limits]


def _further_differences(comparison: Comparison, rows: Sequence[ComparedScore]) -> str:
    """Return the clause on variants that differ in more than what selects them; empty if they do not."""
    fields = dict.fromkeys(name for row in rows for name in row.matched.differing)
    selected = {name for variant in comparison.variants for name in variant.fields}
    if len(fields) < 2 or fields.keys() <= selected:
        return ""
    return f", which differ in {len(fields)} things ({shortened(fields, 4)})"


def row_name(row: ComparedScore, quote: str = "") -> str:
    """Return the task, score and data of a row: "knn top1 on toy (lr 0.1)", with quotes around the dataset."""
    first = row.matched.first
    return row.matched.with_setting(f"{first.task} {row.score} on {quote}{first.dataset.get('name')}{quote}")


def _effect(row: ComparedScore, tests: int) -> str:
    """Return the clause on one row, whose p value is adjusted over a number of tests."""
    verdict = row.verdict
    means = " vs. ".join(f"{100 * mean:.1f} %" if row.percent else f"{mean:.3g}" for mean in row.means)
    if row.estimate is None:
        return f"{row_name(row, '`')}: {means}" if means else row_name(row, "`")
    said = f"{row_name(row, '`')}: {means}, {interval_text(row)}"
    if verdict.breakdowns and verdict.counted is not None:  # what remains when failed runs count
        failed = "failed runs counted at chance level, or at 0 where it is not known"
        said += f" ({_with_interval(verdict.counted, row.percent)}, {failed})"
    if verdict.kind is Kind.EQUIVALENT:
        return f"{said}, within {verdict_number(verdict.margin or 0, verdict)}{' points' * row.percent}"
    if verdict.kind is Kind.INCONCLUSIVE:
        if verdict.why == CORRECTED:
            return f"{said}, not significant after correction for {tests} tests"
        if verdict.why == NO_DIFFERENCE:
            return f"{said}, equal on every sample"
    return said


def interval_text(row: ComparedScore) -> str:
    """Return the difference with its interval: "+1.8 points [0.9, 2.7]", or in the score's own unit."""
    assert row.estimate is not None
    return _with_interval(row.estimate, row.percent)


def _with_interval(difference: Estimate, percent: bool) -> str:
    digits, scale = (".1f", PERCENT) if percent else (".3g", 1.0)
    number, low, high = (scale * value + 0.0 for value in (difference.estimate, difference.low, difference.high))
    return f"{number:+{digits}}{' points' * percent} [{low:{digits}}, {high:{digits}}]"


def _seeds(rows: Sequence[ComparedScore]) -> str:
    """Return ", 5 seeds" or ", 2 to 5 seeds"; empty without an estimate."""
    counts = [number for row in rows if row.estimate is not None for number in row.estimate.seeds]
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f", {count(low, 'seed')}" if low == high else f", {low} to {high} seeds"


def _marks(records: Sequence[Record]) -> Iterator[str]:
    """Yield what makes these runs no result."""
    subsets = sorted({size for one in records for size in (one.subset, one.origin.get("subset")) if size is not None})
    if told := ", ".join(map(str, subsets)):
        yield f"Runs used subsets of the data (--subset {told}); scores on the full datasets may differ."
    if any(record.dirty for record in records):
        yield "Made with changed files of the suite."


def _of_intervals(rows: Sequence[ComparedScore], tests: int) -> Iterator[str]:
    """Yield what the intervals do not cover: several tests, and with one seed how trainings vary."""
    estimates = [row.estimate for row in rows if row.estimate is not None]
    if tests > 1:
        yield f"Verdicts are corrected for {tests} tests, intervals are not."
    if any(estimate.borrowed for estimate in estimates):
        yield "From one completed seed beside several nothing is concluded: add seeds to that variant."
    if any(estimate.seed_error is None for estimate in estimates):
        told = "One seed per variant: intervals reflect test-sample variance, not variance between training runs."
        seeded = any(is_seeded(record) for row in rows for record in row.matched.records)
        how = "Add --seeds 1 2" if seeded else "Frozen features: pretrain with --seeds 1 2"
        yield f"{told} {how}."


def _broken(rows: Sequence[ComparedScore], names: dict[str, str]) -> Iterator[str]:
    """Yield how many training runs of each variant failed, for each match."""
    for row in {id(row.matched): row for row in rows}.values():
        for one in row.breakdowns:
            if one.broken:
                of = count(one.of, "training run")
                yield f"{names[one.variant]} failed in {one.broken} of {of}: {row.matched.label}."


def _cost(rows: Sequence[ComparedScore], a: str, b: str, ratios: CostRatios) -> list[str]:
    """Return what both variants cost: operations of an image, parameters, and times measured alternately."""
    matches = list({id(row.matched): row.matched for row in rows}.values())
    parts = []
    for name, unit, shown in COSTS:
        costs = [[[run.record.cost.get(name) for run in variant] for variant in one.variants] for one in matches]
        pairs = [[fmean(filter(None, of)) for of in pair] for pair in costs if all(map(any, pair))]
        if pairs:
            told = " vs. ".join(" to ".join(dict.fromkeys(map(shown, (min(of), max(of))))) for of in zip(*pairs))
            change = f" ({_change([of_a / of_b for of_a, of_b in pairs])})" if name == "gflops" else ""
            parts.append(f"{told} {unit}{change}")
    found = [ratio for _, ratio in ratios.of_matches(matches)]
    measured = [ratio for ratio in found if isinstance(ratio, CostRatio)]
    advice = UNMEASURED.replace("time", "the other times") if measured else UNMEASURED
    lines = [f"Cost: {', '.join(parts)}{advice * (UNMEASURED in found)}."] if parts else []
    lines += [f"Cost not measured: {why}." for why in found if isinstance(why, str) and why != UNMEASURED]
    steps = [ratio.training for ratio in measured if ratio.training]
    named = (("a training step", steps), ("a forward pass", [ratio.forward for ratio in measured]))
    times = ", ".join(f"{_times(found)} for {name}" for name, found in named if found)
    return lines + ([f"{measured[0].clock}, {a} / {b}, measured alternately: {times}."] if times else [])


def _times(ratios: Sequence[Ratio]) -> str:
    """Return "1.04 (quartiles 1.03 to 1.06)", or the smallest and largest median of several."""
    medians = [ratio.median for ratio in ratios]
    return str(ratios[0]) if len(ratios) == 1 else f"{min(medians):.2f} to {max(medians):.2f}"


def _change(ratios: Sequence[float]) -> str:
    """Return ratios as percentages: "the same", "+28 %", or "+20 to +28 %"."""
    low, high = min(ratios) - 1, max(ratios) - 1
    if max(abs(low), abs(high)) < SAME:
        return "the same"
    return f"{' to '.join(dict.fromkeys(f'{PERCENT * end:+.0f}' for end in (low, high)))} %"


def map_sentence(rows: StabilityMap) -> str:
    """Return up to which `x`, a number, each panel of a map trains; empty for any other `x`."""
    if not all(map(is_number, rows[rows.x])):
        return ""
    told = "; ".join(f"{name} {_limit(panel)}" for name, panel in rows.panels())
    return f"{told}{' (where more than half of the seeds train)' * (max(rows['seeds']) > 1)}."


def _limit(rows: StabilityMap) -> str:
    """Return at which `x` a panel trains, of several `y` where it trains furthest."""
    ends = {"largest_stable": -math.inf, "smallest_failed": math.inf, "smallest_stable": -math.inf}
    limits = {
        tuple(other if is_missing(row[end]) else row[end] for end, other in ends.items()): row
        for row in largest_stable(rows).rows
        if row["seeds"]
    }
    if not limits:
        return "was not checked for failure"
    largest, failed, start = furthest = max(limits)
    at = f" with {rows.y} {value_label(limits[furthest][rows.y])}" if len(limits) > 1 else ""
    if largest == -math.inf:
        return f"trains at no {rows.x} tried"
    span = "up to" if start == -math.inf else "at" if start == largest else f"from {start:g} to"
    return f"trains {span} {largest:g}{at}, {f'not at {failed:g}' if failed < math.inf else 'the largest tried'}"


def arms_to_compare(runs: RunSet) -> list[tuple[str, str]]:
    """Return selectors of pairs of variants (see `transfer.comparison.selection.select`), each against the baseline.

    Where stems or attention differ, variants are the runs with each of their values; where both do, with each pair of
    values. Where neither does, variants are backbones. A single variant gives no pairs, nor do very many runs.
    """
    if len(runs) > MOST_RUNS:
        return []

    def found(*fields: str) -> list[dict[str, Any]]:
        """Return the combinations of values of some fields that backbones have, in order of appearance."""
        rows = dict.fromkeys(tuple(value_of(record, name, runs.exports) for name in fields) for record in runs.records)
        return [dict(zip(fields, row, strict=True)) for row in rows if None not in row]

    varied = [field for field in BASELINE if len(found(field)) > 1]
    variants = [_selector(values) for values in found(*(varied or ["backbone"]))]
    usual = _selector({field: BASELINE[field] for field in varied})
    base = usual if usual in variants else variants[0] if variants else ""
    return [(variant, base) for variant in variants if variant != base][:MOST_PAIRS]


def _selector(values: dict[str, Any]) -> str:
    return ",".join(str(value) if name == "backbone" else f"{name}={value}" for name, value in values.items())


def why_no_arms(runs: RunSet) -> str:
    """Return what is missing for a comparison, and how to add it."""
    if len(runs) > MOST_RUNS:
        return (
            f"{len(runs):,} runs are too many to be compared unasked. Name two variants: "
            "python -m transfer.report page RUNS --compare stem=conv stem=patchify"
        )
    return (
        "There are no two variants to compare. Add runs with another --stem, --attention or --backbone; "
        "the same options and --seeds pair the runs."
    )


def compared_names(comparison: Comparison, runs: RunSet) -> list[str]:
    """Return the names of the variants of a comparison: those that tables of the runs have, if each has one there.

    Where selectors differ in more than parts of the backbone, or a variant has several names, selectors are the names.
    """
    texts, of_runs = [variant.text for variant in comparison.variants], names_of_runs(runs)
    matched = [[run for one in comparison.matches for run in one.matched.variants[n]] for n in range(len(texts))]
    chosen = zip(matched, comparison.variants, strict=True)
    names = [{of_runs.get(run.record.run_id, "") for run in own or variant.runs} for own, variant in chosen]
    single = [*dict.fromkeys(min(found) for found in names if len(found) == 1)]
    by_parts = all(field in NAMED_BY_VALUE for fields in _differing(texts) for field in fields)
    return single if by_parts and len(single) == len(texts) and all(single) else names_of(texts)


def names_of(selectors: list[str]) -> list[str]:
    """Return names of selectors: "conv" and "LapStem + lr 0.1", without equal fields, folders and hashes.

    Equally named parts of different files get the first digits of their files' digests.
    """
    differing_fields = zip(_differing(selectors), selectors, strict=True)
    names = [parts_label(one or fields_of(text), " + ") for one, text in differing_fields]
    if len({*names}) == len(names):
        return names
    digests = [re.findall("sha256:([0-9a-f]{8})", text) for text in selectors]
    return [f"{name} ({' '.join(found)})" if found else name for name, found in zip(names, digests, strict=True)]


def versus(comparison: Comparison, runs: RunSet) -> str:
    """Return the heading of a comparison: "conv vs. patchify", in brackets what else both variants are selected by."""
    names, texts = compared_names(comparison, runs), [variant.text for variant in comparison.variants]
    told = {*_differing(texts)[0], *(part for part in NAMED_BY_VALUE if names != names_of(texts))}
    rest = {name: value for name, value in fields_of(texts[0]).items() if name not in told}
    return " vs. ".join(names) + f" ({parts_label(rest, ' + ')})" * bool(rest)


def _differing(selectors: list[str]) -> list[dict[str, str]]:
    """Return the fields of each selector in which it differs from another one."""
    known = [fields_of(text) for text in selectors]
    names = differing(known)
    return [{name: value for name, value in of.items() if name in names} for of in known]
