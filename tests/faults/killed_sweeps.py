"""Kind `soak`: a sweep of many tiny cells by two processes, which is killed again and again.

`python -m tests.faults.killed_sweeps --cells N` prints the memory and the open files of its parent on the way.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backbones.settings import parse
from tests.faults.killed_runs import scraps
from tests.faults.trial import NotHeldError
from tests.processes import ENVIRONMENT, wait_for
from transfer.records.store import Store

CELLS = 6
SWEEP = """
about: many cells that last a second
steps:
  probe:
    run: knn
    backbone: tiny
    dataset: toy_digits
    options: {{smoke: true, workers: 0, other_k: [1, 2]}}
    grid: {{k: [{ks}]}}
"""
MEASURED_SECONDS = 2.0
NO_ORPHANS_SECONDS, PAUSED_SECONDS = 90, 1.0
ENDING = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MEMORY_FACTOR, MORE_FILES = 1.15, 16
"""What a sweep's parent may take more at the end than at the beginning of many cells."""


class KilledSweeps:
    """Sweeps of a few cells each."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.alone: dict[str, str] = {}

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Kill one sweep once or twice; see `Kind`."""
        parents = Parents(folder, CELLS)
        for _ in range(rng.choice((1, 2))):
            parents.run(rng.uniform(0, 25), rng.choice(ENDING), paused=rng.random() < 0.2)
        parents.run()
        parents.check()
        if not self.alone:
            undisturbed = Parents(self.work, CELLS)
            undisturbed.run()
            self.alone = undisturbed.scores()
        if parents.scores() != self.alone:
            raise NotHeldError(f"other scores than those of a sweep that was left alone: {parents.scores()}")
        return "sweep: every cell once, with its scores, no process and no scrap left"


@dataclass(frozen=True)
class Measured:
    """Memory (MiB) and open files of a sweep's parent, its place among them, and the cells that had ended."""

    parent: int
    ended: int
    mib: float
    files: int


