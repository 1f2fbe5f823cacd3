"""Charts on the page in a real browser: what a part says, where a click leads, arms hidden, one colour each."""

import pytest

from tests.transfer.records.recorded import made
from tests.transfer.report.page.browser import Browser
from tests.transfer.report.page.pages import write_history
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.html import page
from transfer.report.page.sections import ReportRequest, sections

pytestmark = pytest.mark.nightly
HOSTILE = "\"><script>document.title='in'</script>"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunSet:
    """Two stems with two seeds each, with losses and costs, and one with a hostile name."""
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for stem in ("conv", "patchify", HOSTILE):
        for seed in (0, 1) if stem != HOSTILE else (0,):
            record = made(
                stem=stem,
                seed=seed,
                scores={"mAP": 0.4 + 0.1 * seed},
                cost={"gflops": 1.0 + len(stem), "train_seconds": 30.0, "device_hours": 0.01 * len(stem)},
            )
            write_history(folder / record.run_id, [3.0, 2.0, 1.0 + seed])
            found.append(Run(folder / record.run_id, record))
    return RunSet.of(found)


@pytest.fixture(scope="module")
def charts(browser: Browser, runs: RunSet, tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """The browser with the page of these runs."""
    file = tmp_path_factory.mktemp("page") / "page.html"
    parts = sections(runs, ReportRequest(everything=True, draws=100))
    file.write_text(page("Charts", parts, runs), encoding="utf-8")
    browser.open(file)
    return browser


def figure(browser: Browser, title: str) -> str:
    """The selector of the figure under a title, whose part is unfolded."""
    name = browser.js(
        f"[...document.querySelectorAll('section')].find(part => part.querySelector('h2').textContent === '{title}').id"
    )
    browser.js(f"document.querySelectorAll('#{name} details').forEach(part => part.open = true)")
    return f"#{name} figure.plot"


def test_buttons_hide_and_show_an_arm(charts: Browser) -> None:
    place = figure(charts, "reid: training")
    shown = (
        f"[...document.querySelectorAll('{place} [data-arm]')]"
        ".filter(part => getComputedStyle(part).display !== 'none').map(part => part.dataset.arm)"
    )
    before = charts.js(shown)
    names = charts.js(f"[...document.querySelectorAll('{place} .arms button')].map(button => button.textContent)")
    assert set(names) == set(before)
    charts.click(f"{place} .arms button")
    assert charts.js(f"document.querySelector('{place} .arms button').ariaPressed") == "false"
    assert charts.js(shown) == [arm for arm in before if arm != names[0]]
    charts.click(f"{place} .arms button")
    assert charts.js(shown) == before


def test_an_arm_has_one_colour_in_all_figures(charts: Browser) -> None:
    """By what is drawn: the stroke of a curve, and the fill of the points of the same backbone."""
    curves, points = figure(charts, "reid: training"), figure(charts, "reid: score against cost")
    colour = (
        "[...document.querySelectorAll('%s [data-arm]')].map("
        "part => [part.dataset.arm, /(?:stroke|fill): (#[0-9a-f]{6})/.exec(part.innerHTML)[1]])"
    )
    of_curves, of_points = (dict(charts.js(colour % place)) for place in (curves, points))
    assert len(of_curves) == 3
    assert of_curves == of_points
    assert len(set(of_curves.values())) == 3
