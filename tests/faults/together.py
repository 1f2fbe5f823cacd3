"""Kind `together`: several processes on one run, feature store, weights folder, bundle or sweep; no locks; clocks.

All end with what one of them alone gives, or one says in words why it cannot.
"""

import ctypes
import errno
import fcntl
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from backbones.checkpoints.exports import WEIGHTS, pretraining_facts
from backbones.runtime.files import file_sha256
from tests.faults.killed_runs import SHORT, difference, scraps
from tests.faults.together_elsewhere import DEIT, Sweeps, many_weights, unlocked_folder
from tests.faults.trial import NotHeldError
from tests.processes import Command, wait_for
from tests.runs import record, steps

REID = ("reid", "--backbone", "tiny", "--epochs", "3", *SHORT)
FEWSHOT = ("fewshot", "--backbone", "tiny", "--dataset", "toy_dtd", *SHORT)
_NEW_HOST_NAME = 0x04000000  # CLONE_NEWUTS
UNCHANGED = "the host keeps its name"


class Together:
    """Each command's run that was alone."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.alone: dict[str, Path] = {}
        self.sweeps = Sweeps(work)

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Start several processes, or one on an odd host; see `Kind`."""
        trials = (
            self._one_run,
            self._one_run,
            self._feature_store,
            self._weights,
            many_weights,
            self._bundle,
            self._odd_host,
            self._unlocked,
            self.sweeps.trial,
        )
        return rng.choice(trials)(rng, folder)

    def _alone(self, name: str, program: str, words: tuple[str, ...]) -> Path:
        if name not in self.alone:
            folder = self.work / name
            folder.mkdir()
            _all_end("alone", [_start(program, words, folder, "alone")])
            self.alone[name] = folder / "runs"
        return self.alone[name]

    def _one_run(self, rng: random.Random, folder: Path) -> str:
        """2 or 8 processes give the same command; one of them may be killed."""
        name, program, words = rng.choice((("reid", "transfer.run", REID), ("deit", "transfer.pretrain", DEIT)))
        whole, count = self._alone(name, program, words), rng.choice((2, 2, 8))
        commands = [_start(program, words, folder, f"{number}") for number in range(count)]
        what = f"{name} by {count} processes"
        if killed := rng.random() < 0.5:
            time.sleep(rng.uniform(0, 3))
            commands.pop(rng.randrange(count)).kill(signal.SIGKILL)
            what += ", one of them killed"
        _all_end(what, commands)
        _same(what, whole, folder)
        return f"{name} by several{', one killed' if killed else ''}: one run"

    def _feature_store(self, rng: random.Random, folder: Path) -> str:
        whole, count = self._alone("fewshot", "transfer.run", FEWSHOT), rng.choice((2, 4, 8))
        commands = []
        for number in range(count):
            (folder / f"{number}").mkdir()
            features = folder / "features"
            commands.append(_start("transfer.run", FEWSHOT, folder / f"{number}", "log", features=features))
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 3))
            commands.pop(0).kill(signal.SIGKILL)
        _all_end(f"{count} processes on one feature store", commands)
        for number in range(count - len(commands), count):
            if harm := difference(whole, folder / f"{number}" / "runs"):
                raise NotHeldError(f"{count} processes on one feature store: {harm}")
        return "feature store: the same scores"

    def _weights(self, rng: random.Random, folder: Path) -> str:
        """Two pretrainings of other seeds have one name: one of them is refused."""
        commands = []
        for seed in "01":
            (folder / seed).mkdir()
            words = (*DEIT, "--seeds", seed)
            commands.append(
                _start(
                    "transfer.pretrain", words, folder / seed, "log", weights=folder / "weights", runs=folder / "runs"
                )
            )
        statuses = [command.wait() for command in commands]
        said = "".join(command.stderr for command in commands)
        kept = pretraining_facts(folder / "weights" / "tiny")
        exports = {file_sha256(file) for file in (folder / "runs").glob(f"*/export/{WEIGHTS}")}
        if sorted(statuses) != [0, 1] or "Traceback" in said or "error: " not in said:
            raise NotHeldError(f"two seeds to one name: exit status {statuses}: {said[-300:]}")
        if file_sha256(folder / "weights" / "tiny" / WEIGHTS) not in exports or not kept.get("identity"):
            raise NotHeldError("two seeds to one name: weights of neither")
        return "weights folder: one of two is refused"

    def _bundle(self, rng: random.Random, folder: Path) -> str:
        whole, count = self._alone("reid", "transfer.run", REID), rng.choice((2, 8))
        file = folder / "all.zip"
        write = [str(whole), "--smoke", "--dirty", "--bundle", str(file)]
        _all_end(
            "bundle", [Command("transfer.report.__main__", write, folder / f"w{number}") for number in range(count)]
        )
        read = [str(folder / "runs"), "--import", str(file)]
        _all_end(
            "import", [Command("transfer.report.__main__", read, folder / f"r{number}") for number in range(count)]
        )
        (path,) = (folder / "runs").glob("*/record.json")
        (original,) = whole.glob("*/record.json")
        verdict = Command("transfer.verify.__main__", [str(path.parent)], folder / "verify")
        if verdict.wait() != 0 or record(folder / "runs").scores != record(whole).scores or not original.exists():
            raise NotHeldError(f"{count} processes on one bundle: {verdict.stdout[-300:]}")
        _no_scraps("bundle", folder)
        return "bundle: whole, imported once"

    def _unlocked(self, rng: random.Random, folder: Path) -> str:
        """One folder of a command keeps no locks."""
        known = {"reid": REID, "deit": DEIT, "fewshot": FEWSHOT}

        def alone(name: str) -> tuple[Path, str, tuple[str, ...]]:
            command = "transfer.pretrain" if name == "deit" else "transfer.run", known[name]
            return self._alone(name, *command), *command

        return unlocked_folder(rng, folder, alone)

    def _odd_host(self, rng: random.Random, folder: Path) -> str:
        """A run is interrupted, and goes on where the host has another name, another clock, or no locks."""
        whole = self._alone("reid", "transfer.run", REID)
        first = _start("transfer.run", REID, folder, "first")
        wait_for(lambda: steps(folder / "runs") >= 1 or first.poll() is not None)
        first.kill(signal.SIGKILL)
        odd: dict[str, Callable[[], None]] = {
            "another host name": rename_host,
            "a clock an hour back": partial(shift_clock, -3600.0),
            "a clock an hour ahead": partial(shift_clock, 3600.0),
            "no locks": refuse_locks,
        }
        what = rng.choice([*odd])
        second = _start("transfer.run", REID, folder, "second", prepare=odd[what])
        if second.wait() == 1 and what == "no locks" and "keeps no locks" in second.stderr.splitlines()[-1]:
            _all_end(what, [_start("transfer.run", REID, folder, "third")])
        elif second.poll() != 0:
            raise NotHeldError(f"{what}: exit status {second.poll()}: {second.stderr[-500:]}")
        _same(what, whole, folder)
        if what == "another host name" and UNCHANGED in second.stderr:
            return f"{what}: not tried, this machine lets nobody rename it"
        return f"{what}: {'refused, then ' if second.poll() else ''}the same result"


