"""`--figures FOLDER`: files for a paper, from real runs."""

import re
from pathlib import Path

import pytest

from tests.transfer.report.tables.test_comparison import both
from transfer.core.errors import UserError
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import write_figures
from transfer.report.sections import ReportRequest, sections

NAME = "conv-vs-patchify"


def test_svg_pdf_and_data_of_every_figure(tmp_path: Path) -> None:
    runs = RunSet.of(both(tmp_path / "runs"))
    request = ReportRequest(everything=True)
    folder = tmp_path / "figures"
    files = write_figures(lambda: [(one.file_name, one.plot) for one in sections(runs, request) if one.plot], folder)
    assert {file.name for file in files} == {path.name for path in (tmp_path / "figures").iterdir()}
    assert {f"{NAME}-1col.svg", f"{NAME}-2col.pdf", f"{NAME}.csv"} <= {file.name for file in files}
    svg = (tmp_path / "figures" / f"{NAME}-2col.svg").read_text()
    assert "knn top1 on toy_market" in svg, "text stays text"
    assert "currentColor" not in svg, "a paper has no text color to inherit"
    assert 'width="496.8pt"' in svg, "6.9 inches"
    narrow = (tmp_path / "figures" / f"{NAME}-1col.svg").read_text()
    assert 'width="241.2pt"' in narrow, "3.35 inches"
    assert min(map(float, re.findall(r"font-size: ([\d.]+)px", narrow))) >= 6.0
    pdf = (tmp_path / "figures" / f"{NAME}-1col.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "letters as a font, not as outlines"


def test_nothing_to_draw(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="report figures: these runs give no figure"):
        write_figures(list, tmp_path)
