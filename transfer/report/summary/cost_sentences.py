"""What two variants cost, in a sentence or two. Imports no torch."""

from collections.abc import Callable, Sequence
from statistics import fmean

from transfer.comparison.compare_arms import PERCENT, ComparedScore
from transfer.engine.cost import duration
from transfer.records.record import Record
from transfer.report.tables.cost_ratios import CostRatio, CostRatios, Ratio

SAME = 0.005
"""Costs whose ratio is nearer to 1 than this are called the same."""
COSTS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("gflops", "GFLOP per image", "{:.3g}".format),
    ("params", "M parameters", lambda count: f"{count / 1e6:.2f}"),
    ("train_seconds", "of training (wall time)", duration),
)
"""Costs that are told of both variants: the entry of a record, its unit, and the text of its number."""


def cost_sentences(rows: Sequence[ComparedScore], a: str, b: str, ratios: CostRatios) -> str:
    """Return what both variants cost: operations of an image, parameters, training, and times measured alternately."""
    matches = list({id(row.matched): row.matched for row in rows}.values())
    parts = []
    for name, unit, shown in COSTS:
        pairs = [[_mean([run.record for run in variant], name) for variant in one.variants] for one in matches]
        if pairs := [pair for pair in pairs if all(pair)]:
            sides = [(min(of), max(of)) if name != "train_seconds" else (sum(of),) for of in zip(*pairs)]
            told = " vs. ".join(" to ".join(dict.fromkeys(map(shown, side))) for side in sides)
            change = f" ({_change([of_a / of_b for of_a, of_b in pairs])})" if name == "gflops" else ""
            parts.append(f"{told} {unit}{change}")
    lines = [f"Cost: {', '.join(parts)}."] if parts else []
    measured = [ratio for _, ratio in ratios.of_matches(matches) if isinstance(ratio, CostRatio)]
    steps = [ratio.training for ratio in measured if ratio.training]
    named = (("a training step", steps), ("a forward pass", [ratio.forward for ratio in measured]))
    times = ", ".join(f"{_times(found)} for {name}" for name, found in named if found)
    lines += [f"{measured[0].clock}, {a} / {b}, measured alternately: {times}."] if times else []
    return "\n".join(lines)


def _times(ratios: Sequence[Ratio]) -> str:
    """Return "1.04 (quartiles 1.03 to 1.06)", or the smallest and largest median of several."""
    medians = [ratio.median for ratio in ratios]
    return str(ratios[0]) if len(ratios) == 1 else f"{min(medians):.2f} to {max(medians):.2f}"


def _mean(records: Sequence[Record], name: str) -> float:
    values = [float(record.cost[name]) for record in records if record.cost.get(name)]
    return fmean(values) if values else 0.0


def _change(ratios: Sequence[float]) -> str:
    """Return ratios as percentages: "the same", "+28 %", or "+20 to +28 %"."""
    low, high = min(ratios) - 1, max(ratios) - 1
    if max(abs(low), abs(high)) < SAME:
        return "the same"
    return f"{' to '.join(dict.fromkeys(f'{PERCENT * end:+.0f}' for end in (low, high)))} %"
