"""What holds of every drawing: hostile names, the user's style, the page's colors."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib

from tests.transfer.report.figures.plots import SVG, all_plots, rows, words
from tests.transfer.report.page.pages import HOSTILE, write_history
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import INK, plain
from transfer.report.page.html import page
from transfer.report.page.section_types import Section


def test_hostile_names_are_texts_and_no_formulas(tmp_path: Path) -> None:
    write_history(tmp_path, [3.0, 2.0])
    for plot in all_plots(tmp_path, HOSTILE):
        tree = ElementTree.fromstring(plot.svg)
        tags = {item.tag.removeprefix(SVG) for item in tree.iter()}
        assert tags <= {"svg", "g", "path", "text", "title", "tspan", "defs", "clipPath", "rect", "use", "pattern"}
        assert not [key for item in tree.iter() for key in item.attrib if key.lower().startswith("on")]
        shown = " ".join(words(plot))
        for name in HOSTILE:
            assert plain(name)[:8].strip() in shown, name
        assert len(rows(plot)) >= len(HOSTILE)


def test_labels_are_one_short_line() -> None:
    assert plain("a\n\tb\x00c") == "a b\\x00c"
    assert plain("x" * 100, 10) == "x" * 9 + "…"


def test_equal_rows_give_equal_bytes_whatever_the_users_style(tmp_path: Path) -> None:
    write_history(tmp_path, [3.0, 2.0])
    first = all_plots(tmp_path, ["name"])
    with matplotlib.rc_context({"text.color": "red", "font.size": 40, "axes.grid": True, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        second = all_plots(tmp_path, ["name"])
        assert dict(matplotlib.rcParams) == before
    assert first == second


def test_drawings_take_the_pages_color_and_set_no_rules_for_it(tmp_path: Path) -> None:
    write_history(tmp_path, [3.0, 2.0])
    plots = all_plots(tmp_path, ["name"])
    for plot in plots:
        assert plot.svg.startswith("<svg")
        assert "currentColor" in plot.svg
        assert INK not in plot.svg
        assert "<style" not in plot.svg
        assert "<metadata" not in plot.svg
    text = page("t", [Section(title="s", plot=plot) for plot in plots], RunSet.of([])).partition("<main")[2]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids}), "no id stands in two drawings"
    assert {*re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text)} <= {*ids}
