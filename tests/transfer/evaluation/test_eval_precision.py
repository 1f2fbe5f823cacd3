"""`--eval-precision` as a command takes it: part of what identifies a run, said in its record."""

from pathlib import Path

import pytest

from tests.runs import record
from tests.transfer.test_run import QUICK
from transfer.run import main
from transfer.verify.__main__ import main as verify

KNN = ["knn", "--backbone", "tiny", "--smoke", "--subset", "20", "--k", "5", "--other-k", "1", "--threads", "1"]
KNN += ["--workers", "0"]


def test_where_nothing_trains_one_precision_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*KNN, "--out", str(tmp_path / "one")]) == 0
    assert main([*KNN, "--eval-precision", "fp32", "--out", str(tmp_path / "one")]) == 0, "the recipe's own value"
    assert main([*KNN, "--eval-precision", "bf16", "--out", str(tmp_path / "other")]) == 0
    one, other = record(tmp_path / "one"), record(tmp_path / "other")
    assert "precision" not in one.run_key_content
    assert [run.run_key_content["eval_precision"] for run in (one, other)] == ["fp32", "bf16"]
    assert [run.environment["eval_precision"] for run in (one, other)] == ["fp32", "bf16"]
    assert one.environment["precision"] is one.environment["tf32"] is None
    assert one.config_digest != other.config_digest
    assert verify([str(tmp_path / "one"), str(tmp_path / "other")]) == 0
    capsys.readouterr()


def test_training_and_scoring_count_as_what_they_came_to(tmp_path: Path) -> None:
    words = [*QUICK, "--epochs", "1", "--precision", "fp32"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert main([*words, "--eval-precision", "run", "--out", str(tmp_path)]) == 0
    found = record(tmp_path)  # a single one
    assert (found.environment["precision"], found.environment["eval_precision"]) == ("fp32", "fp32")
    assert found.run_key_content["eval_precision"] == "fp32"
    assert not {"precision", "eval_precision"} & found.run_key_content["options"].keys()


@pytest.mark.parametrize("task", ["knn"])
def test_the_old_name_of_the_flag_is_refused_with_the_new_one(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--precision", "bf16"], ["--precision=bf16"]):
        assert main([task, "--backbone", "tiny", *words]) == 2
        assert "--precision is called --eval-precision now" in capsys.readouterr().err
    (tmp_path / "mine.yaml").write_text("precision: fp32\n")
    assert main([task, "--backbone", "tiny", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert "mine.yaml: --precision is called --eval-precision now" in capsys.readouterr().err
