"""The samples on which two variants differ most: queries or images that one finds and the other does not."""

from collections.abc import Sequence

import numpy as np

from transfer.comparison.compare_arms import ComparedScore
from transfer.comparison.paired_intervals import read_outcomes
from transfer.core.errors import UserError
from transfer.records import per_sample
from transfer.records.store import Run
from transfer.report.tables.table import SIGNIFICANT, Column, Row, Table

EACH_WAY = 10
"""Samples that are shown in favour of each variant."""


def differing_samples(row: ComparedScore) -> Table:
    """Return the samples with the largest differences of a score, the best for the first variant first.

    Columns: `sample`; `a`, `b`: its value in each variant, a mean over the runs that it counts in, in percent or in the
    score's own unit; `difference`. Samples without a difference are left out, and so are those that count in the runs
    of one variant alone. The table is empty where samples do not add up to the score, or outcomes cannot be read.
    """
    digits = None if row.percent else SIGNIFICANT
    columns = [Column(name, digits=1, significant_digits=digits) for name in ("a", "b", "difference")]
    try:
        a, b = (_means(runs, row.score) for runs in row.matched.variants)
    except (UserError, per_sample.UnusableOutcomes):
        return Table(columns, [])
    differences = {name: row.scale * (a[name] - b[name]) for name in a.keys() & b.keys()}
    ordered = sorted((name for name in differences if differences[name]), key=lambda name: (-differences[name], name))
    chosen = ordered if len(ordered) <= 2 * EACH_WAY else [*ordered[:EACH_WAY], *ordered[-EACH_WAY:]]
    rows: list[Row] = [
        {"sample": name, "a": row.scale * a[name], "b": row.scale * b[name], "difference": differences[name]}
        for name in chosen
    ]
    return Table.from_rows(rows, columns)


def _means(runs: Sequence[Run], score: str) -> dict[str, float]:
    """Return the mean over runs of each sample's value, by the sample's name; empty if samples have none."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if not run.record.scored:
            continue
        outcomes = read_outcomes(run)
        of_run = per_sample.values_of(run.record, score, outcomes)
        if of_run is None:
            return {}
        for name, value in zip(outcomes["sample"].tolist(), np.asarray(of_run).tolist(), strict=True):
            if value == value:  # a query that does not count has nan
                values.setdefault(str(name), []).append(float(value))
    return {name: sum(of_sample) / len(of_sample) for name, of_sample in values.items()}
