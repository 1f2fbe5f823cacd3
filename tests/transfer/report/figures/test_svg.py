"""What holds of every drawing: hostile names, the user's style, the page's colors."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import pytest

from tests.transfer.report.figures.plots import SVG, all_plots, rows, words
from tests.transfer.report.page.pages import HOSTILE, write_history
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import INK, Plot, plain
from transfer.report.page.html import page
from transfer.report.page.section_types import Section


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> list[Plot]:
    """Every plot of an ordinary name."""
    return drawn(tmp_path_factory.mktemp("plots"), ["name"])


def drawn(folder: Path, names: Sequence[str]) -> list[Plot]:
    write_history(folder, [3.0, 2.0])
    return all_plots(folder, names)


def test_hostile_names_are_texts_and_no_formulas(tmp_path: Path) -> None:
    for plot in drawn(tmp_path, HOSTILE):
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


def test_equal_rows_give_equal_bytes_whatever_the_users_style(plots: list[Plot], tmp_path: Path) -> None:
    with matplotlib.rc_context({"text.color": "red", "font.size": 40, "axes.grid": True, "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert drawn(tmp_path, ["name"]) == plots
        assert dict(matplotlib.rcParams) == before


def test_drawings_take_the_pages_color_and_set_no_rules_for_it(plots: list[Plot]) -> None:
    for plot in plots:
        assert plot.svg.startswith("<svg")
        assert "currentColor" in plot.svg
        assert not [word for word in (INK, "<style", "<metadata") if word in plot.svg]
    text = page("t", [Section(title="s", plot=plot) for plot in plots], RunSet.of([])).partition("<main")[2]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids}), "no id stands in two drawings"
    assert {*re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text)} <= {*ids}
