"""The verdict of a comparison in a few sentences: what differs, how surely, at what cost, and what is missing.

No sentence says more than the verdict of its row, which follows from the interval. At the end: the variants that a page
compares when nobody names them, and their names in sentences, headings and figures. Imports no torch.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from transfer.comparison.compare_arms import PERCENT, ComparedScore, Comparison, Family
from transfer.comparison.selection import fields_of
from transfer.core.errors import count, shortened
from transfer.measure.ratios import UNMEASURED, CostRatio, CostRatios, Ratio
from transfer.records.evidence import is_seeded, is_untrained
from transfer.records.fields import BASELINE, NAMED_BY_VALUE, parts_label, value_label, value_of
from transfer.records.grouping import marks, nearness_to_pretraining
from transfer.records.protocol import Exports
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.report.tables.columns import mean_cost
from transfer.report.tables.comparison import verdict_number
from transfer.report.tables.pivot import names_of_runs
from transfer.report.tables.stability_map import StabilityMap, largest_stable
from transfer.report.tables.table import Row, is_missing, is_number
from transfer.statistics.intervals import Estimate
from transfer.statistics.verdicts import CORRECTED, NO_DIFFERENCE, Kind

COUNTED = (
    "primary scores, none on the dataset of a pretraining that is known",
    "primary scores on the dataset of the pretraining, as there are no others",
    "scores of the pretraining runs themselves, as there are no others",
)
SAME = 0.005
"""Costs whose ratio is nearer to 1 than this are called the same."""
COMPARED_COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("gflops", "GFLOP per image", "{:.3g}".format),
    ("params", "M parameters", lambda number: f"{number / 1e6:.2f}"),
)
"""Costs that are told of both variants: the entry of a record, its unit, and the text of its number."""
VERDICT_WORDS = {
    Kind.A_BETTER: "better",
    Kind.B_BETTER: "worse",
    Kind.A_FAILED: "{a} failed",
    Kind.B_FAILED: "{b} failed",
}
"""What is said of the first variant in other words than those of the kind."""
MARK_SENTENCES = {
    "pretraining smoke": "Pretrained by a smoke test, not a valid result.",
    "dirty": "Made with changed files of the suite.",
    "pretraining dirty": "Pretrained with changed files of the suite.",
    "weights modified": "Weights were changed after their export.",
}
"""What is said of the marks of runs (`transfer.records.grouping.marks`) besides smoke and subsets."""
MOST_RUNS = 500
"""Runs beyond which nothing is compared unasked: intervals over all of them take minutes."""


def answer(comparison: Comparison, runs: StoredRuns, ratios: CostRatios | None = None) -> list[str]:
    """Return the lines of the answer of a comparison of two variants on the tasks' primary scores.

    The headline says how often the first variant is better, worse, or neither. Below it are what the reader must know
    before using the verdict, a line for each score with means, difference and interval, what the first variant costs
    beside the second, where anything is known, and which runs are counted.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
        ratios: measured costs; without them the variants' costs are compared by their operations alone.
    """
    excluded = f"{count(len(comparison.exclusions), 'group')} of runs not compared: see the notes below the table."
    exclusion_lines = [excluded] if comparison.exclusions else []
    primary = [row for row in comparison.rows if row.primary]
    rows = [row for row in primary if row.family is Family.PRIMARY]
    a, b = compared_names(comparison, runs)
    if not rows:
        return [f"{a} vs. {b}: not compared.", *exclusion_lines]
    by_word: dict[str, list[ComparedScore]] = {}
    for row in sorted(rows, key=lambda row: [*Kind].index(row.verdict.kind)):
        word = VERDICT_WORDS.get(row.verdict.kind, row.verdict.kind.value).format(a=a, b=b)
        word += " (completed runs only)" if row.verdict.breakdowns else ""
        by_word.setdefault(word, []).append(row)
    records = list(chain.from_iterable(row.matched.records for row in rows))
    smoke = "Smoke test, not a valid result. " if any(record.smoke for record in records) else ""
    headline = f"{smoke}{a} vs. {b}{_further_differences(comparison, rows)}: {_tally(by_word, rows)}."
    tests = sum(row.estimate is not None for row in rows)
    effects = [f"Mean of {a} over seeds vs. that of {b}, then the difference with its 95 % interval:"] if tests else []
    for word, of_word in by_word.items():
        ending = f", {word}" if len(by_word) > 1 else ""
        effects += [f"- {_effect(row, tests)}{ending}" for row in of_word]
    of_variants = ([run.record for row in rows for run in row.matched.variants[place]] for place in (0, 1))
    untrained = [name for name, of_variant in zip((a, b), of_variants) if any(map(is_untrained, of_variant))]
    caveats = [f"Random weights, no pretraining: {' and '.join(untrained)}."] if untrained else []
    caveats += [*_marks(records, runs.exports), *_broken(rows, {"a": a, "b": b}), *_of_intervals(rows, tests, (a, b))]
    counted = f"Counted: {COUNTED[nearness_to_pretraining(records, runs.exports)]}"
    if others := "; ".join(row_name(row, "`") for row in primary if row not in rows):
        counted += f"; not counted: {others}"
    costs = _cost(primary, a, b, ratios or CostRatios())
    return [headline, *caveats, *effects, *costs, f"{counted}.", *exclusion_lines]


def _tally(by_word: Mapping[str, Sequence[ComparedScore]], rows: Sequence[ComparedScore]) -> str:
    """Return how many scores have each verdict, and of how many tasks and datasets they are."""
    tasks = len({row.matched.first.task for row in rows})
    datasets = len({row.matched.first.dataset.get("name") for row in rows})
    scores = count(len(rows), "score")
    scope = f"{count(tasks, 'task')} on {count(datasets, 'dataset')}{_seeds(rows)}"
    if len(by_word) > 1:
        return f"{', '.join(f'{word} in {len(of_word)}' for word, of_word in by_word.items())} of {scores} of {scope}"
    (word,) = by_word
    return f"{word} on all {scores} ({scope})" if len(rows) > 1 else f"{word} ({scores} of {scope})"


def _further_differences(comparison: Comparison, rows: Sequence[ComparedScore]) -> str:
    """Return the clause on variants that differ in more than what selects them; empty if they do not."""
    fields = dict.fromkeys(chain.from_iterable(row.matched.differing for row in rows))
    if len(fields) < 2 or fields.keys() <= comparison.selected:
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
    effect = f"{row_name(row, '`')}: {means}, {interval_text(row)}"
    if verdict.breakdowns and verdict.counted is not None:  # what remains when failed runs count
        failed = "failed runs counted at chance level, or at 0 where it is not known"
        effect += f" ({_with_interval(verdict.counted, row.percent)}, {failed})"
    if verdict.kind is Kind.EQUIVALENT:
        low, high = (verdict_number(end, verdict) for end in row.estimate.inner)
        return f"{effect}, within {verdict_number(verdict.margin or 0, verdict)} points (90 % interval [{low}, {high}])"
    if verdict.why == CORRECTED:
        return f"{effect}, not significant after correction for {tests} tests"
    if verdict.why == NO_DIFFERENCE:
        return f"{effect}, equal on every sample"
    return effect


def interval_text(row: ComparedScore) -> str:
    """Return the difference with its interval: "+1.8 points [0.9, 2.7]", or in the score's own unit."""
    assert row.estimate is not None
    return _with_interval(row.estimate, row.percent)


