"""A fault of the machine ends in one line, with exit status 1, and the state is kept."""

import re
from pathlib import Path

import pytest

from transfer.run import main

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
