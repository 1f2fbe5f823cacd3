"""The report command: what it shows, what it leaves out, and how it says so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ENVIRONMENT
from tests.transfer.records.recorded import broken, made
from transfer.records.record import Record
from transfer.records.store import Store
from transfer.report.__main__ import main
from transfer.report.tables.text import without_tags

Captured = pytest.CaptureFixture[str]


def store(root: Path, *records: Record) -> str:
    root.mkdir(parents=True, exist_ok=True)
    for record in records:
        (root / record.run_id).mkdir()
        Store(root).write(record, "lr: 0.05\n", {})
    return str(root)


def test_smoke_runs_and_changed_files_stay_out_unless_asked_for(tmp_path: Path, capsys: Captured) -> None:
    dirty = made(seed=2)
    dirty.environment["dirty"] = True
    runs = store(tmp_path / "runs", made(), made(seed=1, smoke=True), dirty)
    assert main([runs, "--per-run"]) == 0
    said = capsys.readouterr()
    assert len(re.findall(r"[0-9a-f]{12} \|\n", said.out)) == 1
    assert "1 run of --smoke excluded; --smoke shows them" in said.err
    assert "1 run of changed files excluded; --dirty shows them" in said.err
    assert main([runs, "--per-run", "--smoke", "--dirty"]) == 0
    said = capsys.readouterr()
    assert len(re.findall(r"[0-9a-f]{12} \|\n", said.out)) == 3
    assert all(mark in said.out for mark in ("(smoke", "(dirty"))


def test_damaged_newer_and_unfinished_folders_are_named_and_the_rest_is_shown(tmp_path: Path, capsys: Captured) -> None:
    runs = Path(store(tmp_path / "runs", made()))
    for name, text in (("torn", '{"schema": 1, "run'), ("newer", '{"schema": 99}')):
        (runs / name).mkdir()
        (runs / name / "record.json").write_text(text)
    (runs / "failed").mkdir()
    (runs / "failed" / "error.txt").write_text("Traceback\nRuntimeError: the disk is full")
    assert main([str(runs)]) == 0
    said = capsys.readouterr()
    assert "toy_market" in said.out
    assert [text for text in ("torn", "schema 99", "update", "failed") if text not in said.err] == []
    assert main([str(runs), "--output", str(tmp_path / "table.tex")]) == 0
    assert (tmp_path / "table.tex").read_text().count("% a run was not counted: ") == 2


def test_costs_of_a_pivot_are_columns_of_it(tmp_path: Path, capsys: Captured) -> None:
    runs = store(tmp_path / "runs", made(cost={"params": 5_700_000, "gflops": 2.5}))
    assert main([runs, "--cost", "--format", "markdown"]) == 0
    (heading, _, row) = re.findall(r"^\|.*", capsys.readouterr().out, re.MULTILINE)
    assert re.split(r" *\| *", heading)[1:4] == ["variant", "params (M)", "GFLOPs"]
    assert re.split(r" *\| *", row)[1:4] == ["tiny", "5.7", "2.5"]


def test_a_map_shows_breakdowns_and_scores(tmp_path: Path, capsys: Captured) -> None:
    runs = store(tmp_path / "runs", made(lr=0.01), made(lr=0.1), broken("nonfinite", lr=10.0))
    assert main([runs, "--heatmap", "lr", "warmup_epochs"]) == 0
    said = capsys.readouterr().out
    assert "nonfinite" in said
    assert "## Stability map: largest stable lr" in said
    assert main(["map", runs]) == 0
    assert capsys.readouterr().out == said, "rate and warm-up are the default"


def test_words_that_belong_together(tmp_path: Path, capsys: Captured) -> None:
    runs = store(tmp_path / "runs", made())
    for words, says in (
        (["--paper", "scaled_rellu", "--table", "4"], "did you mean 'scaled_relu'"),
        (["--paper", "scaled_relu"], "--paper and --table belong together"),
        (["--paper", "pointwise", "--figure", "5"], "no figure 5 (there are figure 1, figure 2, figure 3, figure 4)"),
        (["--margin", "0", "--compare", "a", "b"], "--margin: a difference in points, above 0"),
        (["compare"], "--compare: needs two variants"),
        (["compare", "--by", "stem"], "--by is not an option of `report compare`; use `report map`, `report page`"),
        (["--format", "parquet"], "name it with --output"),
        (["--output", "x.tab"], "x.tab: end it in one of .md, .txt"),
    ):
        at = words[0] == "compare"
        assert main([*words[:at], runs, *words[at:]]) == 2
        assert says in capsys.readouterr().err


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, capsys: Captured) -> None:
    runs, target = store(tmp_path / "runs", made(), broken("nonfinite", lr=10.0)), tmp_path / "page.html"
    assert main(["page", runs, "--output", str(target)]) == 0
    text = target.read_text()
    assert text.startswith("<!doctype html>")
    assert "<svg" in text, "a rate that was varied gets its map"
    assert main([runs, "--format", "html", "--output", str(tmp_path / "none" / "page.html")]) == 1
    assert "--output" in capsys.readouterr().err


def test_a_card_of_an_unknown_run_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    record = made()
    runs = store(tmp_path / "runs", record)
    assert main(["card", runs, "--run", record.run_id]) == 0
    assert capsys.readouterr().out.startswith("---\n")
    assert main(["card", runs, "--run", "reid-none"]) == 1
    assert "--run: 'reid-none' not found in" in capsys.readouterr().err


def test_a_report_to_a_full_device_is_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "transfer.report", store(tmp_path / "runs", made())]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["report", "error"]


NAME = "a\x1b]0;title\x07\x1b[31m\u202eb\u2066"


@pytest.mark.parametrize("kind", ["terminal", "csv", "md", "tex", "html", "card.md"])
def test_no_format_has_control_characters_nor_tags_for_readers(kind: str, tmp_path: Path, capsys: Captured) -> None:
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