def _with_interval(difference: Estimate, percent: bool) -> str:
    digits, scale, unit = (".1f", PERCENT, " points") if percent else (".3g", 1.0, "")
    number, low, high = (scale * value + 0.0 for value in (difference.estimate, difference.low, difference.high))
    return f"{number:+{digits}}{unit} [{low:{digits}}, {high:{digits}}]"


def _seeds(rows: Sequence[ComparedScore]) -> str:
    """Return ", 5 seeds" or ", 2 to 5 seeds"; empty without an estimate."""
    estimates = (row.estimate for row in rows if row.estimate is not None)
    counts = list(chain.from_iterable(estimate.seeds for estimate in estimates))
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f", {count(low, 'seed')}" if low == high else f", {low} to {high} seeds"


def _marks(records: Sequence[Record], exports: Exports) -> Iterator[str]:
    """Yield what makes these runs no result."""
    subsets = chain.from_iterable((record.subset, record.origin.get("subset")) for record in records)
    if sizes := ", ".join(map(str, sorted({size for size in subsets if size is not None}))):
        yield f"Runs used subsets of the data (--subset {sizes}); scores on the full datasets may differ."
    found = marks(records, exports)
    yield from (sentence for mark, sentence in MARK_SENTENCES.items() if mark in found)


def _of_intervals(rows: Sequence[ComparedScore], tests: int, names: Sequence[str]) -> Iterator[str]:
    """Yield what the intervals do not cover: several tests, and with one seed how trainings vary."""
    if tests > 1:
        equivalence = " and equivalence" if any(row.verdict.margin is not None for row in rows) else ""
        yield f"Verdicts are corrected for {tests} tests, intervals{equivalence} are not."
    pairs = [(row, row.estimate) for row in rows if row.estimate is not None]
    for row, estimate in pairs:
        if estimate.borrowed:
            name, where = names[estimate.seeds.index(1)], row.matched.label
            yield f"One completed seed of {name} against several is inconclusive: add seeds to it ({where})."
    if alone := [row.matched for row, estimate in pairs if estimate.seed_error is None]:
        where = f" ({'; '.join(matched.label for matched in alone)})" if len(alone) < len(rows) else ""
        limit = "intervals reflect test-sample variance, not variance between training runs"
        seeded = any(map(is_seeded, chain.from_iterable(matched.records for matched in alone)))
        fix = "Add further --seeds" if seeded else "Frozen features: pretrain with further --seeds"
        yield f"One completed seed per variant{where}: {limit}. {fix}."


