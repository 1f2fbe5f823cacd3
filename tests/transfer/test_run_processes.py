"""What needs processes of its own: kill -9, two at once, torchrun."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tasks.reid.training
from tests.processes import ENVIRONMENT, Command, in_a_terminal, run_by_ranks, start_ranks, wait_for
from tests.runs import assert_equal_runs, history, outcomes, record, steps
from transfer.core.errors import UsageError
from transfer.engine import dist
from transfer.records.baselines import copied_from
from transfer.run import main

WORDS = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--epochs", "6", "--warmup-epochs", "1"]
WORDS += ["--lr", "3e-3", "--optimizer", "adamw"]


def start(folder: Path, *more: str, prepare: Callable[[], object] | None = None) -> Command:
    log = folder.parent / f"{folder.name}_{len(more)}"
    return Command("transfer.run", [*WORDS, "--out", str(folder), *more], log, prepare=prepare)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert main([*WORDS, "--workers", "0", "--out", str(out)]) == 0
    return out


@pytest.mark.nightly
def test_sighup_saves_the_state_and_exits_with_143(tmp_path: Path, undisturbed: Path) -> None:
    out = tmp_path / "runs"
    process = start(out, "--checkpoint-seconds", "0", "--workers", "1", prepare=in_a_terminal)
    wait_for(lambda: steps(out) >= 5 or process.poll() is not None)
    process.kill(signal.SIGHUP)
    assert process.poll() == 143, process.stderr
    assert "stopped by a signal" in process.stderr
    assert "Traceback" not in process.stderr
    assert main([*WORDS, "--workers", "0", "--out", str(out)]) == 0
    assert_equal_runs(out, undisturbed)


@pytest.mark.nightly
def test_two_processes_on_one_run_make_one_record(tmp_path: Path, undisturbed: Path) -> None:
    out, words = tmp_path / "runs", [*WORDS, "--workers", "0", "--out", str(tmp_path / "runs")]
    pair = [Command("transfer.run", words, tmp_path / name) for name in ("first", "second")]
    assert [process.wait() for process in pair] == [0, 0], [process.stderr for process in pair]
    assert sum("another process runs it" in process.stderr for process in pair) == 1
    assert sum("has a record, reused" in process.stderr for process in pair) == 1
    assert_equal_runs(out, undisturbed)


@pytest.mark.nightly
def test_two_ranks_take_one_baseline(tmp_path: Path, undisturbed: Path) -> None:
    out = tmp_path / "runs"
    words = [*WORDS, "--workers", "0", "--out", str(out), "--baselines", str(undisturbed)]
    assert "seed |" in run_by_ranks("transfer.run", words, tmp_path / "log")
    assert [copied_from(run) for run in out.iterdir()] == [str(undisturbed)]
    assert_equal_runs(out, undisturbed)


@pytest.mark.nightly
def test_two_ranks_of_torchrun_follow_the_protocol_of_one_process(tmp_path: Path) -> None:
    words = [*WORDS, "--stem", "conv", "--sync-bn", "--drop-path", "0", "--precision", "fp32", "--workers", "0"]
    words += ["--epochs", "3"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = [*launch, "-m", "transfer.run", *words, "--out", str(tmp_path / "two")]
    done = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert one.run_key == two.run_key
    assert two.environment["world_size"] == 2
    # One collective's rounding grows over the steps, so the first ones are compared.
    losses = [[line["loss"] for line in history(tmp_path / name)] for name in ("one", "two")]
    assert losses[0][:5] == pytest.approx(losses[1][:5], rel=1e-3)
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert outcomes(tmp_path / "one")["sample"].tolist() == outcomes(tmp_path / "two")["sample"].tolist()
    assert done.stdout.count("seed |") == 1  # the table, by one rank


def fail_on_rank_1() -> None:
    def rank(*_: object) -> Any:
        if os.environ["RANK"] == "1":
            raise UsageError("this rank has an error")
        return dist.gather_objects(None)

    tasks.reid.training._rank = rank
    # what NCCL does while others are inside a collective
    torch.distributed.destroy_process_group = lambda: time.sleep(90)


@pytest.mark.nightly
def test_an_error_of_one_rank_is_told_and_ends_the_job(tmp_path: Path) -> None:
    words = [*WORDS[:-6], "--epochs", "0", "--workers", "0", "--out", str(tmp_path / "runs")]
    waiting, failing = start_ranks("transfer.run", words, tmp_path / "log", prepare=fail_on_rank_1)
    assert (failing.wait(60), waiting.wait(5)) == (2, 1)
    assert failing.stderr.splitlines()[-1] == "error: this rank has an error"
    assert waiting.stderr.splitlines()[-1].startswith("error: another rank has ended")


@pytest.mark.nightly
def test_a_run_that_two_processes_go_on_with_says_so(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    alone = start(out, "--checkpoint-seconds", "0", "--workers", "0")
    wait_for(lambda: steps(out) >= 3 or alone.poll() is not None)
    alone.kill(signal.SIGTERM)
    assert alone.poll() == 143, alone.stderr
    printed = run_by_ranks("transfer.run", [*WORDS, "--workers", "0", "--out", str(out)], tmp_path / "two")
    (note,) = record(out).details["resumed"]
    assert re.fullmatch(r"step \d+ was reached by 1 process\(es\), the rest by 2 process\(es\)", note)
    assert "resumed" in printed  # a mark of the dataset, which a narrow table wraps
