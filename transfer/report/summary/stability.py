"""Up to which rates variants train, in a sentence for each map. Imports no torch."""

import math

from transfer.records.fields import value_label
from transfer.report.tables.stability_map import StabilityMap, largest_stable
from transfer.report.tables.table import is_missing, is_number

AXES = ("lr", "warmup_epochs")


def map_sentence(rows: StabilityMap) -> str:
    """Return up to which `x`, a number, each panel of a map trains; empty for any other `x`."""
    if not all(map(is_number, rows[rows.x])):
        return ""
    told = "; ".join(f"{name} {_limit(panel)}" for name, panel in rows.panels())
    return f"{told}{' (where more than half of the seeds train)' * (max(rows['seeds']) > 1 and 'trains' in told)}."


def _limit(rows: StabilityMap) -> str:
    """Return at which `x` a map's trainings train, of several `y` and panels where they train furthest.

    Runs not checked for failure count neither as training nor as failed.
    """
    tried, rates = sorted({*rows[rows.x]}), "learning rates" if rows.x == "lr" else f"values of {rows.x}"
    seeds, unjudged = sum(rows["seeds"]), sum(rate.not_judged for rate in rows["failed"])
    aside = f" ({unjudged} of {seeds} training runs not checked for failure)" if unjudged else ""
    limits = [row for row in largest_stable(rows).rows if row["seeds"]]
    if not limits:
        return f"was not checked for failure in any of its {seeds} training runs"
    ends = {"largest_stable": -math.inf, "smallest_failed": math.inf, "smallest_stable": -math.inf}
    edges = [tuple(other if is_missing(row[end]) else row[end] for end, other in ends.items()) for row in limits]
    largest, failed, start = max(edges)
    best = limits[edges.index((largest, failed, start))]
    at = f" with {rows.y} {value_label(best[rows.y])}" if len({*edges}) > 1 else ""
    above = best["violations"]
    if largest == -math.inf:
        if above:
            return f"trains at {above[-1]:g}{at}, but not at {failed:g} below it{aside}"
        return f"trains at none of the {len(tried)} {rates} tried, {tried[0]:g} to {tried[-1]:g}{aside}"
    span = "up to" if start == -math.inf else "at" if start == largest else f"from {start:g} to"
    if failed < math.inf:
        return f"trains {span} {largest:g}{at}, not at {failed:g}{', though at some above it' * bool(above)}{aside}"
    every = f"at all {best['cells']} {rates} tried, up to" if start == -math.inf else span
    if best["cells"] == 1:
        return f"trains at {largest:g}, the only one tried{aside}"
    return f"trains {every} {largest:g}{at}{', the largest tried, and is at chance below' * (start > -math.inf)}{aside}"
