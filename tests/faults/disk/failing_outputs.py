"""For kind `disk`: commands other than runs, on disks that are full or read-only, and outputs that take nothing."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

from tests.faults.disk.small_disk import SmallDisk
from tests.faults.killed_runs import RUNS
from tests.faults.killed_sweeps import SWEEP
from tests.faults.killed_writers import contents, made_run, writers
from tests.faults.trial import NotHeldError
from tests.processes import ENVIRONMENT, Command

KNN = RUNS["knn"][1]
CELLS = 2
ROOM_MIB = 1000.0


class FailingOutputs:
    """A finished run with its bundle, a finished sweep, and what each writer leaves on a disk that works."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.mkdir()
        self._run: Path | None = None
        self._sweep: Path | None = None
        self._whole: dict[str, list[str]] = {}

    def full(self, rng: random.Random, folder: Path) -> str:
        """A writer ends in words when the disk is full, and leaves what it should when there is room."""
        name = rng.choice([*writers(folder, folder)])
        whole = self._undisturbed(name)
        with SmallDisk(folder / "disk", rng.uniform(0.004, 1.1) * self._mib(name)) as disk:
            status = in_words(f"{name} on a full disk", self._writer(name, disk, folder / "first"))
            disk.set(f"size {ROOM_MIB}")
            last = self._writer(name, disk, folder / "last")
            if last.wait() != 0 or contents(disk.seen / "out") != whole:
                raise NotHeldError(f"{name}, when there is room again: {last.poll()}: {last.stderr[-500:]}")
        return f"{name} on a full disk: {'an error, then ' if status else ''}the same files"

    def full_sweep(self, rng: random.Random, folder: Path) -> str:
        """A sweep on a full disk ends in words, and goes on when there is room."""
        sweep = self._finished_sweep()
        size = sum(file.stat().st_size for file in sweep.rglob("*") if file.is_file()) / 2**20
        with SmallDisk(folder / "disk", rng.uniform(0.02, 1.1) * size) as disk:
            status = in_words("a sweep on a full disk", self._start_sweep(disk.folder, folder / "first", disk))
            disk.set(f"size {ROOM_MIB}")
            last = self._start_sweep(disk.folder, folder / "last", disk)
            status_then = last.wait(600)
            if status_then != 0 or len([*(disk.seen / "out" / "runs").glob("*/record.json")]) != CELLS:
                raise NotHeldError(f"a sweep, when there is room again: {last.poll()}: {last.stderr[-700:]}")
        return f"a sweep on a full disk: {'an error, then ' if status else ''}every cell"

    def shown_again(self, rng: random.Random, folder: Path) -> str:
        """A finished run or sweep prints its table again on a read-only disk."""
        what = rng.choice(("run", "sweep"))
        place = self._finished_run() if what == "run" else self._finished_sweep()
        with SmallDisk(folder / "disk", ROOM_MIB) as disk:
            shutil.copytree(place, disk.seen / "copy")
            disk.set("read-only")
            copy = disk.folder / "copy"
            if what == "run":
                again = Command("transfer.run", [*KNN, "--out", str(copy / "runs")], folder / "log", None, disk.enter)
            else:
                again = self._start_sweep(copy, folder / "log", disk, write=False)
            if again.wait() != 0 or "toy_digits" not in again.stdout:
                raise NotHeldError(f"a finished {what} on a read-only disk: {again.poll()}: {again.stderr[-500:]}")
        return f"a finished {what} on a read-only disk: shown"

    def no_output(self, rng: random.Random, folder: Path) -> str:
        """A command whose output goes to a full device ends with one line."""
        runs = str(self._finished_run() / "runs")
        argv = rng.choice(
            (
                ["transfer.report", runs, "--smoke", "--dirty"],
                ["transfer.report", runs, "--smoke", "--dirty", "--format", "csv"],
                ["transfer.verify", runs],
                ["transfer.doctor", "store", runs],
                ["transfer.run", "--list"],
                ["transfer.run", "knn", "--help"],
                ["transfer.run", *KNN, "--out", runs],
                ["transfer.run", *KNN, "--dry-run"],
                ["transfer.sweep", "--list"],
            )
        )
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", *argv], stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                env=ENVIRONMENT, timeout=300,
            )  # fmt: skip
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        if done.returncode != 1 or len(said) != 1 or "Traceback" in done.stderr or "Exception" in done.stderr:
            raise NotHeldError(f"{' '.join(argv)} > /dev/full: {done.returncode}: {done.stderr[-500:]}")
        return "output to a full device: one line"

    def _finished_run(self) -> Path:
        if self._run is None:
            self._run = made_run(self.work / "finished")
        return self._run

    def _finished_sweep(self) -> Path:
        if self._sweep is None:
            place = self.work / "sweep"
            place.mkdir()
            command = self._start_sweep(place, self.work / "log-sweep")
            if command.wait(600) != 0:
                raise RuntimeError(command.stderr)
            self._sweep = place
        return self._sweep

    def _start_sweep(self, place: Path, log: Path, disk: SmallDisk | None = None, *, write: bool = True) -> Command:
        file = log.with_name("soak.yaml")
        if write or not file.exists():
            file.write_text(SWEEP.format(ks=", ".join(map(str, range(3, 3 + CELLS)))), encoding="utf-8")
        argv = [str(file), "--out", str(place / "out"), "--workers", "2"]
        environment = {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
        return Command("transfer.sweep.__main__", argv, log, environment, disk.enter if disk else None)

    def _writer(self, name: str, disk: SmallDisk, log: Path) -> Command:
        program, argv = writers(self._finished_run(), disk.folder)[name]
        (disk.seen / "out").mkdir(exist_ok=True)
        return Command(program, argv, log, None, disk.enter)

    def _undisturbed(self, name: str) -> list[str]:
        if name not in self._whole:
            place = self.work / name
            (place / "out").mkdir(parents=True)
            program, argv = writers(self._finished_run(), place)[name]
            command = Command(program, argv, place / "log")
            if command.wait() != 0:
                raise RuntimeError(command.stderr)
            self._whole[name] = contents(place / "out")
        return self._whole[name]

    def _mib(self, name: str) -> float:
        return sum(file.stat().st_size for file in (self.work / name).rglob("*") if file.is_file()) / 2**20


def in_words(what: str, command: Command) -> int:
    """Return the exit status of a command that a disk may have failed: 0, or 1 with an error in words."""
    status = command.wait(600)
    last = [line for line in command.stderr.replace("\r", "\n").splitlines() if line.strip()][-1:]
    if "Traceback" in command.stderr or status not in (0, 1):
        raise NotHeldError(f"{what}: exit status {status}: {command.stderr[-700:]}")
    if status == 1 and not any(line.startswith(("error: ", "failed: ")) for line in command.stderr.splitlines()):
        raise NotHeldError(f"{what}: no error in words: {last}")
    if "enforce fail" in command.stderr:
        raise NotHeldError(f"{what}: torch's own words: {last}")
    return status
