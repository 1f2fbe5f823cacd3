"""The command that runs the benchmarks lists them, and each can be asked what it does. None of them runs."""

import sys

import pytest

from tests.benchmarks.__main__ import BENCHMARKS, main


def test_the_list_says_what_each_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n{name}\n  " in listed for name in BENCHMARKS)
    assert "  Needs facebookresearch/deit" in listed
    assert main(["coco_scorin"]) == 2
    assert "did you mean 'coco_scoring'" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("name", BENCHMARKS)
def test_it_says_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["tests"])
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"python -m tests.benchmarks {name}" in capsys.readouterr().out
