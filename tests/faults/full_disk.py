"""Kind `disk`: a run on a disk that is too small ends with an error in words, and goes on when there is room."""

import random
import shutil
import signal
from pathlib import Path

from tests.faults.killed import RUNS, Killed, arguments, difference, scraps
from tests.faults.small_disk import SmallDisk
from tests.faults.trial import NotHeldError
from tests.processes import Command

QUICK = [name for name in RUNS if name not in ("linear", "volo", "classify", "two ranks", "sweep")]
ROOM_MIB = 1000.0


class FullDisk:
    """Each command's run on a disk that has room, and whether this machine lets this user mount one."""

    def __init__(self, work: Path) -> None:
        self.runs = Killed(work)
        try:
            with SmallDisk(work / "probe", 1):
                self.mounts = True
        except PermissionError:
            self.mounts = False

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Give one run a disk of less or little more than it needs; see `Kind`."""
        if not self.mounts:
            return "not tried: nothing can be mounted here"
        name = rng.choice(QUICK)
        whole, _ = self.runs.undisturbed(name)
        size = sum(file.stat().st_size for file in whole.rglob("*") if file.is_file()) / 2**20
        with SmallDisk(folder / "disk", rng.uniform(0.02, 1.5) * size) as disk:
            status = in_words(name, self._on(disk, name, folder / "first"))
            disk.set(f"size {ROOM_MIB}")
            last = self._on(disk, name, folder / "last")
            if last.wait() != 0:
                raise NotHeldError(f"{name}, when there is room: exit status {last.poll()}: {last.stderr[-500:]}")
            for made in ("runs", "weights"):
                if (disk.seen / made).exists():
                    shutil.copytree(disk.seen / made, folder / made)
        if harm := difference(whole, folder):
            raise NotHeldError(f"{name} on a full disk: {harm}")
        if left := scraps(folder):
            raise NotHeldError(f"{name} on a full disk: left {', '.join(left)}")
        return f"{name}: {'an error, then ' if status else ''}the same result"

    def _on(self, disk: SmallDisk, name: str, log: Path) -> Command:
        return Command(RUNS[name][0], arguments(name, disk.folder), log, prepare=disk.enter)


def in_words(what: str, command: Command) -> int:
    """Return the exit status of a command. Raises NotHeldError unless it ended well or with an error in one line."""
    try:
        status = command.wait()
    except AssertionError:
        command.kill(signal.SIGKILL)
        raise NotHeldError(f"{what}: it goes on for ever on a full disk") from None
    if status not in (0, 1) or "Traceback" in command.stderr or (status and "error: " not in command.stderr):
        raise NotHeldError(f"{what} on a full disk: exit status {status}: {command.stderr[-500:]}")
    return status