def rename_host() -> None:
    """Give the host another name, for this process alone; say so where that is not permitted."""
    try:
        if ctypes.CDLL(None).unshare(_NEW_HOST_NAME) != 0:
            raise PermissionError
        socket.sethostname("renamed")
    except OSError:
        print(UNCHANGED, file=sys.stderr)


def shift_clock(seconds: float) -> None:
    """Let this process's clock be wrong."""
    true_time = time.time
    time.time = lambda: true_time() + seconds


def refuse_locks() -> None:
    """Let locks fail as on a disk whose server keeps none."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fcntl.lockf = refused
    fcntl.flock = refused


def _start(
    program: str,
    words: tuple[str, ...],
    folder: Path,
    log: str,
    *,
    features: Path | None = None,
    weights: Path | None = None,
    runs: Path | None = None,
    prepare: Callable[[], None] | None = None,
) -> Command:
    argv = [*words, "--out", str(runs or folder / "runs"), "--features", str(features or folder / "features")]
    argv += ["--weights-to", str(weights or folder / "weights")] if program == "transfer.pretrain" else []
    return Command(program, argv, folder / f"log-{log}", prepare=prepare)


def _all_end(what: str, commands: list[Command]) -> None:
    statuses = [command.wait(300) for command in commands]
    if any(statuses):
        failed = next(command for command in commands if command.poll())
        raise NotHeldError(f"{what}: exit status {statuses}: {failed.stderr[-500:]}")


def _same(what: str, whole: Path, folder: Path) -> None:
    if harm := difference(whole, folder / "runs"):
        raise NotHeldError(f"{what}: {harm}")
    _no_scraps(what, folder)


def _no_scraps(what: str, folder: Path) -> None:
    if left := scraps(folder):
        raise NotHeldError(f"{what}: left {', '.join(left)}")
