"""Finished records are found again before torch is imported; what has none goes to the evaluator."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import transfer
from tasks.knn.task import Knn
from tests.transfer.cli.test_early_checks import WITHOUT_TORCH
from transfer.core.errors import UserError
from transfer.engine.device import choose_precisions
from transfer.engine.options import settled_without_torch

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
