"""Metrics of a run by the names that rows of claims use: a score, a point of a curve, a cost, a token diagnostic."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transfer.core.errors import UserError
from transfer.engine.checkpoint import history
from transfer.records.protocol import PRETRAINING, pretraining
from transfer.records.run_set import RunSet
from transfer.records.store import Run

COST, LAYERS, HELD_OUT = "cost.", "layers.", "held_out."


def is_score(name: str) -> bool:
    """Return whether a metric is a score of the record, which per-sample results may give."""
    return not name.startswith((PRETRAINING, COST, LAYERS, HELD_OUT)) and "@" not in name


def metric_of(run: Run, name: str, runs: RunSet) -> tuple[float, float] | None:
    """Return a metric of a run and the factor to the unit in which it is shown; None if the run does not have it.

    Args:
        run: the run.
        name: top1, top1@3 (after an epoch), held_out.top1, cost.train_seconds, layers.PLACE.MEASURE,
            layers.PLACE.MEASURE@3, or one of these of the training that the weights come from, pretraining.top1.
        runs: the runs among whose `known` that training is looked for.
    """
    if name.startswith(PRETRAINING):
        parent = pretraining(run.record, runs.exports)
        folder = next((one for one in runs.known if parent and one.record.run_id == parent.run_id), None)
        return metric_of(folder, name.removeprefix(PRETRAINING), runs) if folder else None
    base, _, epoch = name.partition("@")
    value, scale = run.record.scores.get(base), 1.0
    if base.startswith(COST):
        value = run.record.cost.get(base.removeprefix(COST))
    elif base.startswith(HELD_OUT):
        base = base.removeprefix(HELD_OUT)
        value, scale = (run.record.details.get("held_out") or {}).get(base), run.record.scale(base)
    elif base.startswith(LAYERS):
        place, _, measure = base.removeprefix(LAYERS).rpartition(".")
        facts: Iterable[Mapping[str, Any]] = _at(run, "layers", epoch) if epoch else [run.record.details]
        layers = [layer for fact in facts for layer in fact.get("layers") or () if str(layer["place"]) == place]
        value = layers[-1].get(measure) if layers else None
    else:
        scale = run.record.scale(base) if base in run.record.metrics else 100.0
        if epoch:
            value = next((entry[base] for entry in reversed(_at(run, base, epoch))), None)
    return None if value is None else (float(value), scale)


def _at(run: Run, key: str, epoch: str) -> list[dict[str, Any]]:
    return [entry for entry in history(run.folder, key) if str(entry.get("epoch")) == epoch]


def values_of(wanted: Sequence[Run], name: str, runs: RunSet) -> list[float]:
    """Return a metric of runs in the unit in which it is shown. Raises UserError if one does not have it."""
    found = [metric_of(run, name, runs) for run in wanted]
    if lacking := [run.record for run, value in zip(wanted, found, strict=True) if value is None]:
        known = f"scores: {', '.join(lacking[0].scores) or 'none'}"
        raise UserError(f"{len(lacking)} of {len(wanted)} runs lack {name!r}, as {lacking[0].run_id} ({known})")
    return [value[0] * value[1] for value in found if value]
