"""Kind `kill`: a command gets signals at random moments, then is given again.

A run must end with the record, the history and the results of the run that was left alone, and leave nothing behind; so
must one of two ranks, and the cells of a sweep.
"""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults.trial import NotHeldError
from tests.processes import Command, start_ranks, wait_for
from tests.runs import differences
from transfer.core.errors import Stopped
from transfer.core.files import file_sha256, scraps_in
from transfer.core.process import INTERRUPTED
from transfer.engine.checkpoint import PREVIOUS, STATE
from transfer.records.per_sample import OUTCOMES
from transfer.records.record import Record
from transfer.records.store import RECORD

SMOKE = ("--smoke", "--threads", "1", "--workers", "0")
SHORT = (*SMOKE, "--checkpoint-seconds", "0")
RUNS = {
    "reid": ("transfer.run", ("reid", "--backbone", "tiny", "--epochs", "3", *SHORT)),
    "fewshot": ("transfer.run", ("fewshot", "--backbone", "tiny", "--dataset", "toy_dtd", *SHORT)),
    "dino": ("transfer.pretrain", ("dino", "--backbone", "tiny", "--epochs", "1", *SHORT)),
    "linear": ("transfer.run", ("linear", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "segment": ("transfer.run", ("segment", "--backbone", "tiny", "--epochs", "1", *SHORT)),
    "detect": ("transfer.run", ("detect", "--backbone", "tiny", "--epochs", "1", *SHORT)),
    "deit": ("transfer.pretrain", ("deit", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "volo": ("transfer.pretrain", ("volo", "--backbone", "volo_tiny", "--epochs", "2", *SHORT)),
    "finetune": ("transfer.run", ("finetune", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "knn": ("transfer.run", ("knn", "--backbone", "tiny", *SHORT)),
    "tokens": ("transfer.run", ("tokens", "--backbone", "tiny", *SHORT)),
    "classify": ("transfer.run", ("classify", "--backbone", "tiny", *SHORT)),
    "two ranks": ("transfer.pretrain", ("deit", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "sweep": ("transfer.sweep.__main__", ()),
}
"""What is killed: a program with its arguments."""
SWEEP = """steps:
  probe:
    run: knn
    backbone: tiny
    dataset: toy_digits
    options: {smoke: true, workers: 0, other_k: [1, 2]}
    grid: {k: [3, 4, 5]}
"""
ENDING = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STATUSES = {signal.SIGKILL: set[int](), signal.SIGINT: {INTERRUPTED, Stopped.exit_status}}
"""How a command may end after a signal, besides by it: with the status of saved runs."""
NO_ORPHANS_SECONDS = 60


class Killed:
    """Each command's run that was left alone, with its duration."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.alone: dict[str, tuple[Path, float]] = {}

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Interrupt one command once or twice, and return how it was held, as `weights: refused`."""
        name = rng.choice([*RUNS])
        whole, seconds = self.undisturbed(name)
        sent = []
        for number in range(rng.choice((1, 1, 2))):
            parent_alone = rng.random() < 0.25  # what it has started has to end by itself then
            commands = self._start(name, folder, f"{number}", "2" if parent_alone else "0")
            if name == "two ranks":  # one that has not met the other yet is ended by torchrun or Slurm
                wait_for(lambda: [*folder.glob("runs/*/history.jsonl")])
            time.sleep(rng.uniform(0, seconds))
            alone = parent_alone or name == "sweep"
            sent += _interrupt(name, commands, rng.choice(commands), rng.choice(ENDING), alone)
        what = f"{name} after {', '.join(sent) or 'nothing'}"
        saved = [*folder.glob(f"runs/*/{STATE}")]
        last = self._start(name, folder, "last")
        _ended(what, last)
        if saved and not any(way in last[0].stderr for way in ("resuming after step", "has a record, reused")):
            raise NotHeldError(f"{what}: a state was saved, and not gone on from: {last[0].stderr[:500]}")
        if harm := difference(whole, folder):
            raise NotHeldError(f"{what}: {harm}")
        if left := scraps(folder):
            raise NotHeldError(f"{what}: left {', '.join(left)}")
        return f"{name}: the same result"

    def undisturbed(self, name: str) -> tuple[Path, float]:
        """Return the folder of an undisturbed command, and its seconds."""
        if name not in self.alone:
            begun, folder = time.monotonic(), self.work / name.replace(" ", "-")
            _ended(name, self._start(name, folder, "alone"))
            self.alone[name] = folder, time.monotonic() - begun
        return self.alone[name]

    def _start(self, name: str, folder: Path, log: str, workers: str = "0") -> list[Command]:
        """Start a command, by as many processes as it has ranks."""
        folder.mkdir(parents=True, exist_ok=True)
        if name == "sweep":
            (folder / "mine.yaml").write_text(SWEEP, encoding="utf-8")
            words = [str(folder / "mine.yaml"), "--out", str(folder), "--workers", "2"]
            return [Command(RUNS[name][0], words, folder / f"log-{log}", {"PYTHONPATH": str(Path.cwd())})]
        words = arguments(name, folder)
        words[words.index("--workers") + 1] = workers
        if name == "classify":
            words += ["--weights", str(self.undisturbed("deit")[0] / "weights" / "tiny")]
        if name == "two ranks":
            return start_ranks(RUNS[name][0], words, folder / f"log-{log}")
        return [Command(RUNS[name][0], words, folder / f"log-{log}")]


def _interrupt(name: str, commands: Sequence[Command], killed: Command, kind: signal.Signals, alone: bool) -> list[str]:
    """Send a signal to a process of a command, and to what it started; check how all end; return what was sent."""
    if not killed.send(kind, alone=alone):
        _ended(name, commands)
        return []
    what = f"{name} after {kind.name}{' to the parent alone' if alone else ''}"
    for command in commands:
        try:
            command.wait(NO_ORPHANS_SECONDS)
        except AssertionError:
            command.kill(signal.SIGKILL)
            raise NotHeldError(f"{what}: a process goes on after {NO_ORPHANS_SECONDS} s") from None
    if "Traceback" in killed.stderr or killed.poll() not in {0, -kind, *STATUSES.get(kind, {Stopped.exit_status})}:
        raise NotHeldError(f"{what}: exit status {killed.poll()}: {killed.stderr[-700:]}")
    try:
        wait_for(lambda: not [*_processes(killed.pid)], NO_ORPHANS_SECONDS)
    except AssertionError:
        os.killpg(killed.pid, signal.SIGKILL)
        raise NotHeldError(f"{what}: processes that it has started go on") from None
    return [kind.name]


def arguments(name: str, folder: Path) -> list[str]:
    """Return the arguments of a run, all of whose outputs lie in a folder."""
    program, words = RUNS[name]
    outputs = ["--out", str(folder / "runs"), "--feature-cache", str(folder / "features")]
    return [*words, *outputs, *(["--export-dir", str(folder / "weights")] if program == "transfer.pretrain" else [])]


def _ended(what: str, commands: Sequence[Command]) -> None:
    for command in commands:
        if command.wait() != 0:
            raise NotHeldError(f"{what}: exit status {command.poll()}: {command.stderr[-500:]}")


def _processes(session: int) -> Iterator[int]:
    """Yield the processes of a session that have not ended."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if stat[3] == str(session) and stat[0] != "Z":
            yield int(entry.name)


def difference(whole: Path, other: Path) -> str:
    """Return in words how the runs of two folders differ in what does not depend on when and how they were executed."""
    found = (folder.glob(f"runs/*/{RECORD}") for folder in (whole, other))
    pairs = [sorted(Path("runs", path.parent.name) for path in paths) for paths in found]
    if pairs[0] != pairs[1]:
        return f"other runs: {pairs}"
    for name in pairs[0]:
        records = [_without_extraction(Record.read(folder / name / RECORD)) for folder in (whole, other)]
        if differing := differences(*records):
            return f"another record: {str(differing)[:500]}"
        for file in ("history.jsonl", OUTCOMES):
            contents = [_bytes(folder / name / file) for folder in (whole, other)]
            if contents[0] != contents[1]:
                return f"another {file}"
    return "" if _weights(whole) == _weights(other) else "other weights"


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _weights(folder: Path) -> dict[str, str]:
    """Return the digests of the tensors that runs exported, and of those published beside their folder."""
    files = (*folder.glob("runs/*/export/**/*.safetensors"), *folder.glob("weights/**/*.safetensors"))
    return {f"{file.relative_to(folder)}": file_sha256(file) for file in files}


def _without_extraction(one: Record) -> Record:
    """Return a record without what it says of the features that were found or computed, and how fast."""
    return replace(one, details={name: value for name, value in one.details.items() if name != "features"})


def scraps(folder: Path) -> list[str]:
    """Return what finished runs should not leave: states, locks of runs, and files that were not given their names."""
    found = [path for place in (folder, *folder.rglob("*")) if place.is_dir() for path in scraps_in(place)]
    found += [path for name in (STATE, PREVIOUS, "lock") for path in folder.glob(f"runs/*/{name}")]
    return [str(path.relative_to(folder)) for path in found]