def _broken(rows: Sequence[ComparedScore], names: dict[str, str]) -> Iterator[str]:
    """Yield how many training runs of each variant failed, for each match."""
    for row in {id(row.matched): row for row in rows}.values():
        for breakdowns in filter(lambda breakdowns: breakdowns.broken, row.breakdowns):
            judged = count(breakdowns.judged, "training run")
            yield f"{names[breakdowns.variant]} failed in {breakdowns.broken} of {judged}: {row.matched.label}."


def _cost(rows: Sequence[ComparedScore], a: str, b: str, ratios: CostRatios) -> list[str]:
    """Return what both variants cost: operations of an image, parameters, and times measured alternately."""
    matches = list({id(row.matched): row.matched for row in rows}.values())
    parts = []
    for name, unit, shown in COMPARED_COSTS:
        pairs = list[tuple[float, float]]()
        for matched in matches:
            cost_a, cost_b = (mean_cost(name, [run.record for run in variant]) for variant in matched.variants)
            pairs += [(cost_a, cost_b)] if cost_a > 0 and cost_b > 0 else []
        if pairs:
            ranges = (dict.fromkeys(map(shown, (min(of_variant), max(of_variant)))) for of_variant in zip(*pairs))
            change = f" ({_change([cost_a / cost_b for cost_a, cost_b in pairs])})" if name == "gflops" else ""
            parts.append(f"{' vs. '.join(map(' to '.join, ranges))} {unit}{change}")
    known_ratios = [ratio for _, ratio in ratios.of_matches(matches)]
    measured = [ratio for ratio in known_ratios if isinstance(ratio, CostRatio)]
    reasons = [ratio for ratio in known_ratios if isinstance(ratio, str)]
    lines = [f"Cost: {', '.join(parts)}{UNMEASURED if UNMEASURED in reasons else ''}."] if parts else []
    lines += [f"Cost not measured: {reason}." for reason in reasons if reason != UNMEASURED]
    if measured:
        training = [ratio.training for ratio in measured if ratio.training]
        times = [f"{_times(training)} for a training step"] if training else []
        times.append(f"{_times([ratio.forward for ratio in measured])} for a forward pass")
        lines.append(f"{measured[0].clock}, {a} / {b}, measured alternately: {', '.join(times)}.")
    return lines


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
    """Return up to which `x`, a number, each panel of a map trains, see `largest_stable`; empty for any other `x`."""
    if not all(map(is_number, rows[rows.x])):
        return ""
    return f"{'; '.join(f'{name} {_limit(panel)}' for name, panel in rows.panels())}."


