"""Tables of the task `tokens`: its diagnostics by layer, and the norms of the first theorem of arXiv 2109.03810."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer.groups import Group, grouped
from transfer.results import Record
from transfer.tables import NOTES, RUN, SIGNIFICANT, mean_and_deviation

if TYPE_CHECKING:
    import pandas as pd

LAYER = ("similarity", "operator_norm", "smallest_norm", "bound", "norm", "effective_rank", "zero_rows")
ATTENTION = ("row_sum", "entropy")
NORMS = ("pearson", "spearman", "inverse_pearson", "inverse_spearman", "balance")

Values = dict[str, dict[str, Any]]
"""By a row's name what was measured there."""


def layer_table(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """A row for each configuration and place: the mean over seeds of what `tasks.tokens` measured there.

    `row_sum` and `entropy` are those of a block's attention. Configurations are named as in `transfer.tables.summary`,
    with its notes; `known` as there.
    """
    table = _table(records, known, "place", _layers, (*LAYER, *ATTENTION))
    return table.dropna(axis="columns", how="all")


def norm_table(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """How the weights behind the stem's last activation agree with scale and shift before it (theorem 1).

    A row for each configuration and reading of W_c (`tasks.tokens_stem`), each value with its standard deviation over
    seeds where there are several. Empty where no stem has both.
    """
    table = _table(records, known, "weights W_c", _norms, NORMS, deviations=True)
    if len(table):
        table.attrs[NOTES] = [
            *table.attrs[NOTES],
            "pearson, spearman: correlation of the norm of W_c with s_c = sqrt(alpha_c^2 + beta_c^2) over the channels "
            "c; inverse: with 1 / s_c",
            "balance: 2 sum(norm s_c) / sum(norm^2 + s_c^2), which is 1 where both are equal in every channel",
        ]
    return table


def _table(
    records: Sequence[Record],
    known: Sequence[Record] | None,
    title: str,
    values_of: Callable[[Record], Values],
    names: Sequence[str],
    *,
    deviations: bool = False,
) -> "pd.DataFrame":
    import pandas as pd

    groups, notes = grouped(records, known)
    rows = [
        _about(group)
        | {title: name}
        | _means(found, names, deviations)
        | {RUN: " ".join(r.run_id for r in group.records)}
        for group in groups
        for name, found in _together(values_of(record) for record in group.records).items()
    ]
    table = pd.DataFrame(rows)
    empty = [name for name in ("pretraining", "protocol") if name in table and not table[name].any()]
    empty += [name for name in map(str, table) if name.endswith(" sd") and table[name].isna().all()]
    table = table.drop(columns=empty)
    table.attrs[NOTES] = [f"protocol {note}" for note in notes]
    table.attrs[SIGNIFICANT] = [name for name in map(str, table) if name.removesuffix(" sd") in names]
    return table


def _about(group: Group) -> dict[str, Any]:
    return {
        "dataset": group.dataset,
        "backbone": group.backbone,
        "pretraining": group.pretraining,
        "protocol": group.protocol,
        "seeds": len(group.records),
    }


def _together(several: Iterable[Values]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for values in several:
        for name, measured in values.items():
            found.setdefault(name, []).append(measured)
    return found


def _means(found: Sequence[Mapping[str, Any]], names: Sequence[str], deviations: bool) -> dict[str, float]:
    line: dict[str, float] = {}
    for name in names:
        values = [value for one in found if (value := one.get(name)) is not None]
        mean, deviation = mean_and_deviation(values)
        line[name] = mean if len(values) == len(found) else math.nan
        if deviations:
            line[f"{name} sd"] = deviation
    return line


def _layers(record: Record) -> Values:
    attention = {one["place"]: one for one in record.details.get("attention") or ()}
    return {one["place"]: {**attention.get(one["place"], {}), **one} for one in record.details.get("layers") or ()}


def _norms(record: Record) -> Values:
    last = (record.details.get("stem") or {}).get("last_activation") or {}
    return {one["of"]: one for one in last.get("weights", ()) if "balance" in one}
