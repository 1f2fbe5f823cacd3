"""The tables that `transfer.run` prints of its runs, new and existing."""

from collections.abc import Sequence
from pathlib import Path

from transfer.records.evidence import is_seeded
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run, Store
from transfer.report.render.terminal import shows_colors, terminal
from transfer.report.tables.columns import COSTS
from transfer.report.tables.dataset_means import over_datasets
from transfer.report.tables.scores import TRAIN_SECONDS, each_run
from transfer.report.tables.summary import summary
from transfer.report.tables.table import RUN


def run_table(records: Sequence[Record], out: Path) -> str:
    """Return a table with a row per record, and means over seeds and datasets where there are several.

    Intervals stand in the place of deviations and standard errors.

    Args:
        records: the records.
        out: folder of their runs.
    """
    runs = RunSet.of(Run(Store(out).folder(record.run_id), record) for record in records)
    tables = [each_run(runs, intervals=True).without(TRAIN_SECONDS)]
    if len({record.seed for record in records}) > 1 and any(map(is_seeded, records)):
        tables.append(summary(runs).without(RUN, *COSTS))
    tables = [table.without(*(name for name in table.names if name.endswith((" sd", " se")))) for table in tables]
    tables.append(over_datasets(runs).without(RUN))
    smoke = " --smoke" * any(record.smoke for record in records)
    more = f"python -m transfer.report {out}{smoke} --per-run --format csv"
    return "\n\n".join(terminal(table, color=shows_colors(), more=more) for table in tables if len(table))
