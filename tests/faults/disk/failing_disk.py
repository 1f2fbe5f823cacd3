"""Kind `disk`: full, read-only, gone, over quota, slow, with errors of reading, writing and fsync.

A run on it ends with an error in words, and goes on to the undisturbed result when the disk works again.
"""

import errno
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.faults.disk.failing_outputs import FailingOutputs, in_words
from tests.faults.disk.small_disk import SmallDisk
from tests.faults.killed_runs import RUNS, difference, scraps
from tests.faults.trial import NotHeldError, NotReachedError
from tests.processes import ENVIRONMENT, Command

QUICK = [name for name in RUNS if name not in ("linear", "volo", "classify")]
CALLS = (
    ("write", errno.EIO),
    ("write", errno.EDQUOT),
    ("write", errno.ENOSPC),
    ("fsync", errno.EIO),
    ("fsync", errno.EDQUOT),
    ("close", errno.EDQUOT),
    ("rename", errno.EDQUOT),
    ("read", errno.EIO),
    *((call, 0) for call in ("fsync", "read", "write")),
)


class FailingDisk:
    """Each command's run on a disk that works, with its duration and size."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.alone: dict[str, tuple[Path, float, float]] = {}
        self.calls: dict[str, Counter[str]] = {}
        self.library, self.mounts = _built(work), _mounts(work / "probe")
        self.outputs = FailingOutputs(work / "outputs")

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Let the disk of one run fail once; see `Kind`."""
        if rng.random() < 0.4:
            of_mounts = (self.outputs.full, self.outputs.full_sweep, self.outputs.shown_again) if self.mounts else ()
            return rng.choice((self.outputs.no_output, *of_mounts))(rng, folder)
        name = rng.choice(QUICK)
        trials = [self._full, self._read_only, self._gone] if self.mounts else []
        trials += [self._failing_call, self._order] if self.library is not None else []
        if not trials:
            return "not tried: nothing can be mounted here, and there is no compiler"
        return rng.choice(trials)(name, rng, folder)

    def _alone(self, name: str) -> tuple[Path, float, float]:
        if name not in self.alone:
            folder, begun = self.work / name, time.monotonic()
            folder.mkdir()
            command = _start(name, folder, folder / "log")
            if command.wait() != 0:
                raise RuntimeError(command.stderr)
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20
            self.alone[name] = folder / "runs", time.monotonic() - begun, size
        return self.alone[name]

    def _full(self, name: str, rng: random.Random, folder: Path) -> str:
        _, _, size = self._alone(name)
        with SmallDisk(folder / "disk", rng.uniform(0.02, 1.5) * size) as disk:
            first = self._on(disk, name, folder, "first")
            status = in_words(f"{name} on a full disk", first)
            disk.set("size 1000")
            return self._goes_on(f"{name} on a full disk", name, disk, folder, status)

    def _read_only(self, name: str, rng: random.Random, folder: Path) -> str:
        _, seconds, _ = self._alone(name)
        with SmallDisk(folder / "disk", 1000) as disk:
            first = self._on(disk, name, folder, "first")
            time.sleep(rng.uniform(0, seconds))
            first.kill(signal.SIGKILL)
            disk.set("read-only")
            status = in_words(f"{name} on a read-only disk", self._on(disk, name, folder, "second"))
            disk.set("writable")
            return self._goes_on(f"{name} on a read-only disk", name, disk, folder, status)

    def _gone(self, name: str, rng: random.Random, folder: Path) -> str:
        _, seconds, _ = self._alone(name)
        with SmallDisk(folder / "disk", 1000) as disk:
            first = self._on(disk, name, folder, "first")
            time.sleep(rng.uniform(0, seconds))
            disk.set("gone")
            status = in_words(f"{name} on a disk that went away", first)
            shutil.rmtree(disk.seen, ignore_errors=True)  # what was written in its place
            disk.seen.mkdir(exist_ok=True)
            disk.set("back")
            return self._goes_on(f"{name} on a disk that went away", name, disk, folder, status)

    def _on(self, disk: SmallDisk, name: str, folder: Path, log: str) -> Command:
        return _start(name, disk.folder, folder / f"log-{log}", disk)

    def _goes_on(self, what: str, name: str, disk: SmallDisk, folder: Path, status: int) -> str:
        last = self._on(disk, name, folder, "last")
        if last.wait() != 0:
            raise NotHeldError(f"{what}: when the disk works again, exit status {last.poll()}: {last.stderr[-500:]}")
        for made in ("runs", "weights"):
            if (disk.seen / made).exists():
                shutil.copytree(disk.seen / made, folder / made)
        self._check(what, name, folder)
        return f"{what.removeprefix(f'{name} ')}: {'an error, then ' if status else ''}the same result"

    def _check(self, what: str, name: str, folder: Path) -> None:
        if harm := difference(self._alone(name)[0], folder / "runs"):
            raise NotHeldError(f"{what}: {harm}")
        if left := scraps(folder):
            raise NotHeldError(f"{what}: left {', '.join(left)}")

    def _failing_call(self, name: str, rng: random.Random, folder: Path) -> str:
        """A call of the system fails for a while, once a random number of them went well."""
        self._alone(name)
        call, error = rng.choice(CALLS)
        what = f"{name} with {errno.errorcode.get(error, 'slow')} of {call}"
        first = int(rng.triangular(0, self._count(name, call), 0)) if error else 0
        rules = {"FAULT_CALL": call, "FAULT_ERRNO": f"{error}", "FAULT_FROM": f"{first}"}
        rules |= {"FAULT_COUNT": f"{rng.choice((1, 1, 1000))}" if error else "200", "FAULT_UNDER": f"{folder}/"}
        fired = folder.with_name(f"{folder.name}-fired")
        rules["FAULT_FIRED"] = str(fired)
        status, said = self._preloaded(name, folder, rules)
        if "Traceback" in said or status not in (0, 1):
            raise NotHeldError(f"{what}: exit status {status}: {said[-500:]}")
        last = _start(name, folder, folder / "log-last")
        if last.wait() != 0:
            raise NotHeldError(f"{what}: when the disk works again, exit status {last.poll()}: {last.stderr[-500:]}")
        self._check(what, name, folder)
        if not fired.exists():
            raise NotReachedError(what)
        return f"{errno.errorcode.get(error, 'slow')} of {call}: {'an error, then ' if status else ''}the same result"

    def _count(self, name: str, call: str) -> int:
        """Return how many calls of a kind an undisturbed run makes."""
        if name not in self.calls:
            folder = self.work / f"{name}-calls"
            folder.mkdir()
            log = self.work / f"{name}-counted"
            rules = {"FAULT_CALL": "none", "FAULT_FIRED": str(log), "FAULT_UNDER": f"{folder}/"}
            status, said = self._preloaded(name, folder, rules)
            if status != 0:
                raise RuntimeError(said)
            self.calls[name] = Counter(line.partition("\t")[0] for line in log.read_text().splitlines())
        return self.calls[name][call]

    def _order(self, name: str, rng: random.Random, folder: Path) -> str:
        """Whatever takes the name of a file has reached the disk before; its folder does so afterwards."""
        status, said = self._preloaded(name, folder, {"FAULT_LOG": str(folder / "calls")})
        if status != 0:
            raise NotHeldError(f"{name} with a log of its calls: exit status {status}: {said[-500:]}")
        lines = [line.split("\t") for line in (folder / "calls").read_text(encoding="utf-8").splitlines()]
        calls = [(what, Path(first), Path(second)) for what, first, second in lines]
        flushed: set[Path] = set()
        for place, (what, first, second) in enumerate(calls):
            if what == "fsync":
                flushed.add(first)
            elif folder in second.parents:
                files = [first] if first in flushed else [file for file in flushed if first in file.parents]
                flushed |= {second if file == first else second / file.relative_to(first) for file in files}
                if not files:
                    raise NotHeldError(f"{name}: {second} got its name before its content was on the disk")
                if ("fsync", second.parent) not in {later[:2] for later in calls[place:]}:
                    raise NotHeldError(f"{name}: {second} got its name, and its folder was not flushed")
        return "fsync before every rename, and of the folder after it"

    def _preloaded(self, name: str, folder: Path, variables: dict[str, str]) -> tuple[int, str]:
        program, words = RUNS[name]
        argv = [sys.executable, "-m", program, *words, *_places(program, folder)]
        environment = {**ENVIRONMENT, **variables, "LD_PRELOAD": str(self.library)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stderr


def _mounts(folder: Path) -> bool:
    """Return whether this machine lets this user mount a disk."""
    try:
        with SmallDisk(folder, 1):
            return True
    except PermissionError:
        return False


def _built(work: Path) -> Path | None:
    """Build the library that lets calls fail; None where there is no compiler."""
    if shutil.which("gcc") is None:
        return None
    source, library = Path(__file__).with_name("failing_calls.c"), work / "failing_calls.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def _places(program: str, folder: Path) -> list[str]:
    words = ["--out", str(folder / "runs"), "--features", str(folder / "features")]
    return words + (["--weights-to", str(folder / "weights")] if program == "transfer.pretrain" else [])


def _start(name: str, folder: Path, log: Path, disk: SmallDisk | None = None) -> Command:
    program, words = RUNS[name]
    return Command(program, [*words, *_places(program, folder)], log, prepare=disk.enter if disk else None)
