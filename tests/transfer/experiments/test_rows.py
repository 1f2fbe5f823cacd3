from operator import attrgetter

import pytest

from transfer.core.settings import config_names
from transfer.data.spec import resolve_dataset
from transfer.experiments.grid import expand
from transfer.experiments.published_rows import PublishedTable, read_paper, rows_of
from transfer.experiments.sweep_file import TIERS, read_sweep

ALL = [table for name in config_names("published") for table in read_paper(name).tables.values()]
TABLES = [table for table in ALL if table.rows]
SWEEP = attrgetter("sweep")


def test_every_cell_of_the_tables_is_there() -> None:
    tables = [table for table in TABLES if table.paper == "scaled_relu"]
    values = {table.name: [value for row in table.rows for value in row.values] for table in tables}
    counts = {name: len(found) for name, found in values.items()}
    assert counts == {"1": 13, "2": 30, "3": 8, "4": 56, "5": 12, "6": 8, "7": 10, "convergence": 6}
    crashes = {name: sum(value.crash for value in found) for name, found in values.items()}
    assert crashes == {"1": 2, "2": 5, "3": 2, "4": 16, "5": 2, "6": 0, "7": 0, "convergence": 0}
    doubts = [(value.dataset, value.metric, value.printed) for value in values["4"] if value.doubt]
    assert doubts == [("msmt17", "rank1", "715"), ("msmt17", "rank1", "36.0"), ("msmt17", "rank1", "88.6")]
    assert all(value.percent is None for value in values["4"] if value.doubt or value.crash)
    # checksums of the paper's columns, without crashes and what is in doubt
    sums = {name: round(sum(value.percent or 0 for value in found), 1) for name, found in values.items()}
    assert [*sums.values()] == [884.6, 1986.4, 482.4, 2765.4, 826.4, 649.0, 778.0, 253.8]


@pytest.mark.parametrize("table", TABLES, ids=SWEEP)
def test_a_table_has_a_sweep_that_runs_each_of_its_cells(table: PublishedTable) -> None:
    sweep = read_sweep(table.sweep, "full")
    assert sweep.paper == (table.paper, table.name)
    runnable = [row for row in table.rows if not row.reference]
    assert [row["label"] for row in rows_of(table.paper, table.name)] == [row.label for row in runnable]
    for row in table.rows:
        for value in row.values:
            assert value.dataset in sweep.steps[value.step].dataset
    for row in runnable:
        assert {value.step for value in row.values} <= set(row.steps)
    labels = {cell.label for cell in expand(sweep)}
    # a reading of one row may be the run of another
    assert len(labels) >= len(runnable) - 1


@pytest.mark.parametrize("table", [table for table in ALL if table.paper != "anchors"], ids=SWEEP)
def test_every_table_and_figure_has_its_tiers(table: PublishedTable) -> None:
    assert table.sweep in config_names("sweeps")
    for tier in TIERS:
        names = {cell.dataset for cell in expand(read_sweep(table.sweep, tier))}
        toys = {name for name in names if name.startswith("toy_")}
        stood_in = {"full": set(), "reduced": {"cifar10", "cifar100", "market1501"}}.get(tier, toys)
        assert names <= stood_in if stood_in else not any(name.startswith(("toy_", "cifar10_")) for name in names)


@pytest.mark.parametrize("name", config_names("published"))
def test_datasets_and_numbers_of_a_shipped_file_can_be(name: str) -> None:
    paper = read_paper(name)
    rows = [row for table in paper.tables.values() for row in table.rows]
    values = [value for row in rows for value in row.values]
    others = [*paper.stand_ins, *paper.versions, *(one for names in paper.stand_ins.values() for one in names)]
    for dataset in {*others, *(value.dataset for value in values)}:
        resolve_dataset(dataset)
    assert all(bool(row.steps) != bool(row.reference) for row in rows)
    assert all(value.crash or value.doubt or 0 <= float(value.printed) <= 100 for value in values)
