from operator import attrgetter
from typing import Any

import pytest

from transfer.core.errors import UsageError
from transfer.experiments.grid import expand
from transfer.experiments.published_rows import PublishedTable, paper_names, parse_paper, read_paper, rows_of
from transfer.experiments.sweep_file import TIERS, read_sweep, sweep_names

ALL = [table for name in paper_names() for table in read_paper(name).tables.values()]
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
    assert table.sweep in sweep_names()
    for tier in TIERS:
        names = {cell.dataset for cell in expand(read_sweep(table.sweep, tier))}
        toys = {name for name in names if name.startswith("toy_")}
        stood_in = {"full": set(), "reduced": {"cifar10", "cifar100", "market1501"}}.get(tier, toys)
        assert names <= stood_in if stood_in else not any(name.startswith(("toy_", "cifar10_")) for name in names)


def content() -> dict[str, Any]:
    value = {"step": "deit", "dataset": "imagenet1k", "top1": 79.8}
    row = {"label": "baseline", "deit": {"lr": {"printed": 5e-4, "used": [1e-3]}}, "values": [value]}
    table = {"title": "t", "notes": [], "rows": [row]}
    return {"title": "a", "source": "b", "stand_ins": {"imagenet1k": ["toy_digits"]}, "tables": {"1": table}}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("titel",), "x", r"file: unknown key 'titel'; did you mean 'title'"),
        (("stand_ins",), {"imagenet1k": ["toy_digit"]}, "toy_digit.*did you mean"),
        (("versions",), {"msmt71": "V1"}, "msmt71.*did you mean 'msmt17'"),
        (("tables", "1", "row"), [], "table 1: unknown key 'row'"),
        (("tables", "1", "rows", 0, "reference"), "other", "or `reference: WHY`"),
        (("tables", "1", "rows", 0, "values", 0, "step"), "diet", "the step 'diet'; did you mean 'deit'"),
        (("tables", "1", "rows", 0, "values", 0, "top1"), "crashed", "top1: 'crashed' is neither"),
        (("tables", "1", "rows", 0, "values", 0, "top1"), 798, "top1: 798 is neither"),
        (("tables", "1", "rows", 0, "values", 0, "top1"), {"printed": "7 9"}, "top1: `doubt` is missing"),
        (("tables", "1", "rows", 0, "values", 0, "dataset"), "imagenet", "unknown dataset 'imagenet'"),
    ],
)
def test_a_wrong_file_names_the_place(path: tuple[Any, ...], value: Any, said: str) -> None:
    wrong = place = content()
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(UsageError, match=said):
        parse_paper("p", wrong, "file")
