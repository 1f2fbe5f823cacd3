"""`transfer.run fewshot` and the store it leaves, through the commands."""

from pathlib import Path

import numpy as np
import pytest

from tests.runs import record
from transfer.run import main

FEWSHOT = ["fewshot", "--backbone", "tiny", "--smoke", "--workers", "0", "--dataset", "toy_digits", "--subset", "30"]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("out", "feature-cache")}
    assert main(FEWSHOT + words_of(found)) == 0
    return found


def words_of(folders: dict[str, Path]) -> list[str]:
    return [word for name, path in folders.items() for word in (f"--{name}", str(path))]


def entries(folders: dict[str, Path]) -> list[Path]:
    return sorted(path.parent for path in folders["feature-cache"].glob("*/entry.json"))


def test_the_record_says_what_was_drawn_and_how_it_spreads(folders) -> None:
    found = record(folders["out"])
    assert found.primary == "accuracy_10shot"
    assert found.subset == 30
    details = found.details
    for name in ("accuracy_1shot", "accuracy_5shot", "accuracy_10shot"):
        assert found.scores[name] == pytest.approx(details[name]["mean"])
        assert len(details[name]["draws"]) == 3
        assert found.metrics[name]["averaged"]
    with np.load(next(folders["out"].glob("*/outcomes.npz"))) as outcomes:
        assert outcomes["correct_10shot"].shape == (300, 3)
        assert outcomes["correct_10shot"].mean(0).tolist() == details["accuracy_10shot"]["draws"]
