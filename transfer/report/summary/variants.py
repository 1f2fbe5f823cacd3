"""Which variants a page compares when nobody names them: the runs that differ in one part, against the usual part.

Imports no torch.
"""

from typing import Any

from transfer.records.fields import BASELINE, value_of
from transfer.records.run_set import RunSet

MOST_PAIRS = 5
"""Pairs that a page compares by itself; further ones are compared on demand."""
MOST_RUNS = 500
"""Runs beyond which nothing is compared unasked: intervals over all of them take minutes."""


def arms_to_compare(runs: RunSet) -> list[tuple[str, str]]:
    """Return selectors of pairs of variants (see `transfer.comparison.selection.select`), each against the baseline.

    Where stems or attention differ, variants are the runs with each of their values; where both do, with each pair of
    values. Where neither does, variants are backbones. A single variant gives no pairs, nor do very many runs.
    """
    if len(runs) > MOST_RUNS:
        return []
    varied = [field for field in BASELINE if len(_values(runs, field)) > 1]
    variants = _combinations(runs, varied) if varied else _values(runs, "backbone")
    if len(variants) < 2:
        return []
    usual = _selector({field: BASELINE[field] for field in varied})
    base = usual if varied and usual in variants else variants[0]
    return [(variant, base) for variant in variants if variant != base][:MOST_PAIRS]


def _values(runs: RunSet, field: str) -> list[Any]:
    """Return the values of a field that backbones have, in order of appearance."""
    found = dict.fromkeys(value_of(record, field, runs.exports) for record in runs.records)
    return [value for value in found if value is not None]


def _combinations(runs: RunSet, fields: list[str]) -> list[str]:
    """Return the selectors of the combinations of values that there are."""
    found: dict[str, None] = {}
    for record in runs.records:
        values = {field: value_of(record, field, runs.exports) for field in fields}
        if None not in values.values():
            found[_selector(values)] = None
    return list(found)


def _selector(values: dict[str, Any]) -> str:
    return ",".join(f"{field}={value}" for field, value in values.items())


def why_no_arms(runs: RunSet) -> str:
    """Return what is missing for a comparison, and how to add it."""
    if len(runs) > MOST_RUNS:
        return (
            f"{len(runs):,} runs are too many to be compared unasked. Name two variants: "
            "python -m transfer.report page RUNS --compare stem=conv stem=patchify"
        )
    if not runs.records:
        return "No finished run: there is nothing to show but what was asked for."
    record = runs.records[0]
    name, task = record.backbone.get("name"), record.task
    run = "pretrain RECIPE" if task.startswith("pretrain") else f"run {task}"
    return (
        f"One variant, {name}: there is nothing to compare it with. Add another: "
        f"python -m transfer.{run} --backbone {name} with another --stem or --attention, or another --backbone; "
        "the same options and --seeds pair the runs."
    )