def _limit(rows: StabilityMap) -> str:
    """Return at which `x` a panel trains, of several `y` where it trains furthest."""
    ends = {"largest_stable": -math.inf, "smallest_failed": math.inf, "smallest_stable": -math.inf}
    row_by_limits = dict[tuple[float, ...], Row]()
    for row in largest_stable(rows).rows:
        if row["seeds"]:
            largest, failed, start = (default if is_missing(row[end]) else row[end] for end, default in ends.items())
            row_by_limits[largest, failed, -start] = row  # of equal ones that which trains from the smallest on
    if not row_by_limits:
        return "was not checked for failure"
    largest, failed, negative_start = furthest_limits = max(row_by_limits)
    start = -negative_start
    y = row_by_limits[furthest_limits][rows.y]
    with_y = f" with {rows.y} {value_label(y)}" if len(row_by_limits) > 1 else ""
    if largest == -math.inf:
        return f"trains at no {rows.x} tried"
    span = "up to" if start == -math.inf else "at" if start == largest else f"from {start:g} to"
    if failed == math.inf:
        return f"trains {span} {largest:g}, the largest tried{with_y}"
    judged = {cell[rows.x]: cell["failed"].judged for cell in rows.rows if cell[rows.y] == y}
    differ = judged[largest] != judged[failed]
    on = [f" ({count(judged[x], 'seed')})" if differ else "" for x in (largest, failed)]
    return f"trains {span} {largest:g}{on[0]}{with_y}, not at {failed:g}{on[1]}"


def arms_to_compare(runs: StoredRuns) -> list[tuple[str, str]]:
    """Return selectors of pairs of variants (see `transfer.comparison.selection.select`), each against the baseline.

    Where stems or attention differ, variants are the runs with each of their values; where both do, with each pair of
    values. Where neither does, variants are backbones. A single variant gives no pairs, nor do very many runs.
    """
    if len(runs) > MOST_RUNS:
        return []

    def combinations(*fields: str) -> list[dict[str, Any]]:
        """Return the combinations of values of some fields that backbones have, in order of appearance."""
        columns = ([value_of(record, name, runs.exports) for record in runs.records] for name in fields)
        rows = dict.fromkeys(zip(*columns, strict=True))
        return [dict(zip(fields, row, strict=True)) for row in rows if None not in row]

    varied = [field for field in BASELINE if len(combinations(field)) > 1]
    variants = [_selector(values) for values in combinations(*(varied or ["backbone"]))]
    usual = _selector({field: BASELINE[field] for field in varied})
    base = usual if usual in variants else variants[0] if variants else ""
    return [(variant, base) for variant in variants if variant != base]


def _selector(values: dict[str, Any]) -> str:
    return ",".join(str(value) if name == "backbone" else f"{name}={value}" for name, value in values.items())


def why_no_arms(runs: StoredRuns) -> str:
    """Return what is missing for a comparison, and how to add it."""
    if len(runs) > MOST_RUNS:
        return (
            f"{len(runs):,} runs are too many to compare automatically. Name two variants: "
            "python -m transfer.report page RUNS --compare stem=conv stem=patchify"
        )
    return (
        "There are no two variants to compare. Add runs with another --stem, --attention or --backbone; "
        "the same options and --seeds pair the runs."
    )


def compared_names(comparison: Comparison, runs: StoredRuns) -> list[str]:
    """Return the names of the variants of a comparison: those that tables of the runs have, if each has one there.

    If selectors name more than parts of the backbone, these are the names: "conv + lr 0.1".
    """
    selectors, name_by_run_id = [fields_of(variant.text) for variant in comparison.variants], names_of_runs(runs)
    unique_names = dict[str, None]()
    for place, variant in enumerate(comparison.variants):
        compared = list(chain.from_iterable(match.matched.variants[place] for match in comparison.matches))
        names = {name_by_run_id.get(run.record.run_id, "") for run in compared or variant.runs}
        unique_names |= dict.fromkeys(names) if len(names) == 1 else {}
    by_parts = {*chain.from_iterable(selectors)} <= {*NAMED_BY_VALUE}
    if by_parts and len(unique_names) == len(selectors) and all(unique_names):
        return list(unique_names)
    labels = [parts_label(fields, " + ") for fields in selectors]
    return labels if len({*labels}) == len(labels) else [variant.text for variant in comparison.variants]


def versus(comparison: Comparison, runs: StoredRuns) -> str:
    """Return the heading of a comparison: "conv vs. patchify"."""
    return " vs. ".join(compared_names(comparison, runs))
