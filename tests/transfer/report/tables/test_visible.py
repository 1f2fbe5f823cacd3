"""Names from records cannot make a terminal do anything, in any format that is printed."""

import re
from pathlib import Path

import pytest

from tests.transfer.records.recorded import made
from tests.transfer.report.test_command import store
from transfer.report.__main__ import main
from transfer.report.tables.text import without_tags

NAME = "a\x1b]0;title\x07\x1b[31m\u202eb\u2066"


@pytest.mark.parametrize("kind", ["terminal", "csv", "md", "tex", "html", "card.md"])
def test_no_format_has_control_characters_and_none_for_readers_has_tags(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = made(lr=0.5)
    record.backbone["name"] = record.dataset["name"] = f"{NAME}<script>ran()"
    folder, file = store(tmp_path / "runs", record, made()), tmp_path / f"x.{kind}"
    card = ["card", "--run", record.run_id] if kind == "card.md" else []
    printed = kind in ("terminal", "csv")
    assert main([*card, folder, *(("--format", kind) if printed else ("--output", str(file)))]) == 0
    text = capsys.readouterr().out if printed else file.read_text(encoding="utf-8")
    assert not {"\x1b", "\x07", "\u202e", "\u2066"} & {*text}
    assert "title" in text
    body = text.rpartition("---\n\n")[2] if kind == "card.md" else text  # before it stands YAML
    assert kind not in ("html", "md", "card.md") or re.search(r"(?<!\\)<script>ran", body) is None


def test_a_backslash_before_a_tag_does_not_free_it() -> None:
    assert without_tags("\\<script>") == "\\&lt;script>"
