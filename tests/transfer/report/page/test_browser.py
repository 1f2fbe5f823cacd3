"""The page in a real browser: sorting, filters, records, what it looks like."""

from pathlib import Path

import pytest

from tests.transfer.report.page.pages import in_browser, make_run, ranked_run, table_of
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.galleries import picture_sections
from transfer.report.page.html import Section, page
from transfer.report.tables.table import Table

pytestmark = pytest.mark.nightly
ROWS = 500
HELP = """
const one = (selector) => document.querySelector(selector);
const rows = () => [...document.querySelectorAll('#part-0 tbody tr')].map((row) => row.querySelector('a').textContent);
const later = () => new Promise((done) => setTimeout(done, 500));
const put = (selector, value, kind) => { one(selector).value = value; one(selector).dispatchEvent(new Event(kind)); };
"""


def many_runs() -> list[StoredRun]:
    parent = make_run(0, task="pretrain-dino", export="sha256:abc", run_id="pretrain-dino-toy-000000000000")
    runs = [make_run(seed, smoke=seed % 2 == 0, run_id=f"reid-toy-tiny-{seed:012x}") for seed in range(ROWS)]
    runs[3] = make_run(3, weights_id="sha256:abc", run_id=runs[3].record.run_id, notes=["a word of caution"])
    return [*runs, parent]


def many_rows(runs: list[StoredRun]) -> Table:
    """mAP falls and rises again, with gaps; stems take turns."""
    return table_of(
        stem=[("conv", "patchify")[place % 2] for place in range(ROWS)],
        mAP=[None if place % 50 == 7 else abs(place - 250) + place / 1000 for place in range(ROWS)],
        lr=[(0.1, 0.02, 10.0)[place % 3] for place in range(ROWS)],
        run=[(run.record.run_id,) for run in runs[:ROWS]],
    ).select(["run", "stem", "lr", "mAP"])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with a long table and galleries."""
    runs, drawn = many_runs(), ranked_run(tmp_path_factory.mktemp("page") / "run", draw=2)
    sections = [Section(title="All runs", table=many_rows(runs)), *picture_sections([drawn], pictures=True)]
    return page("A report", sections, StoredRuns.of([*runs, drawn]))


def test_columns_sort_numbers_as_numbers_and_back_again(text: str, tmp_path: Path) -> None:
    script = """const states = [['none', rows()]];
        for (const name of ['mAP', 'mAP', 'mAP', 'lr']) {
            const head = [...document.querySelectorAll('#part-0 th')].find((head) => head.textContent === name);
            head.querySelector('button').click();
            states.push([head.ariaSort, rows()]);
        }
        return states;"""
    table = many_rows(many_runs()).to_frame()
    rising, falling, by_rate = (
        table.sort_values(name, ascending=up, kind="stable", na_position="last")
        for name, up in (("mAP", True), ("mAP", False), ("lr", True))
    )
    states = in_browser(tmp_path, text, HELP + script)
    directions = ("none", "ascending", "descending", "none", "ascending")
    assert [state for state, _ in states] == [*directions]
    for (_, shown), rows in zip(states, (table, rising, falling, table, by_rate), strict=True):
        assert shown == [run.rpartition("-")[2] for run in rows["run"]][: len(shown)]


def test_tables_are_filtered_by_words_and_by_choices(text: str, tmp_path: Path) -> None:
    script = """const counts = [], count = () => counts.push(one('#part-0 output').value);
        count();
        put('#part-0 input', 'SMOKE conv', 'input'); count();
        put('#part-0 input', 'SMOKE conv 00000000000a', 'input'); counts.push(rows());
        one('#part-0 .tools button').click();
        counts.push([...document.querySelectorAll('#part-0 select')].map((select) => select.title));
        put('#part-0 select[title=lr]', '=10', 'change'); count();
        put('#part-0 select[title=stem]', '=patchify', 'change'); count();
        return counts;"""
    numbers = [f"{number} of {ROWS} rows" for number in (500, 250, 166, 83)]
    expected = [*numbers[:2], ["00000000000a"], ["stem", "lr"], *numbers[2:]]  # columns with few values
    assert in_browser(tmp_path, text, HELP + script) == expected


def test_a_click_on_a_run_shows_its_record_and_closes_it(text: str, tmp_path: Path) -> None:
    script = """const told = () => [one('dialog h2').textContent, one('dialog').innerText];
        const state = () => [one('dialog').open, ...told(), document.activeElement.textContent];
        one('#part-0 tbody tr:nth-child(4) a').click(); await later();
        const states = [state()];
        one('dialog dd a').click(); await later(); states.push(state());
        one('dialog button').click(); await later(); states.push(state());
        return states;"""
    child, parent, closed = in_browser(tmp_path, text, HELP + script)
    assert (child[0], parent[0], closed[0]) == (True, True, False)
    assert child[1].endswith("reid-toy-tiny-000000000003")
    assert all(text in child[2] for text in ("a word of caution", "rank1"))
    assert child[3] == "Close"
    assert parent[1].endswith("pretrain-dino-toy-000000000000")
