"""The page answers first: its parts in the order of a reader's questions, made from real comparisons."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.transfer.report.page.browser import Browser
from tests.transfer.report.tables.test_comparison import compared, made
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.html import page
from transfer.report.page.sections import ReportRequest, sections
from transfer.report.summary.sentences import answer

COST = {"gflops": 4.0, "images_per_second": 100.0, "params": 5e6, "device_hours": 0.5}


def runs(root: Path) -> list[Run]:
    """Three seeds of two stems, the conv stem also at a rate at which it breaks down."""
    good = [made(root, stem, seed=seed, cost=COST) for stem in ("conv", "patchify") for seed in range(3)]
    return [*good, made(root, "conv", seed=0, lr=0.3, broke=True)]


def titles(root: Path, **asked: object) -> list[tuple[str, bool]]:
    request = ReportRequest(everything=True, **asked)  # type: ignore[arg-type]
    return [(part.title, part.folded) for part in sections(RunSet.of(runs(root)), request)]


def test_the_answer_is_first_and_tables_are_folded(tmp_path: Path) -> None:
    found = titles(tmp_path)
    assert [title for title, folded in found if not folded] == [
        "The answer",
        "Effects of stem conv against stem patchify",
        "knn: score against cost",
        "stem=conv against stem=patchify",
    ]
    assert [title for title, folded in found if folded][:2] == [
        "Where variants differ most: knn top1 on toy_market, stem conv against stem patchify",
        "knn",
    ]


def test_what_the_page_says_is_what_the_comparison_has(tmp_path: Path) -> None:
    shown = RunSet.of(runs(tmp_path))
    text = page("t", sections(shown, ReportRequest(everything=True)), shown)
    said = unescape(re.sub("<[^>]*>", "\n", text))
    for line in str(answer(compared(shown.runs, "stem=conv", "stem=patchify"), shown)).splitlines():
        assert line in said


def test_arms_by_name_replace_those_found(tmp_path: Path) -> None:
    named = titles(tmp_path, compare=[("stem=patchify", "stem=conv")])
    assert "Effects of stem patchify against stem conv" in dict(named)
    assert "Effects of stem conv against stem patchify" not in dict(named)


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_axe_finds_no_fault(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """The rules of axe-core on a page with every part unfolded: names, roles, contrast, landmarks, keyboard."""
    package = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
    made_runs = RunSet.of(runs(tmp_path))
    file = tmp_path / "page.html"
    file.write_text(page("t", sections(made_runs, ReportRequest(everything=True)), made_runs))
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.call("Emulation.setEmulatedMedia", features=[scheme])
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(file)
    browser.js("document.querySelectorAll('details').forEach(part => part.open = true)")
    browser.js((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8") + "; 0")
    assert browser.js("document.documentElement.scrollWidth") <= width
    found = browser.js(
        "axe.run().then(found => found.violations.map(one => `${one.impact} ${one.id}: ${one.nodes[0].html}`))"
    )
    assert found == []
    assert browser.js("axe.run().then(found => found.passes.length)") > 15, "it has looked at the page"
