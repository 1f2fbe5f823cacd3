"""Records of damaged runs are not reused; a run is evaluated in its precision, and what it says is noted."""

import re
import warnings
from pathlib import Path

import pytest

from tests.runs import record
from tests.support import context
from transfer.core.errors import Notice
from transfer.evaluation.evaluator import _notices
from transfer.run import main
from transfer.verify.__main__ import main as verify

WORDS = ["knn", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--device", "cpu"]


def test_a_run_with_damaged_files_is_not_reused_and_one_without_some_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--out", str(tmp_path)]
    assert main(words) == 0
    run = record(tmp_path)
    outcomes = tmp_path / run.run_id / "outcomes.npz"
    outcomes.write_bytes(outcomes.read_bytes()[:-10])
    assert main(words) == 1
    assert "outcomes.npz: not of the size that the run wrote; put the file back" in capsys.readouterr().err
    outcomes.unlink()
    assert main(words) == 0
    said = capsys.readouterr().err
    assert f"{run.run_id}: has a record, reused" in said
    assert f"{run.run_id}: without outcomes.npz, which the run wrote; delete its folder" in said


SCORED = [*WORDS, "--subset", "20", "--k", "5", "--other-k", "1"]


def test_where_nothing_trains_one_precision_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCORED, "--out", str(tmp_path / "one")]) == 0
    assert main([*SCORED, "--eval-precision", "fp32", "--out", str(tmp_path / "one")]) == 0, "the recipe's own value"
    assert main([*SCORED, "--eval-precision", "bf16", "--out", str(tmp_path / "other")]) == 0
    one, other = record(tmp_path / "one"), record(tmp_path / "other")
    assert not {"precision", "outcome_rule"} & one.run_key_content.keys()
    assert [run.run_key_content["eval_precision"] for run in (one, other)] == ["fp32", "bf16"]
    assert [run.environment["eval_precision"] for run in (one, other)] == ["fp32", "bf16"]
    assert one.environment["precision"] is one.environment["tf32"] is None
    assert one.config_digest != other.config_digest
    assert verify([str(tmp_path / "one"), str(tmp_path / "other")]) == 0
    capsys.readouterr()


RUN = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--lr", "3e-3", "--warmup-epochs", "0"]


def test_out_of_memory_in_evaluation_goes_on_with_a_smaller_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training is not repeated: its state is kept, and the batch of evaluation is no part of the run's identity."""
    flags = [*RUN, "--workers", "0", "--epochs", "1", "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr("tasks.reid.training.ReidLearner.encode", lambda *given: bytearray(2**62))
        assert main([*flags, "--eval-batch-size", "64"]) == 1
    said = capsys.readouterr().err
    assert re.search(
        "out of memory on this machine: .* a smaller --eval-batch-size to score; the last checkpoint is", said
    )
    assert main([*flags, "--eval-batch-size", "32"]) in (0, 3)
    assert re.search(r"resuming after step \d+ \(epoch 1\)", capsys.readouterr().err)


def test_a_notice_is_one_line_and_a_note_of_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    for run in (context(), context()):
        with _notices(run):
            for _ in range(2):
                warnings.warn(Notice("runs as blocks"), stacklevel=1)
        assert run.notes == ["runs as blocks"]
    assert capsys.readouterr().err == "runs as blocks\n" * 2
