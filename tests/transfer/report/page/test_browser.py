"""The page in a real browser: sorting, filters, records, what it looks like."""

from pathlib import Path
from typing import Any

import pytest

from tests.transfer.report.page.browser import Browser
from tests.transfer.report.page.pages import make_run, ranked_run, stability_rows, table_of
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.figures.stability_map import heat_map
from transfer.report.page.galleries import picture_sections
from transfer.report.page.html import page
from transfer.report.page.section_types import Section
from transfer.report.tables.table import Table

pytestmark = pytest.mark.nightly
ROWS = 500
SHOWN = "[...document.querySelectorAll('#part-0 tbody tr')]"
HASHES = f"{SHOWN}.map(row => row.querySelector('a').textContent)"
OPEN = "document.querySelector('dialog h2')?.textContent.endsWith(%r) && document.querySelector('dialog').open"
CLOSED = "!document.querySelector('dialog').open && !location.hash"
VALUES = f"{SHOWN}.map(row => row.cells[2].textContent)"


def many_runs() -> list[Run]:
    parent = make_run(0, task="pretrain-dino", export="sha256:abc", run_id="pretrain-dino-toy-000000000000")
    runs = [make_run(seed, smoke=seed % 2 == 0, run_id=f"reid-toy-tiny-{seed:012x}") for seed in range(ROWS)]
    runs[3] = make_run(3, weights_id="sha256:abc", run_id=runs[3].record.run_id, notes=["a word of caution"])
    return [*runs, parent]


def many_rows(runs: list[Run]) -> Table:
    """mAP falls and rises again, with gaps; stems take turns."""
    return table_of(
        {
            "stem": [("conv", "patchify")[place % 2] for place in range(ROWS)],
            "mAP": [None if place % 50 == 7 else abs(place - 250) + place / 1000 for place in range(ROWS)],
            "lr": [(0.1, 0.02, 10.0)[place % 3] for place in range(ROWS)],
            "run": [(run.record.run_id,) for run in runs[:ROWS]],
        }
    ).select(["run", "stem", "lr", "mAP"])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a long table, a map and galleries."""
    folder = tmp_path_factory.mktemp("page")
    runs, drawn = many_runs(), ranked_run(folder / "run", draw=2)
    plot = heat_map(stability_rows())
    sections = [
        Section(title="All runs", table=many_rows(runs), note="Of every seed."),
        Section(title="Map", plot=plot),
        *picture_sections([drawn], pictures=True),
    ]
    (folder / "page.html").write_text(page("A report", sections, RunSet.of([*runs, drawn])), encoding="utf-8")
    return folder / "page.html"


@pytest.fixture
def opened(browser: Browser, written: Path) -> Browser:
    browser.open(written)
    return browser


def click_head(browser: Browser, name: str) -> Any:
    """Clicks a column's title; returns its `aria-sort`."""
    place = browser.js(f"[...document.querySelectorAll('#part-0 th')].findIndex(head => head.textContent === '{name}')")
    browser.click(f"#part-0 th:nth-child({place + 1}) button")
    return browser.js(f"document.querySelector('#part-0 th:nth-child({place + 1})').ariaSort")


def test_columns_sort_numbers_as_numbers_and_back_again(opened: Browser) -> None:
    table = many_rows(many_runs()).to_frame()
    first = opened.js(HASHES)
    assert first == [run.rpartition("-")[2] for run in table["run"]][: len(first)]
    for name, ascending in (("ascending", True), ("descending", False)):
        assert click_head(opened, "mAP") == name
        expected = table.sort_values("mAP", ascending=ascending, kind="stable", na_position="last")
        assert opened.js(HASHES) == [run.rpartition("-")[2] for run in expected["run"]][: len(first)]
    assert click_head(opened, "mAP") == "none"
    assert opened.js(HASHES) == first
    assert click_head(opened, "lr") == "ascending"
    assert opened.js(f"{SHOWN}[0].cells[1].textContent") == "0.02"
    assert opened.js("document.querySelectorAll('#part-0 th[aria-sort=ascending]').length") == 1


def test_tables_are_filtered_by_words_and_by_choices(opened: Browser) -> None:
    count = "document.querySelector('#part-0 output').value"
    assert opened.js(count) == f"{ROWS} of {ROWS} rows"
    opened.click("#part-0 input[type=search]")
    opened.type("SMOKE conv")
    assert opened.js(count) == f"250 of {ROWS} rows"
    opened.type(" 00000000000a")
    assert opened.js(HASHES) == ["00000000000a"]
    opened.click("#part-0 .tools button")
    titles = opened.js("[...document.querySelectorAll('#part-0 select')].map(select => select.title)")
    assert titles == ["stem", "lr"], "columns with few values"
    choose = "(() => { const it = document.querySelector('#part-0 select[title=%s]'); it.value = '=%s';"
    opened.js(choose % ("lr", 10) + " it.dispatchEvent(new Event('change')); })()")
    assert opened.js(count) == f"166 of {ROWS} rows"
    opened.js(choose % ("stem", "patchify") + " it.dispatchEvent(new Event('change')); })()")
    assert opened.js(count) == f"83 of {ROWS} rows"
    assert opened.js(
        f"{SHOWN}.every(row => row.cells[0].dataset.v === 'patchify' || row.cells[0].textContent === 'patchify')"
    )


def test_a_click_on_a_run_shows_its_record_and_escape_closes_it(opened: Browser) -> None:
    opened.click("#part-0 tbody tr:nth-child(4) a")
    opened.until(OPEN % "reid-toy-tiny-000000000003")
    facts = opened.js("document.querySelector('dialog').innerText")
    assert "a word of caution" in facts
    assert "50.00 %" in facts
    assert opened.js("document.activeElement.textContent") == "Close"
    opened.click("dialog dd a")
    opened.until(OPEN % "pretrain-dino-toy-000000000000")
    opened.key("Escape")
    opened.until(CLOSED)


def test_the_page_asks_for_nothing_and_runs_nothing_else(opened: Browser) -> None:
    opened.js(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.broken = 1';"
        " document.body.append(script); document.body.insertAdjacentHTML('beforeend', '<p onclick=\"broken = 1\">');"
        " document.body.lastChild.click(); })()"
    )
    assert opened.js("window.broken") is None
    requests = [event["request"]["url"] for event in opened.seen("Network.requestWillBeSent")]
    assert requests
    assert all(address.startswith(("file:", "data:image/")) for address in requests)
