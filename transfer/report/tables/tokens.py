"""Tables of the task `tokens`: its diagnostics by layer, and the norms of the first theorem of arXiv 2109.03810."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer.records.grouping import Group, grouped
from transfer.records.store import Record
from transfer.report.tables.render import NOTES, RUN, SIGNIFICANT
from transfer.report.tables.scores import without_unsaid
from transfer.statistics.intervals import mean_and_deviation

if TYPE_CHECKING:
    import pandas as pd

LAYER = ("similarity", "operator_norm", "smallest_norm", "bound", "norm", "effective_rank", "zero_rows")
ATTENTION = ("row_sum", "entropy")
NORMS = ("pearson", "spearman", "inverse_pearson", "inverse_spearman", "balance")

Looks = Mapping[str, Sequence[Mapping[str, Any]]]
"""By run id the lines of its history that have `layers`: what was seen of the tokens while it trained."""
Values = dict[tuple[Any, ...], Mapping[str, Any]]
"""What was measured, by epoch (of looks alone) and by place or reading."""


def layer_table(
    records: Sequence[Record], known: Sequence[Record] | None = None, looks: Looks | None = None
) -> "pd.DataFrame":
    """A row for each configuration and place: the mean over seeds of what `tasks.tokens` measured there.

    With `looks` a row for each epoch besides, of what was seen during training.

    `row_sum` and `entropy` are those of a block's attention. Configurations are named as in
    `transfer.report.tables.scores.summary`, with its notes; `known` as there.
    """
    table = _table(records, known, looks, "place", _layers, (*LAYER, *ATTENTION))
    return table.dropna(axis="columns", how="all")


def norm_table(
    records: Sequence[Record], known: Sequence[Record] | None = None, looks: Looks | None = None
) -> "pd.DataFrame":
    """How the weights behind the stem's last activation agree with scale and shift before it (theorem 1).

    A row for each configuration and reading of W_c (`tasks.token_diagnostics.stem`), each value with its standard
    deviation over seeds where there are several. Empty where no stem has both. `looks` as in `layer_table`.
    """
    table = _table(records, known, looks, "weights W_c", _norms, NORMS, deviations=True)
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
    looks: Looks | None,
    title: str,
    measured: Callable[[Mapping[str, Any]], dict[str, Any]],
    names: Sequence[str],
    *,
    deviations: bool = False,
) -> "pd.DataFrame":
    import pandas as pd

    def values_of(record: Record) -> Values:
        if looks is None:
            return {(name,): value for name, value in measured(record.details).items()}
        lines = looks.get(record.run_id, ())
        return {(line["epoch"], name): value for line in lines for name, value in measured(line).items()}

    groups, notes = grouped(records, known)
    titles = (title,) if looks is None else ("epoch", title)
    rows = [
        _about(group) | dict(zip(titles, key, strict=True)) | _means(found, names, deviations) | _ids(group)
        for group in groups
        for key, found in _together(values_of(record) for record in group.records).items()
    ]
    table = without_unsaid(pd.DataFrame(rows))
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


def _ids(group: Group) -> dict[str, str]:
    return {RUN: " ".join(record.run_id for record in group.records)}


def _together(several: Iterable[Values]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for values in several:
        for key, measured in values.items():
            found.setdefault(key, []).append(measured)
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


def _layers(facts: Mapping[str, Any]) -> dict[str, Any]:
    attention = {one["place"]: one for one in facts.get("attention") or ()}
    return {one["place"]: {**attention.get(one["place"], {}), **one} for one in facts.get("layers") or ()}


def _norms(facts: Mapping[str, Any]) -> dict[str, Any]:
    last = (facts.get("stem") or {}).get("last_activation") or {}
    return {one["of"]: one for one in last.get("weights", ()) if "balance" in one}
