"""`--eval-precision` as a command takes it: part of what identifies a run, said in its record."""

from pathlib import Path

import pytest

from tests.runs import record
from transfer.run import main
from transfer.verify.__main__ import main as verify

KNN = ["knn", "--backbone", "tiny", "--smoke", "--subset", "20", "--k", "5", "--other-k", "1", "--threads", "1"]
KNN += ["--workers", "0"]


def test_where_nothing_trains_one_precision_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*KNN, "--out", str(tmp_path / "one")]) == 0
    assert main([*KNN, "--eval-precision", "fp32", "--out", str(tmp_path / "one")]) == 0, "the recipe's own value"
    assert main([*KNN, "--eval-precision", "bf16", "--out", str(tmp_path / "other")]) == 0
    one, other = record(tmp_path / "one"), record(tmp_path / "other")
    assert not {"precision", "outcome_rule"} & one.run_key_content.keys()
    assert [run.run_key_content["eval_precision"] for run in (one, other)] == ["fp32", "bf16"]
    assert [run.environment["eval_precision"] for run in (one, other)] == ["fp32", "bf16"]
    assert one.environment["precision"] is one.environment["tf32"] is None
    assert one.config_digest != other.config_digest
    assert verify([str(tmp_path / "one"), str(tmp_path / "other")]) == 0
    capsys.readouterr()
