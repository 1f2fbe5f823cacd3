"""Seconds from a full disk to a training that goes on: the error, then the command again once there is room.

    python -m tests.benchmarks full_disk [--backbone deit_s16] [--epochs 3]

A smoke pretraining saves its state at every step, on a disk in memory with room for one state and a part of the next
one. Needs a machine that lets its user mount. Beside it: how long the same command takes to its first step from the
beginning.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from backbones.engine.checkpoint import HISTORY, STATE
from tests.faults.disk.small_disk import SmallDisk
from tests.processes import ENVIRONMENT

POLL_SECONDS = 0.02
ROOM_MIB = 20_000.0
STATES_ON_DISK = 1.5


def main(argv: list[str]) -> int:
    """Print the durations."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks full_disk")
    parser.add_argument("--backbone", default="deit_s16")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="full-disk-") as scratch:
        words = [sys.executable, "-m", "transfer.pretrain", "deit", "--backbone", options.backbone, "--smoke"]
        words += ["--epochs", str(options.epochs), "--checkpoint-seconds", "0", "--workers", "0"]
        first_step, size = _begin(words, Path(scratch) / "alone")
        with SmallDisk(Path(scratch) / "disk", STATES_ON_DISK * size) as disk:
            failed = _start(words, disk.folder, disk.enter)
            error = [line for line in failed.communicate()[1].splitlines() if line.startswith("error: ")]
            before = _lines(disk.seen)
            disk.set(f"size {ROOM_MIB}")
            begun = time.perf_counter()
            again = _start(words, disk.folder, disk.enter)
            _wait(lambda: _lines(disk.seen) > before, again)
            resumed = time.perf_counter() - begun
            again.communicate()
    if again.returncode != 0 or not error:
        sys.exit(f"the training did not end well after a full disk (exit status {again.returncode})")
    print(f"a state of {size:.0f} MiB, at step {before}: {error[0].replace(scratch, '')}")
    print(f"room made: the training is at its next step after {resumed:.1f} s")
    print(f"the same command from the beginning: at its first step after {first_step:.1f} s")
    return 0


def _begin(words: list[str], folder: Path) -> tuple[float, float]:
    """Return the seconds to the first step of a training, and MiB of its state; it is ended then."""
    folder.mkdir()
    begun = time.perf_counter()
    process = _start(words, folder)
    _wait(lambda: _lines(folder) > 0 and list(folder.glob(f"runs/*/{STATE}")), process)
    seconds = time.perf_counter() - begun
    (state,) = folder.glob(f"runs/*/{STATE}")
    size = state.stat().st_size / 2**20
    process.kill()
    process.communicate()
    return seconds, size


def _start(words: list[str], folder: Path, prepare: Callable[[], None] | None = None) -> "subprocess.Popen[str]":
    argv = [*words, "--out", str(folder / "runs"), "--weights-to", str(folder / "weights")]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, preexec_fn=prepare)


def _wait(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    while not condition():
        if process.poll() is not None:
            sys.exit(f"the training ended too early: {process.communicate()[1][-500:]}")
        time.sleep(POLL_SECONDS)


def _lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob(f"runs/*/{HISTORY}"))
