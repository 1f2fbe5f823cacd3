"""The sweep command: its words, and one small sweep from end to end."""

from pathlib import Path

import pytest

from backbones.settings import write_yaml
from tests.transfer.sweep.test_runner import CLASSIFY, PRETRAIN, QUICK, InThisProcess
from transfer.sweep.__main__ import main


def test_the_shipped_sweeps_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out.split()
    assert {"demo", "bench", "cross", "stability", "scaled_relu_table4", "pointwise_figure2"} <= {*listed}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "usage:"),
        (["demmo"], "did you mean 'demo'"),
        (["--tier", "smoke"], "the sweep comes first"),
        (["bench", "--stem", "conv", "--against", "conv"], "give the part to compare and others, each once"),
        (["demo", "--stem", "conv"], "no part to vary"),
        (["bench", "--stem", "conv", "--against", "xiao", "--dry-run"], "sweep bench has several scales; add --tier"),
        (["demo", "--set", "pretrain.epoch=1"], "did you mean 'epochs'"),
    ],
)
def test_wrong_words_are_named(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert says in said.out + said.err


def test_a_sweep_ends_in_a_table_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transfer.sweep.__main__._launcher", lambda *_: InThisProcess())
    path, out = tmp_path / "mine.yaml", tmp_path / "out"
    pretrain = PRETRAIN | {"options": {**QUICK, "epochs": 2}, "grid": {"lr": [1e-3, 1e6]}}
    steps = {"pretrain": pretrain, "classify": CLASSIFY}
    report = {"heatmap": ["lr", "warmup_epochs"], "compare": [["stem=conv", "stem=patchify"]]}
    path.write_text(write_yaml({"about": "two rates", "steps": steps, "report": report}))
    assert main([str(path), "--out", str(out)]) == 3, "a training broke down"
    said = capsys.readouterr()
    assert "4 cells: 1 not_judged, 1 nonfinite, 1 completed, 1 blocked" in said.out
    assert "pretrain-supervised: stability map" in said.out
    assert "not shown: " in said.out, "what cannot be compared is said and stops nothing"
    page = (out / "report.html").read_text()
    assert "two rates" in page
    assert page.count("<svg") >= 2
    assert main([str(path), "--out", str(out)]) == 3
    assert capsys.readouterr().err.count("reused") == 3
