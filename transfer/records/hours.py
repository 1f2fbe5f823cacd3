"""Hours that runs took, of GPUs or of a processor's cores. Imports no torch."""

import math
from collections import defaultdict
from collections.abc import Iterable

from transfer.records.record import Record


def hours(record: Record) -> float:
    """Return the GPU hours of a run; on CPUs the core hours, over threads and loader processes of each rank.

    The hours in which other runs extracted features that this run read from a store are included; nan where hours are
    not recorded.
    """
    own, found = record.cost.get("device_hours"), record.cost.get("found_hours", 0.0)
    if own is None or found is None:
        return math.nan
    cores = (record.environment.get("threads") or 1) + (record.environment.get("workers") or 0)
    return float(own) * (1 if kind_of_hours(record) == "GPU" else cores) + float(found)


def kind_of_hours(record: Record) -> str:
    """Return "GPU" or "core", by the type of the device."""
    return "GPU" if record.environment.get("device_type") == "cuda" else "core"


def total_hours(records: Iterable[Record]) -> str | None:
    """Return the hours of runs, each once, by kind: "1.2 GPU + 0.1 core"; None without runs, or where
    one has none recorded."""
    kinds: defaultdict[str, float] = defaultdict(float)
    for record in {record.run_id: record for record in records}.values():
        kinds[kind_of_hours(record)] += hours(record)
    if any(map(math.isnan, kinds.values())):
        return None
    return " + ".join(f"{took:.3g} {kind}" for kind, took in kinds.items()) or None
