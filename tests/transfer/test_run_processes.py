"""What needs processes of its own: kill -9, two at once, torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.transfer.test_run import record, same_but_for_the_clock
from transfer.run import main

WORDS = [
    "reid",
    "--backbone",
    "tiny",
    "--smoke",
    "--threads",
    "1",
    "--lr",
    "3e-3",
    "--optimizer",
    "adamw",
    "--epochs",
    "6",
]
WORDS += ["--warmup-epochs", "1"]
COMMAND = [sys.executable, "-m", "transfer.run", *WORDS]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}


def start(*extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *extra],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )


def wait_for(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


def steps(out: Path) -> int:
    """Steps whose state has reached the disk."""
    (history,) = list(out.glob("*/history.jsonl")) or [None]
    states = list(out.glob("*/state.pt"))
    return history.read_text().count("\n") if history and states else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert main([*WORDS, "--workers", "0", "--out", str(out)]) == 0
    return out


def history(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in next(out.glob("*/history.jsonl")).read_text().splitlines()]


def outcomes(out: Path) -> dict[str, np.ndarray]:
    with np.load(next(out.glob("*/outcomes.npz"))) as file:
        return dict(file)


def assert_equal_runs(one: Path, two: Path) -> None:
    assert same_but_for_the_clock(record(one), record(two))
    assert history(one) == history(two)
    a, b = outcomes(one), outcomes(two)
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[key], b[key], equal_nan=a[key].dtype.kind == "f") for key in a)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_scores_of_an_undisturbed_one(tmp_path: Path, undisturbed: Path) -> None:
    for steps_before in (3, 12):
        process = start("--out", str(tmp_path), "--checkpoint-seconds", "0", "--workers", "1")
        wait_for(lambda: steps(tmp_path) >= steps_before or process.poll() is not None)  # noqa: B023
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert not list(tmp_path.glob("*/record.json")), "the run was too quick to be killed"
    assert main([*WORDS, "--workers", "0", "--out", str(tmp_path)]) == 0
    assert_equal_runs(tmp_path, undisturbed)
    assert not list(tmp_path.glob("*/state.pt"))
    assert not list(tmp_path.glob("*/.*.tmp"))


@pytest.mark.slow
def test_a_signal_saves_the_state_and_exits_with_143(tmp_path: Path, undisturbed: Path) -> None:
    process = start("--out", str(tmp_path), "--checkpoint-seconds", "0", "--workers", "1")
    wait_for(lambda: steps(tmp_path) >= 5 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143, err
    assert "stopped by a signal" in err
    assert "Traceback" not in err
    assert main([*WORDS, "--workers", "0", "--out", str(tmp_path)]) == 0
    assert_equal_runs(tmp_path, undisturbed)


@pytest.mark.slow
def test_two_processes_on_one_run_make_one_record(tmp_path: Path, undisturbed: Path) -> None:
    pair = [start("--out", str(tmp_path), "--workers", "0") for _ in range(2)]
    texts = [process.communicate() for process in pair]
    assert [process.returncode for process in pair] == [0, 0], texts
    assert sum("another process is at it" in err for _, err in texts) == 1
    assert sum("has a record, reused" in err for _, err in texts) == 1
    assert_equal_runs(tmp_path, undisturbed)


@pytest.mark.slow
def test_two_ranks_follow_the_protocol_of_one_process(tmp_path: Path) -> None:
    words = [*WORDS, "--stem", "conv", "--sync-bn", "--drop-path", "0", "--precision", "fp32", "--workers", "0"]
    words += ["--epochs", "3"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "transfer.run",
    ]
    done = subprocess.run(
        [*launch, *words, "--out", str(tmp_path / "two")], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert one.identity == two.identity
    assert two.environment["world_size"] == 2
    # One collective's rounding grows over the steps, so the first ones are compared.
    losses = [[line["loss"] for line in history(tmp_path / name)] for name in ("one", "two")]
    assert losses[0][:5] == pytest.approx(losses[1][:5], rel=1e-3)
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    rates = [[line["lr"] for line in history(tmp_path / name)] for name in ("one", "two")]
    assert rates[0] == rates[1]
    assert outcomes(tmp_path / "one")["sample"].tolist() == outcomes(tmp_path / "two")["sample"].tolist()
    assert done.stdout.count("reid-toy_market-tiny-") == 1


def test_a_folder_that_shadows_a_room_is_said(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "transfer.run", "--list"],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "`tasks` is imported from" in done.stderr
    assert "Traceback" not in done.stderr


def test_records_of_a_newer_schema_are_left_out_of_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transfer.report.__main__ import main as report

    folder = tmp_path / "reid-x-y-000000000000"
    folder.mkdir()
    (folder / "record.json").write_text('{"schema": 99}')
    assert report([str(tmp_path)]) == 1
    assert "schema 99" in capsys.readouterr().err
