"""`transfer.run fewshot` and the store it leaves, through the commands."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs import record
from transfer.run import main

FEWSHOT = ["fewshot", "--backbone", "tiny", "--smoke", "--workers", "0", "--dataset", "toy_digits", "--subset", "30"]


def test_the_record_says_what_was_drawn_and_how_it_spreads(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([*FEWSHOT, "--out", str(out), "--feature-cache", str(tmp_path / "features")]) == 0
    found = record(out)
    assert found.primary == "accuracy_10shot"
    assert found.subset == 30
    details = found.details
    for name in ("accuracy_1shot", "accuracy_5shot", "accuracy_10shot"):
        assert found.scores[name] == pytest.approx(details[name]["mean"])
        assert len(details[name]["draws"]) == 3
        assert found.metrics[name]["averaged"]
    with np.load(next(out.glob("*/outcomes.npz"))) as outcomes:
        assert outcomes["correct_10shot"].shape == (300, 3)
        assert outcomes["correct_10shot"].mean(0).tolist() == details["accuracy_10shot"]["draws"]