class Parents:
    """The processes of one sweep, one after the other."""

    def __init__(self, folder: Path, cells: int) -> None:
        self.folder, self.cells = folder, cells
        # k above 2 is another number of neighbours, and another run
        ks = ", ".join(map(str, range(3, 3 + cells)))
        (folder / "soak.yaml").write_text(SWEEP.format(ks=ks), encoding="utf-8")
        self.measured: list[Measured] = []
        self.killed = 0

    def run(
        self, kill_after: float | None = None, ending: signal.Signals = signal.SIGKILL, *, paused: bool = False
    ) -> bool:
        """Run the sweep until it ends or gets a signal, if wanted after a pause; return whether it ended by itself."""
        words = [sys.executable, "-m", "transfer.sweep", "soak.yaml", "--out", "out", "--workers", "2"]
        environment = {**ENVIRONMENT, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
        begun = time.monotonic()
        with (self.folder / f"log-{self.killed}").open("w") as log:
            parent = subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log, env=environment)
        while parent.poll() is None and (kill_after is None or time.monotonic() < begun + kill_after):
            time.sleep(min(MEASURED_SECONDS, kill_after or MEASURED_SECONDS))
            self._measure(parent.pid)
        if parent.poll() is None:
            self._end(parent, ending, paused)
            return False
        if parent.returncode != 0:
            said = (self.folder / f"log-{self.killed}").read_text()[-500:]
            raise NotHeldError(f"a sweep killed {self.killed} times: exit status {parent.returncode}: {said}")
        return True

    def _end(self, parent: "subprocess.Popen[bytes]", ending: signal.Signals, paused: bool) -> None:
        if paused:
            parent.send_signal(signal.SIGSTOP)
            time.sleep(PAUSED_SECONDS)
            parent.send_signal(signal.SIGCONT)
        parent.send_signal(ending)
        try:
            parent.wait(NO_ORPHANS_SECONDS)
        except subprocess.TimeoutExpired:
            parent.kill()
            raise NotHeldError(f"a sweep that got {ending.name} did not end in {NO_ORPHANS_SECONDS} s") from None
        said = (self.folder / f"log-{self.killed}").read_text()
        self.killed += 1
        if "Traceback" in said:
            raise NotHeldError(f"a sweep that got {ending.name}: {said[-500:]}")
        try:
            wait_for(lambda: not [*_children(self.folder)], NO_ORPHANS_SECONDS)
        except AssertionError:
            orphans = [*_children(self.folder)]
            raise NotHeldError(f"processes of a sweep that got {ending.name} go on: {orphans}") from None

    def check(self) -> None:
        """Check that each cell has one record, and that nothing else is left."""
        runs, problems = Store(self.folder / "out" / "runs").runs()
        if len(runs) != self.cells or problems or Store(self.folder / "out" / "runs").unfinished():
            raise NotHeldError(f"{len(runs)} records of {self.cells} cells; {problems}")
        if left := scraps(self.folder / "out"):
            raise NotHeldError(f"left {', '.join(left)}")

    def scores(self) -> dict[str, str]:
        """Return the scores of each cell by its run's name, and the digest of its results of samples."""
        return {
            run.record.run_id: f"{run.record.scores} {run.record.outcome} {run.record.files['outcomes.npz']}"
            for run in Store(self.folder / "out" / "runs").runs()[0]
        }

    def check_flat(self) -> None:
        """Check that the last parent took hardly more memory and files than the first."""
        peaks = self.peaks()
        first, last = peaks[0], peaks[-1]
        if last.mib > MEMORY_FACTOR * first.mib or last.files > first.files + MORE_FILES:
            raise NotHeldError(
                f"the parent grows: {first.mib:.0f} MiB and {first.files} files at {first.ended} cells,"
                f" {last.mib:.0f} MiB and {last.files} files at {last.ended}"
            )

    def peaks(self) -> list[Measured]:
        """Return, for each parent that lived to see cells end, the most that it took."""
        by_parent: dict[int, list[Measured]] = {}
        for one in self.measured:
            by_parent.setdefault(one.parent, []).append(one)
        return [
            Measured(parent, seen[-1].ended, max(one.mib for one in seen), max(one.files for one in seen))
            for parent, seen in by_parent.items()
            if seen[-1].ended > seen[0].ended
        ]

    def _measure(self, parent: int) -> None:
        try:
            status = Path(f"/proc/{parent}/status").read_text()
            files = len([*Path(f"/proc/{parent}/fd").iterdir()])
        except OSError:
            return
        memory = next((line for line in status.splitlines() if line.startswith("VmRSS")), "VmRSS: 0 kB")
        ended = len([*(self.folder / "out" / "runs").glob("*/record.json")])
        self.measured.append(Measured(self.killed, ended, int(memory.split()[1]) / 1024, files))


def _children(folder: Path) -> Iterator[int]:
    """Yield the processes whose working directory or arguments are of a sweep's folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if folder == (entry / "cwd").readlink() and b"transfer" in (entry / "cmdline").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue


@dataclass(kw_only=True)
class SoakOptions:
    """Run a long sweep that is killed at random, and print what its parent takes."""

    cells: int = 1000
    """Cells of the sweep."""
    seed: int = 0
    """The seed of the kills."""
    every: float = 120.0
    """Mean seconds between two kills."""


def main(argv: list[str]) -> int:
    """Print memory and open files of the parent over the sweep."""
    options = parse(SoakOptions, argv, prog="python -m tests.faults.killed_sweeps")
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        parents = Parents(Path(scratch), options.cells)
        ended = False
        while not ended:
            ended = parents.run(kill_after=rng.uniform(1, 2 * options.every))
            for one in parents.peaks()[-1:]:
                print(f"{one.ended} cells ended: {one.mib:.1f} MiB, {one.files} open files", flush=True)
        parents.check()
        parents.check_flat()
        print(f"{options.cells} cells, all recorded; killed {parents.killed} times")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
