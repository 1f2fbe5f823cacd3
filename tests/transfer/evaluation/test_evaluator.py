"""Finished records are found again before torch is imported; what has none is evaluated in its precision."""

import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transfer
from tasks.knn.task import Knn
from tests.runs import record
from tests.support import context
from tests.transfer.cli.test_early_checks import WITHOUT_TORCH
from transfer.core.errors import Notice, UserError
from transfer.engine.device import choose_precisions
from transfer.engine.options import settled_without_torch
from transfer.evaluation.evaluator import _notices
from transfer.run import main
from transfer.verify.__main__ import main as verify

KNN: dict[str, Any] = {"smoke": True, "threads": 1, "workers": 0, "backbone": "tiny", "progress": False}
WORDS = ["run", "knn", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--device", "cpu"]


def without_torch(*words: str, program: str = f"{WITHOUT_TORCH}sys.exit(status)") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


def test_a_finished_record_is_printed_without_torch(tmp_path: Path) -> None:
    (run,) = transfer.evaluate("knn", device="cpu", out=tmp_path, **KNN)
    again = without_torch(*WORDS, "--out", str(tmp_path))
    assert again.returncode == 0, again.stderr
    assert f"{run.run_id}: has a record, reused" in again.stderr
    assert f"{100 * run.record.scores['top1']:.1f}" in again.stdout
    other_seed = without_torch(*WORDS, "--out", str(tmp_path), "--seeds", "0", "1")
    assert "torch is imported" in other_seed.stderr, "a run without a record needs it"
    other_device = without_torch(*WORDS[:-1], "cuda", "--out", str(tmp_path))
    assert "torch is imported" in other_device.stderr, "on another kind of device it is another run"


def test_a_run_with_damaged_files_is_not_reused_and_one_without_some_says_so(tmp_path: Path) -> None:
    (run,) = transfer.evaluate("knn", device="cpu", out=tmp_path, **KNN)
    outcomes = tmp_path / run.run_id / "outcomes.npz"
    outcomes.write_bytes(outcomes.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"outcomes.npz: not of the size that the run wrote; put the file back"):
        transfer.evaluate("knn", device="cpu", out=tmp_path, **KNN)
    outcomes.unlink()
    again = without_torch(*WORDS, "--out", str(tmp_path))
    assert f"{run.run_id}: without outcomes.npz, which the run wrote; delete its folder" in again.stderr


def test_data_is_opened_once_where_a_seed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = transfer.evaluate("knn", device="cpu", out=tmp_path, **KNN)
    opened = []
    original = Knn.open

    def counted(self: Knn, *arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Knn, "open", counted)
    both = transfer.evaluate("knn", device="cpu", out=tmp_path, seeds=[0, 1], **KNN)
    assert [run.record.seed for run in both] == [0, 1]
    assert both[0].run_id == first.run_id
    assert len(opened) == 1


@pytest.mark.parametrize("training", ["fp32", "bf16", "fp16", "auto", None])
@pytest.mark.parametrize("scoring", ["fp32", "bf16", "fp16", "auto", "run"])
def test_precisions_are_those_that_torch_would_choose(training: str | None, scoring: str) -> None:
    if training is None and scoring == "run":
        pytest.skip("`run` is the precision of a training")
    options = SimpleNamespace(eval_precision=scoring, **({"precision": training} if training else {}))
    assert settled_without_torch(options, "cpu") == (*choose_precisions(options, torch.device("cpu")), "cpu")


def test_a_gpu_is_asked_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SimpleNamespace(eval_precision="fp32", precision="auto")
    assert settled_without_torch(options, "cuda") is None
    for present in (True, False):
        monkeypatch.setattr("transfer.engine.options._may_have_gpu", lambda: present)  # noqa: B023
        assert (settled_without_torch(options, "auto") is None) == present
    frozen = SimpleNamespace(eval_precision="fp32")
    assert settled_without_torch(frozen, "cuda") == ("fp32", "fp32", "cuda")
    monkeypatch.setattr("transfer.engine.options._may_have_gpu", lambda: True)
    assert settled_without_torch(frozen, "auto") is None, "the kind of device is not known"


SCORED = [*WORDS[1:], "--subset", "20", "--k", "5", "--other-k", "1"]


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
    assert "resuming after step" in capsys.readouterr().err


def test_a_notice_is_one_line_and_a_note_of_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    for run in (context(), context()):
        with _notices(run):
            for _ in range(2):
                warnings.warn(Notice("runs as blocks"), stacklevel=1)
        assert run.notes == ["runs as blocks"]
    assert capsys.readouterr().err == "runs as blocks\n" * 2
