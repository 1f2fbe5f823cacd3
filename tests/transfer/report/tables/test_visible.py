"""Names from records cannot make a terminal do anything, in any format that is printed."""

import re
from pathlib import Path

import pytest

from tests.transfer.records.recorded import made
from tests.transfer.report.test_command import store
from transfer.report.__main__ import main
from transfer.report.tables.text import without_tags

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


@pytest.mark.parametrize("suffix", ["html", "md", "tex", "card.md"])
def test_no_file_for_readers_has_control_characters_or_tags_of_a_name(suffix: str, tmp_path: Path) -> None:
    record = made(lr=0.5)
    record.backbone["name"] = record.dataset["name"] = f"{NAME}<script>ran()"
    folder, file = store(tmp_path / "runs", record, made()), tmp_path / f"x.{suffix}"
    card = ["card", "--run", record.run_id] if suffix == "card.md" else []
    assert main([*card, folder, "--output", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & {*text}
    assert "title" in text
    body = text.rpartition("---\n\n")[2] if suffix == "card.md" else text  # before it stands YAML
    assert re.search(r"(?<!\\)<script>ran", body) is None or suffix == "tex"


def test_a_backslash_before_a_tag_does_not_free_it() -> None:
    assert without_tags("\\<script>") == "\\&lt;script>"
