"""Up to which rates the arms of a comparison train, in a sentence for each task. Imports no torch."""

import math
from collections.abc import Iterator

from backbones.errors import UsageError
from transfer.comparison.compare_arms import Comparison
from transfer.comparison.selection import Selection
from transfer.records.run_set import RunSet
from transfer.report.answer.naming import arm_name
from transfer.report.tables.largest_stable import largest_stable
from transfer.report.tables.stability_map import stability_map
from transfer.report.tables.table import is_missing

AXES = ("lr", "warmup_epochs")


def rate_sentences(comparison: Comparison, runs: RunSet) -> Iterator[str]:
    """Yield a sentence for each task in which both arms were trained at several rates and some training broke down."""
    for task in runs.tasks:
        edges = [_edge(arm, runs, task) for arm in comparison.arms]
        if None in edges or all(edge and edge[1] == math.inf for edge in edges):
            continue
        told = [
            f"{arm_name(arm.text)} {_text(*edge)}" for arm, edge in zip(comparison.arms, edges, strict=True) if edge
        ]
        yield f"{task} trains at rates up to: {'; '.join(told)} (median over seeds)."


def _edge(arm: Selection, runs: RunSet, task: str) -> tuple[float, float] | None:
    """Return the largest rate at which an arm trains, and the first at which it breaks down (infinite if none does).

    Of several warm-ups and settings the best counts. None where fewer than two rates were tried.
    """
    of_arm = runs.select(run for run in arm.runs if run.record.task == task)
    if len({record.options.get(AXES[0]) for record in of_arm.records} - {None}) < 2:
        return None
    try:
        rows = largest_stable(stability_map(of_arm, *AXES)).rows
    except UsageError:
        return None
    edges = [
        (
            -math.inf if is_missing(row["largest"]) else row["largest"],
            math.inf if is_missing(row["broken"]) else row["broken"],
        )
        for row in rows
    ]
    return max(edges, default=None)


def _text(largest: float, broken: float) -> str:
    if largest == -math.inf:
        return f"none (breaks down at {broken:g}, the smallest tried)"
    return f"{largest:g} (the largest tried)" if broken == math.inf else f"{largest:g} (breaks down at {broken:g})"
