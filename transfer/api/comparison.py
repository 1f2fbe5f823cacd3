"""`compare` and `measure_cost`: two variants of a set of runs, in their scores and costs. Imports no torch."""

from typing import TYPE_CHECKING, Any, Literal

from transfer.api.run_set import RunSet
from transfer.comparison.paired_intervals import Settings
from transfer.records.labels import value_label

if TYPE_CHECKING:
    from transfer.report.tables.table import Table


def compare(
    runs: RunSet,
    field: str,
    a: Any,
    b: Any,
    *,
    correction: Literal["holm", "bh", "none"] = "holm",
    margin: float | None = None,
) -> "Table":
    """Compare the runs in which a field has one value with those in which it has another.

    Runs are matched by task, dataset, protocol and the rest of the backbone, and paired by sample, and by seed as far
    as both variants have the same ones. `docs/concepts/statistics.md` says how intervals and verdicts are reached.

    Args:
        runs: the runs of both variants, as `evaluate` and `load` return them.
        field: "stem", "attention", "backbone", "run", "lr", ...; see `RunSet.filter`.
        a, b: the two values; the difference is a less b.
        correction: of the p values over the table: Holm, Benjamini-Hochberg, or none.
        margin: in points of percent: smaller differences do not matter, and two variants may be found equivalent.

    Returns:
        A row per match and score: difference, interval, p, adjusted p, verdict; `.to_frame()` for pandas.

    Raises:
        UsageError: no run has the field, or one of the values.
        UserError: nothing can be compared; the message says why.
    """
    from transfer.report.tables.comparison import compare as compare_selected

    options = Settings(correction, margin=margin)
    return compare_selected(runs, f"{field}={value_label(a)}", f"{field}={value_label(b)}", options)


def measure_cost(runs: RunSet, field: str, a: Any, b: Any) -> "Table":
    """Measure what the runs with one value of a field cost beside those with another.

    The models of each matched pair are built from the records with random weights. Training steps and forward passes
    of both run in turns in this process for some seconds, in processor time of one thread or in time of the GPU.

    Args:
        runs: the runs of both variants, as `evaluate` and `load` return them.
        field: "stem", "attention", "backbone", ...; see `RunSet.filter`.
        a, b: the two values; a ratio is a over b.

    Returns:
        A row per pair of models: `transfer.report.tables.cost_ratios.ratio_table`.

    Raises:
        UsageError: no run has the field, or one of the values.
    """
    from transfer.comparison.pairing import match
    from transfer.comparison.selection import select_arms
    from transfer.doctor.speed_pairs import cost_ratios
    from transfer.report.tables.cost_ratios import ratio_table

    variants = select_arms([f"{field}={value_label(a)}", f"{field}={value_label(b)}"], runs)
    return ratio_table(match(variants, runs.exports).matches, cost_ratios())
