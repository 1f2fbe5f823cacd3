"""The tables that `transfer.run` prints of its runs, new and existing."""

from collections.abc import Sequence

from transfer.records.evidence import is_seeded
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.render.terminal import shows_colors, terminal
from transfer.report.tables.dataset_means import over_datasets
from transfer.report.tables.scores import TRAIN_SECONDS, each_run
from transfer.report.tables.summary import summary
from transfer.report.tables.table import RUN


def run_table(records: Sequence[Record]) -> str:
    """Return a table with a row per record, and means over seeds and datasets where there are several.

    Of the standard errors only the primary score's is shown.
    """
    runs = RunSet.of_records(records)
    rows = each_run(runs)
    primary = {f"{record.primary} se" for record in records}
    hidden = [name for name in rows.names if name.endswith(" se") and name not in primary]
    tables = [rows.without(TRAIN_SECONDS, *hidden)]
    if len({record.seed for record in records}) > 1 and any(map(is_seeded, records)):
        tables.append(summary(runs).without(RUN))
    tables.append(over_datasets(runs).without(RUN))
    return "\n\n".join(terminal(table, color=shows_colors()) for table in tables if len(table))
