"""Names from records cannot make a terminal do anything, in any format that is printed."""

from pathlib import Path

import pytest

from backbones.runtime.visible_text import visible, visible_lines
from tests.transfer.records.recorded import made
from tests.transfer.report.test_command import store
from transfer.report.__main__ import main

NAME = "a\x1b]0;title\x07\x1b[31m\u202eb\u2066"


@pytest.mark.parametrize("kind", ["terminal", "markdown", "csv", "jsonl", "latex"])
def test_no_format_prints_control_characters(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = made()
    record.backbone["name"] = record.dataset["name"] = NAME
    folder = store(tmp_path / "runs", record)
    assert main([str(folder), "--smoke", "--dirty", "--format", kind]) == 0
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & {*printed}
    assert "title" in printed


def test_lines_stay_lines() -> None:
    assert visible_lines("a\nb\x1b\n") == "a\nb\\x1b\n"
    assert visible("a\nb") == "a\\nb"
