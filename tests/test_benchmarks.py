"""The command that runs the benchmarks: its list is whole, and each can be asked what it does. None of them runs."""

import importlib
import sys

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks.catalogue import BENCHMARKS, FOLDER


def test_every_module_with_a_main_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [path for path in FOLDER.rglob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8")]
    modules = {".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in paths} - {"__main__"}
    assert modules == {benchmark.module for benchmark in BENCHMARKS.values()}
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name}\n  {one.summary}\n  needs: {one.needs}\n" in listed for name, one in BENCHMARKS.items())
    assert command.main(["coco_scorin"]) == 2
    assert "did you mean 'coco_scoring'" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("name", BENCHMARKS)
def test_its_imports_are_there_and_it_says_what_it_does(name: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["tests"])
    importlib.import_module(f"tests.benchmarks.{BENCHMARKS[name].module}")
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m tests.benchmarks {name}" in capsys.readouterr().out
