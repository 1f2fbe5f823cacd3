"""`--validate-at` and `--keep best`: identities split off the training set decide which state is kept."""

from pathlib import Path

import pytest

from backbones.spec import resolve
from tasks.reid.task import TASK
from tests.processes import run_by_ranks
from tests.runs import assert_equal_runs, history, record
from tests.support import context, stopped_after
from tests.tasks.support import smoke_options
from transfer.data.reid.dataset import open_reid, split_off
from transfer.data.spec import resolve_dataset
from transfer.run import main

WORDS = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs", "5", "--lr", "0.2"]
WORDS += ["--warmup-epochs", "1", "--precision", "fp32", "--subset", "24", "--validate-at", "1", "2", "3", "5"]


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("best")
    assert main([*WORDS, "--keep", "best", "--out", str(out)]) == 0
    return out


def test_the_best_state_is_exported(best: Path) -> None:
    validations = {line["epoch"]: line["mAP"] for line in history(best) if "mAP" in line}
    kept = max(validations, key=lambda epoch: validations[epoch])
    assert list(validations) == [1, 2, 3, 5]
    assert kept < 5, "else the last state would do, too"
    run = record(best)
    assert run.details["validation"] == {"identities": 2, "kept_epoch": kept}
    assert run.notes[-1] == f"2 training identities were validated on, not trained on; kept: epoch {kept}"
    held = split_off(open_reid(resolve_dataset("toy_market"), None, subset=24), 0.1, seed=0)
    options, export = smoke_options("reid", "--epochs", "0"), next(best.glob("*/export"))
    scores, _ = TASK.run(resolve("tiny", weights=str(export)), held, options, context())
    assert scores["mAP"] == validations[kept]


def test_a_resumed_training_keeps_the_same_state(best: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--keep", "best", "--out", str(tmp_path)]
    for step in (3, 9):
        with stopped_after(step):
            assert main(words) == 143
    assert main(words) == 0
    assert_equal_runs(tmp_path, best)


def test_the_last_state_is_the_default(best: Path, tmp_path: Path) -> None:
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    assert (history(tmp_path), record(tmp_path).details["validation"]["kept_epoch"]) == (history(best), 5)


@pytest.mark.nightly
def test_two_ranks_keep_the_state_of_one_process(best: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--keep", "best", "--sync-bn", "--drop-path", "0"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    run_by_ranks("transfer.run", [*words, "--out", str(tmp_path / "two")], tmp_path / "log")
    one, two = ([line["mAP"] for line in history(tmp_path / name) if "mAP" in line] for name in ("one", "two"))
    assert one == pytest.approx(two, abs=0.02)
    assert record(tmp_path / "one").details["validation"] == record(tmp_path / "two").details["validation"]
