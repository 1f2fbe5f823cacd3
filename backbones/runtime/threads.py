"""How many threads torch gets on this machine: the number asked for, else the cores that are left for this process.

Threads that have no core of their own are worse than none: all others wait for them at the end of every operation. A
wait that spins takes the core from the one that is waited for, so `wait_asleep` has OpenMP sleep instead.
"""

import contextlib
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

SIDE_BY_SIDE = "TRANSFER_SIDE_BY_SIDE"
"""How many cells of a sweep run at once on this machine; the sweep sets it for its processes."""
SHARED_BY = {"PYTEST_XDIST_WORKER_COUNT": "tests", SIDE_BY_SIDE: "cells"}
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
SMALL = 2e9
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
    logged_reason: str = ""
    """What was last said of it in the log"""

    def for_model(self, work: float) -> "Threads":
        """Return the same, or one thread for a model whose forward pass of `work` operations is below `SMALL`."""
        if self.requested or self.count == 1 or work >= SMALL:
            return self
        return Threads(1, f"a forward pass of {work:.1e} operations is too small for {self.count}")


def choose_threads(
    given: int | None,
    cores: int,
    reason: str,
    *,
    under_torchrun: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> Threads:
    """Return the threads of a rank: `--threads`, else OMP_NUM_THREADS (its first number), else `cores`.

    Args:
        cores: the cores of this rank, less its loader processes.
        reason: a phrase that says what limits the cores.
        under_torchrun: whether torchrun may have set OMP_NUM_THREADS: it sets 1 where nobody else has set it, so that
            a 1 says nothing then.
    """
    if given is not None:
        return Threads(given, "--threads", requested=True)
    variable = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if variable.isdecimal() and int(variable) > 0 and not (under_torchrun and int(variable) == 1):
        return Threads(int(variable), "OMP_NUM_THREADS", requested=True)
    return Threads(max(cores, 1), reason)


def usable_cores() -> int:
    """Return the cores that this process may use beside other processes of its kind; see `core_limit`."""
    return core_limit()[0]


def core_limit(
    environment: Mapping[str, str] = os.environ,
    groups: Path = Path("/proc/self/cgroup"),
    root: Path = Path("/sys/fs/cgroup"),
) -> tuple[int, str]:
    """Return the cores that this process may use, and a phrase that says what limits them.

    They are those of its affinity, no more than the quota of its control group, and shared with the other tests or
    cells that run at the same time.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    reason = f"{cores} core{'s' * (cores != 1)}"
    quota = cgroup_quota(groups, root)
    if quota < cores:
        cores, reason = max(1, int(quota)), f"a quota of {quota:g} cores"
    for name, kind in SHARED_BY.items():
        count = environment.get(name, "")
        if count.isdecimal() and int(count) > 1:
            cores, reason = max(1, cores // int(count)), f"{reason}, shared by {count} {kind}"
    return cores, reason


def cgroup_quota(groups: Path, root: Path) -> float:
    """Return the least quota of the control groups (v2) that this process is in, in cores; infinite without one.

    Args:
        groups: lines `number:controllers:path`; v2's has no controllers.
        root: where the groups are mounted. In a container the path may be that of the host, of which only the
            container's own end is mounted, as the root.
    """
    quotas = [float("inf")]
    with contextlib.suppress(OSError):
        paths = [line.split(":", 2)[2] for line in groups.read_text(encoding="utf-8").splitlines() if "::" in line]
        for parts in ([part for part in path.split("/") if part not in ("", "..")] for path in paths):
            quotas += [_quota(root.joinpath(*parts[:end])) for end in range(len(parts) + 1)]
    return min(quotas)


def _quota(group: Path) -> float:
    try:
        limit, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return float("inf") if limit == "max" else float(limit) / float(period)
    except (OSError, ValueError):
        return float("inf")


def wait_asleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Make OpenMP's threads sleep while they wait, unless the environment says otherwise. Call it before importing
    torch.

    They spin for milliseconds otherwise, and beside a busy process a step of `tiny` took up to 100 times as long with
    two threads as with one. Asleep, the processor time stays within 1.1 of a free machine's; on a free one a step
    of ViT-S took 1.1 to 1.2 times as long.
    """
    if not any(name in environment for name in WAITING):
        environment["OMP_WAIT_POLICY"] = "passive"
