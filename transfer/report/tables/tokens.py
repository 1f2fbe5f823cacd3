"""Tables of the task `tokens`: its diagnostics by layer, and the norms of the first theorem of arXiv 2109.03810."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.tables.columns import group_cells, run_ids, significant, without_unused
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation

LAYER = ("similarity", "operator_norm", "smallest_norm", "bound", "norm", "effective_rank", "zero_rows")
ATTENTION = ("row_sum", "entropy")
NORMS = ("pearson", "spearman", "inverse_pearson", "inverse_spearman", "balance")

LayerHistories = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lines with `layers` of each run's history, by run id: diagnostics that were measured during training."""
Values = dict[tuple[Any, ...], Mapping[str, Any]]
"""Measured values by epoch (during training alone), and by place or reading of W_c."""


def layer_table(runs: RunSet, layer_histories: LayerHistories | None = None) -> Table:
    """Return a row for each configuration and place: means over seeds of the diagnostics of `tasks.tokens.measuring`.

    With `layer_histories` the values are those measured during training, with a row for each epoch. `row_sum` and
    `entropy` describe the attention of a block. Configurations are named as in `summary`.
    """
    return _table(runs, layer_histories, "place", _layers, (*LAYER, *ATTENTION)).without_empty()


def norm_table(runs: RunSet, layer_histories: LayerHistories | None = None) -> Table:
    """Return how the weights after the stem's last activation agree with scale and shift before it (theorem 1).

    There is a row for each configuration and reading of W_c (`backbones.diagnostics.stem`), each value with its
    standard deviation over seeds if there are several. The table is empty if no stem has such weights and scales.
    `layer_histories` is used as in `layer_table`.
    """
    table = _table(runs, layer_histories, "weights W_c", _norms, NORMS, deviations=True)
    table.notes += [Note(CORRELATION), Note(BALANCE)] if len(table) else []
    return table


CORRELATION = (
    "pearson, spearman: correlation of the norm of W_c with s_c = sqrt(alpha_c^2 + beta_c^2) over the channels c; "
    "inverse: with 1 / s_c"
)
BALANCE = "balance: 2 sum(norm s_c) / sum(norm^2 + s_c^2), which is 1 where both are equal in every channel"


def _table(
    runs: RunSet,
    layer_histories: LayerHistories | None,
    title: str,
    measured: Callable[[Mapping[str, Any]], dict[str, Any]],
    names: Sequence[str],
    *,
    deviations: bool = False,
) -> Table:
    def values_of(record: Record) -> Values:
        if layer_histories is None:
            return {(name,): value for name, value in measured(record.details).items()}
        lines = layer_histories.get(record.run_id, ())
        return {(line["epoch"], name): value for line in lines for name, value in measured(line).items()}

    titles = (title,) if layer_histories is None else ("epoch", title)
    rows = [
        group_cells(group)
        | {"seeds": len(group.records)}
        | dict(zip(titles, key, strict=True))
        | _means(several, names, deviations)
        | run_ids(group.records)
        for group in runs.groups
        for key, several in _together(values_of(record) for record in group.records).items()
    ]
    columns = significant(column for name in names for column in (name, f"{name} sd"))
    return without_unused(Table.from_rows(rows, columns))


def _together(several: Iterable[Values]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    by_key: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for values in several:
        for key, measured in values.items():
            by_key.setdefault(key, []).append(measured)
    return by_key


def _means(several: Sequence[Mapping[str, Any]], names: Sequence[str], deviations: bool) -> dict[str, float]:
    """Return the mean over seeds of each value, nan if a seed has none."""
    cells: dict[str, float] = {}
    for name in names:
        values = [value for measured in several if (value := measured.get(name)) is not None]
        mean, deviation = mean_and_deviation(values)
        cells[name] = mean if len(values) == len(several) else math.nan
        if deviations:
            cells[f"{name} sd"] = deviation
    return cells


def _layers(facts: Mapping[str, Any]) -> dict[str, Any]:
    attention = {layer["place"]: layer for layer in facts.get("attention") or ()}
    return {layer["place"]: {**attention.get(layer["place"], {}), **layer} for layer in facts.get("layers") or ()}


def _norms(facts: Mapping[str, Any]) -> dict[str, Any]:
    last = (facts.get("stem") or {}).get("last_activation") or {}
    return {weights["of"]: weights for weights in last.get("weights", ()) if "balance" in weights}
