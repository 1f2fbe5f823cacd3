"""Names from records cannot make a terminal do anything, in any format that is printed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from backbones.errors import visible, visible_lines
from tests.transfer.records.recorded import made
from tests.transfer.report.test_command import store
from transfer.report.__main__ import main
from transfer.report.render.latex import latex
from transfer.report.render.text import without_tags
from transfer.report.tables.table import Table
from transfer.verify.__main__ import main as verify

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


def test_what_is_said_of_records_has_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record that is left out, and one that does not verify."""
    record = replace(made(primary=NAME), run_key=NAME)
    folder = Path(store(tmp_path / "runs", record))
    (folder / "newer").mkdir()
    (folder / "newer" / "record.json").write_text(json.dumps({"schema": NAME}))
    main([str(folder)])
    verify([str(folder)])
    told = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & {*told.out, *told.err}
    assert (told.out + told.err).count("title") >= 2


@pytest.mark.parametrize("suffix", ["html", "md", "tex", "card.md"])
def test_no_file_for_readers_has_control_characters_or_tags_of_a_name(suffix: str, tmp_path: Path) -> None:
    record = made(lr=0.5)
    record.backbone["name"] = record.dataset["name"] = f"{NAME}<script>ran()"
    folder, file = store(tmp_path / "runs", record, made()), tmp_path / f"x.{suffix}"
    assert main([folder, "--output", str(file), *(["--card", record.run_id] if suffix == "card.md" else [])]) == 0
    text = file.read_text(encoding="utf-8")
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & {*text}
    assert "title" in text
    body = text.rpartition("---\n\n")[2] if suffix == "card.md" else text  # before it stands YAML
    assert re.search(r"(?<!\\)<script>ran", body) is None or suffix == "tex"


def test_latex_that_python_returns_has_no_control_characters() -> None:
    table = Table.from_rows([{NAME: NAME, "mAP": 1.0}, {NAME: "b", "mAP": 2.0}])
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & {*latex(table)}


def test_lines_stay_lines() -> None:
    assert visible_lines("a\nb\x1b\n") == "a\nb\\x1b\n"
    assert visible("a\nb") == "a\\nb"


def test_a_backslash_before_a_tag_does_not_free_it() -> None:
    assert without_tags("\\<script>") == "\\&lt;script>"
