"""The command that runs the benchmarks: its list is whole, its table is read and written. None of them runs here."""

import csv
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import measured
from tests.benchmarks.catalogue import BENCHMARKS, FOLDER
from tests.benchmarks.measured import Measurement, append, read_measurements

LINE = Measurement("attention", "python -m tests.benchmarks attention", "2 times, or 3", "a machine", "2026-01-02", "0")


def test_every_module_with_a_main_is_listed() -> None:
    paths = [path for path in FOLDER.rglob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8")]
    modules = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in paths} - {"__main__"}
    assert modules == {benchmark.module for benchmark in BENCHMARKS.values()}


def test_the_list_has_purpose_needs_and_figures_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    text = capsys.readouterr().out
    parts = dict(zip(BENCHMARKS, text.split("\n\n")[-len(BENCHMARKS) :]))
    assert all(part.startswith(f"{name}\n  {BENCHMARKS[name].summary}\n") for name, part in parts.items())
    assert "github.com/facebookresearch/deit" in parts["parity_deit"]
    assert "  not measured" in parts["sam_step"]
    assert "2026-11-22, Intel Xeon with AMX, two cores, torch 2.15, commit c5dc6c2" in parts["coco_scoring"]
    assert "36th of pycocotools' time" in " ".join(parts["coco_scoring"].split())


def test_the_table_is_complete() -> None:
    measurements = read_measurements()
    assert {one.name for one in measurements} <= BENCHMARKS.keys()
    for one in measurements:
        assert all(vars(one).values()), one
        assert one.command.startswith(f"python -m tests.benchmarks {one.name}"), one


@pytest.mark.parametrize(("status", "lines"), [(0, 1), (1, 0)])
def test_a_run_that_succeeded_is_recorded_where_asked(
    status: int, lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []

    def main(argv: list[str]) -> int:
        seen.append(argv)
        print("2.1 times\n\n  3   MiB")
        return status

    path = tmp_path / "measured.csv"
    path.write_text("name,command,figure,machine,date,commit\n")
    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(main=main))
    monkeypatch.setattr(command, "append", lambda line: append(line, path))
    monkeypatch.setattr(measured, "this_commit", lambda: "0123abc")
    assert command.main(["ranking", "--repeats", "1", "--record"]) == status
    assert seen == [["--repeats", "1"]]
    assert "2.1 times\n\n  3   MiB" in capsys.readouterr().out
    assert command.main(["ranking"]) == status
    rows = list(csv.DictReader(path.open(newline="")))
    assert [row["figure"] for row in rows] == ["2.1 times; 3 MiB"] * lines
    assert [row["command"] for row in rows] == ["python -m tests.benchmarks ranking --repeats 1"] * lines
    assert all(row["commit"] == "0123abc" and row["machine"] and row["date"] for row in rows)
