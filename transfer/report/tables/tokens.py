"""Tables of the task `tokens`: its diagnostics by layer, and the norms of the first theorem of arXiv 2109.03810."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transfer.records.run_set import StoredRuns
from transfer.report.tables.columns import group_cells, run_ids, significant, without_unused
from transfer.report.tables.table import Note, Table
from transfer.statistics.intervals import mean_and_deviation

LAYER = ("similarity", "operator_norm", "smallest_norm", "bound", "norm", "effective_rank", "zero_rows")
ATTENTION = ("row_sum", "entropy")
NORM_MEASURES = ("pearson", "spearman", "inverse_pearson", "inverse_spearman", "balance")

LayerHistories = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lines with `layers` of each run's history, by run id: diagnostics that were measured during training."""


def layer_table(runs: StoredRuns, layer_histories: LayerHistories | None = None) -> Table:
    """Return a row for each configuration and place: means over seeds of the diagnostics of `tasks.tokens.measuring`.

    With `layer_histories` the values are those measured during training, with a row for each epoch. `row_sum` and
    `entropy` describe the attention of a block. Configurations are named as in `summary`.
    """
    return _table(runs, layer_histories, "place", _layers, (*LAYER, *ATTENTION))


def norm_table(runs: StoredRuns, layer_histories: LayerHistories | None = None) -> Table:
    """Return how the weights after the stem's last activation agree with scale and shift before it (theorem 1).

    There is a row for each configuration and reading of W_c (`backbones.diagnostics.stem`), each value with its
    standard deviation over seeds if there are several. The table is empty if no stem has such weights and scales.
    `layer_histories` is used as in `layer_table`.
    """
    table = _table(runs, layer_histories, "weights W_c", _norms, NORM_MEASURES, deviations=True)
    table.notes += [Note(CORRELATION), Note(BALANCE)] if len(table) else []
    return table


CORRELATION = (
    "pearson, spearman: correlation of the norm of W_c with s_c = sqrt(alpha_c^2 + beta_c^2) over the channels c; "
    "inverse: with 1 / s_c"
)
BALANCE = "balance: 2 sum(norm s_c) / sum(norm^2 + s_c^2), which is 1 where both are equal in every channel"


def _table(
    runs: StoredRuns,
    layer_histories: LayerHistories | None,
    title: str,
    measured: Callable[[Mapping[str, Any]], dict[str, Mapping[str, Any]]],
    names: Sequence[str],
    *,
    deviations: bool = False,
) -> Table:
    """Return a row for each configuration, epoch and place: the mean over seeds of each value, nan if a seed has none.

    Args:
        runs, layer_histories: see `layer_table`.
        title: name of the column of places.
        measured: returns the values at each place from details of a run, or from a line of its history.
        names: names of the values.
        deviations: whether there are standard deviations, too.
    """
    titles, rows = (title,) if layer_histories is None else ("epoch", title), list[dict[str, Any]]()
    for group in runs.groups:
        together: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for record in group.records:
            lines = [record.details] if layer_histories is None else layer_histories.get(record.run_id, ())
            for line in lines:
                for place, values in measured(line).items():
                    together.setdefault((line["epoch"], place) if layer_histories else (place,), []).append(values)
        for key, members in together.items():
            row = {**group_cells(group), "seeds": len(group.records), **dict(zip(titles, key, strict=True))}
            for name in names:
                numbers = [number for values in members if (number := values.get(name)) is not None]
                mean, deviation = mean_and_deviation(numbers)
                row[name] = mean if len(numbers) == len(members) else math.nan
                row |= {f"{name} sd": deviation} if deviations else {}
            rows.append(row | run_ids(group.records))
    columns = significant([*names, *(f"{name} sd" for name in names)])
    return without_unused(Table.from_rows(rows, columns))


def _layers(facts: Mapping[str, Any]) -> dict[str, Any]:
    attention = {layer["place"]: layer for layer in facts.get("attention") or ()}
    return {layer["place"]: {**attention.get(layer["place"], {}), **layer} for layer in facts.get("layers") or ()}


def _norms(facts: Mapping[str, Any]) -> dict[str, Any]:
    last = (facts.get("stem") or {}).get("last_activation") or {}
    return {weights["of"]: weights for weights in last.get("weights", ()) if "balance" in weights}
