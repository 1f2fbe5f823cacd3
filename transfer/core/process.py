"""How many threads torch gets on this machine: the number asked for, else the cores that are left for this process.

Threads that have no core of their own are worse than none: all others wait for them at the end of every operation. A
wait that spins takes the core from the one that is waited for, so `wait_asleep` has OpenMP sleep instead.
"""

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, count

SIDE_BY_SIDE = "TRANSFER_SIDE_BY_SIDE"
"""How many cells of a sweep run at once on this machine; the sweep sets it for its processes."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SMALL_WORK = 2e9
"""Operations of a forward pass (two for each multiply-add) below which a second thread is not worth its core.

Measured with training steps under bf16 on an AMD EPYC of two cores, by the processor time that two threads take over
one: 1.8 times at 0.2e9 (the smoke runs' `tiny` with 32 images of 64 px), 1.2 to 1.6 at 0.4e9 to 1.7e9 (`tiny` with 256
images, ViT-S with 2 and 8 of 32 px, a ViT-Ti with 4), and 1.03 to 1.1 from 3.5e9 on (ViT-S with 8 of 48 px). With the
cores nearly free, two threads took 1.9 times the wall time of one at 0.2e9, and 0.75 and 0.64 of it at 20e9 (ViT-S, 48
of 48 px and 4 of 224 px); beside a busy process 1.1, 1.07 and 1.02 times.
"""


@dataclass
class Threads:
    """The number of threads, the reason for it, and whether the user asked for it."""

    count: int
    reason: str
    requested: bool = False

    def for_model(self, work: float) -> "Threads":
        """Return the same, or one thread for a model whose forward pass of `work` operations is below `SMALL_WORK`."""
        if self.requested or self.count == 1 or work >= SMALL_WORK:
            return self
        return Threads(1, f"a forward pass of {work:.1e} operations is too small for {self.count}")


def usable_cores() -> int:
    """Return the cores that this process may use beside other processes of its kind; see `core_limit`."""
    return core_limit()[0]


def core_limit() -> tuple[int, str]:
    """Return the cores that this process may use, and a phrase that says what limits them.

    They are those of its affinity, no more than the quota of its control group, and shared with the other
    cells of a sweep that run at the same time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    reason = count(cores, "core")
    quota = cgroup_quota()
    if quota < cores:
        cores, reason = max(1, int(quota)), f"a quota of {quota:g} cores"
    sharing = os.environ.get(SIDE_BY_SIDE, "")
    if sharing.isdecimal() and int(sharing) > 1:
        cores, reason = max(1, cores // int(sharing)), f"{reason}, shared by {sharing} cells"
    return cores, reason


GROUPS = Path("/proc/self/cgroup")
"""Has lines `number:controllers:path`; v2's has no controllers."""
GROUPS_ROOT = Path("/sys/fs/cgroup")
"""Where the groups are mounted. In a container the path may be that of the host, of which only the container's own end
is mounted, as the root."""


def cgroup_quota() -> float:
    """Return the least quota of the control groups (v2) that this process is in, in cores; infinite without one."""
    quotas = [float("inf")]
    with contextlib.suppress(OSError):
        lines = GROUPS.read_text(encoding="utf-8").splitlines()
        paths = [GROUPS_ROOT / line.split(":", 2)[2].strip("/") for line in lines if "::" in line]
        for group in chain.from_iterable((path, *path.parents) for path in paths):
            with contextlib.suppress(OSError, ValueError):  # without a file, or with "max"
                limit, period = map(float, (group / "cpu.max").read_text(encoding="utf-8").split())
                quotas.append(limit / period)
    return min(quotas)


def wait_asleep() -> None:
    """Make OpenMP's threads sleep while they wait, unless the environment says otherwise. Call it before importing
    torch.

    They spin for milliseconds otherwise, and beside a busy process a step of `tiny` took up to 100 times as long with
    two threads as with one. Asleep, the processor time stays within 1.1 of a free machine's; on a free one a step
    of ViT-S took 1.1 to 1.2 times as long.
    """
    if not any(name in os.environ for name in WAITING):
        os.environ["OMP_WAIT_POLICY"] = "passive"


PARENT = "TRANSFER_END_WITH"
"""Variable of the environment with the number of the process that this one ends with."""
SECONDS = 1.0
"""Seconds between two looks."""


def end_with_parent() -> None:
    """Send SIGTERM to this process, which saves its state, as soon as the process in `PARENT` has ended.

    It need not be the direct parent: torchrun may stand between. Without the variable nothing is done.
    """
    number = os.environ.pop(PARENT, "")
    if number.isdigit():
        _watch_for(int(number), lambda: os.kill(os.getpid(), signal.SIGTERM))


def exit_with(process: int) -> None:
    """End this process, which keeps nothing, as soon as the one of this number has ended."""
    _watch_for(process, lambda: os._exit(1))


GRACE = 2.0
"""Seconds that a process has to end by itself after a second signal."""


@contextlib.contextmanager
def signals_answered(numbers: Collection[int], answer: Callable[[], None], status: int) -> Iterator[None]:
    """Answer the first of these signals at once, and end the process soon after a second one, unless the block ends.

    Python's handlers wait for the operation that computes, which takes minutes in a backward pass on a CPU; so a thread
    does both. An interactive session does not end.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    ended = threading.Event()

    def watch() -> None:
        with reader:
            came = 0
            while number := reader.recv(1):
                came += number[0] in numbers
                if number[0] in numbers and came == 1:
                    with contextlib.suppress(OSError, ValueError):  # the terminal is closed
                        answer()
                elif came > 1 and not hasattr(sys, "ps1") and not ended.wait(GRACE):
                    os._exit(status)

    threading.Thread(target=watch, daemon=True, name="signals").start()
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        ended.set()
        writer.shutdown(socket.SHUT_RDWR)  # ends the thread, even if a fork has a copy
        writer.close()


def _watch_for(number: int, end: Callable[[], None]) -> None:
    def watch() -> None:
        while is_alive(number):
            time.sleep(SECONDS)
        end()

    threading.Thread(target=watch, daemon=True, name="parent watch").start()


def is_alive(number: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked for its status does not."""
    try:
        os.kill(number, 0)
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except ProcessLookupError:
        return False
    except OSError:  # /proc is missing, or this process has too few file descriptors to read it by
        return True
    return stat.rpartition(")")[2].split()[0] != "Z"  # the name before may hold anything


files_at_fork = 0
"""`file_pages()` of the server that this process was forked from, at that time; 0 for any other process."""


def peak_memory() -> int:
    """Return the most memory that this process has used so far, in KiB.

    A fork begins without the pages of files, such as libraries, that its server has touched. They count here, as in a
    process that has imported the same modules itself.
    """
    untouched = max(0, files_at_fork - file_pages()) * os.sysconf("SC_PAGE_SIZE") // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + untouched


def file_pages() -> int:
    """Return the number of pages of files that this process has touched; 0 where /proc does not say."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[2])
    return 0


@dataclass(frozen=True)
class Ranks:
    """This process's rank in a distributed job, and the sizes of the job and its groups."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    token_ranks: int = 1
    """How many neighbouring ranks share the tokens of the same images (`--sequence-parallel`)."""

    @property
    def data(self) -> "Ranks":
        """The ranks with those that see the same images counted as one."""
        return Ranks(self.rank // self.token_ranks, self.world // self.token_ranks)

    @property
    def first(self) -> bool:
        """Whether this rank writes files and tables."""
        return self.rank == 0


ALONE = Ranks()
_FIX = "for one process `unset WORLD_SIZE RANK LOCAL_RANK`, for several start with torchrun"


def ranks_from_environment(token_ranks: int = 1) -> Ranks:
    """Return what `torchrun` sets in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.

    Without WORLD_SIZE, or with 1, this is a world of one, whatever else a cluster has left in the environment. Empty
    variables count as unset.

    Raises:
        UsageError: variables that describe no job, or groups of `token_ranks` ranks that would leave some over.
    """
    world = _number("WORLD_SIZE", 1)
    if world % token_ranks:
        fix = f"start a multiple of it with torchrun --nproc-per-node {token_ranks} -m transfer..."
        raise UsageError(f"--sequence-parallel {token_ranks}: {world} ranks do not make groups of {token_ranks}; {fix}")
    if world == 1:
        return Ranks()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UsageError(f"WORLD_SIZE={world}, but not {', '.join(missing)}, is set; {_FIX}")
    rank = _number("RANK", 0, below=world)
    return Ranks(rank, world, _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1), token_ranks)


def _number(name: str, default: int, below: int | None = None) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or (below is not None and int(text) >= below):
        raise UsageError(f"the environment variable {name}={text} describes no distributed job; {_FIX}")
    return int(text)


def part_of_rank(items: list[Any], ranks: Ranks) -> list[Any]:
    """Return the contiguous part of a global list that belongs to this rank; parts differ by one at most."""
    bounds = [len(items) * r // ranks.world for r in (ranks.rank, ranks.rank + 1)]
    return items[bounds[0] : bounds[1]]


INTERRUPTED = 130
"""Exit status after Ctrl-C while nothing is under way that could be saved."""
