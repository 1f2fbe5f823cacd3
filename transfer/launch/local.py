"""Runs the processes of a sweep in worker slots of this machine; `slurm.py` is the counterpart for a cluster."""

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import BinaryIO

from transfer.core.errors import UserError
from transfer.core.files import writing
from transfer.core.process import PARENT, SIDE_BY_SIDE, is_alive, usable_cores
from transfer.launch import ProcessSpec, python_command
from transfer.launch.fork_server import ForkedJob, ForkServer, in_own_session, preloaded_for

GRACE_SECONDS = 120.0  # for a process to save its state after SIGTERM
LOOK_SECONDS = 0.1
LocalJob = subprocess.Popen[bytes] | ForkedJob
"""Torchrun, or a job that is one process."""


class LocalLauncher:
    """Runs processes on this machine and gives each of them GPUs that no other one uses, or a share of one.

    Args:
        workers: the number of processes that run at once. None means one per place on a GPU, or one per core without
            GPUs.
        per_gpu: the number of processes that share a GPU.

    Attributes:
        gpus: the ids of the GPUs, each as often as processes share it.
        shared_by: the number of processes that the cores are divided by. It does not depend on `workers`, because the
            number of threads of a process changes floating-point rounding.
    """

    def __init__(self, workers: int | None = None, per_gpu: int = 1):
        self.gpus = [*visible_gpus()] * per_gpu
        self.shared_by = len(self.gpus) or usable_cores()
        self.slots: int | None = workers or self.shared_by
        self.jobs: list[tuple[LocalJob, tuple[str, ...]]] = []
        """The processes, each in a process group of its own, and their GPUs."""
        self._servers: dict[tuple[str, ...], ForkServer] = {}
        """By the modules that they have imported."""

    def start(self, processes: Sequence[ProcessSpec]) -> list[LocalJob]:
        """See `Launcher`.

        Raises:
            UserError: a process requests more GPUs than there are, or its log cannot be written.
        """
        return [self._start(spec) for spec in processes]

    def fits(self, process: ProcessSpec) -> bool:
        """Return whether a slot and enough GPUs are free now. Raises UserError when they never are."""
        wanted = self._wanted_gpus(process)
        if int(process.resources.get("nodes", 1)) > 1:
            raise UserError(f"a job requests {process.resources['nodes']} nodes; use --launcher slurm")
        if wanted > (count := len({*self.gpus})):
            raise UserError(
                f"a job requests {wanted} GPUs, this machine has {count}; use --gpus {count} "
                "(recorded) or --launcher slurm"
            )
        return len(self._running()) < (self.slots or 0) and wanted <= len(self._free_gpus())

    def close(self) -> None:
        """See `Launcher`; a process that does not stop in time is killed."""
        for job, _ in self.jobs:
            job.terminate()  # alone: it stops its children, such as loaders, when its state is saved
        end, left = time.monotonic() + GRACE_SECONDS, [job.pid for job, _ in self.jobs]
        while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for server in self._servers.values():
            server.close()

    def _start(self, spec: ProcessSpec) -> LocalJob:
        gpus = tuple(self._free_gpus()[: self._wanted_gpus(spec)])
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if self.gpus else {}
        environment[PARENT] = str(os.getpid())
        environment[SIDE_BY_SIDE] = str(max(1, self.shared_by // max(1, len(gpus))))
        with writing(spec.log), spec.log.open("ab") as log:
            job = self._started(spec, len(gpus), log, environment)
        self.jobs.append((job, gpus))
        return job

    def _started(self, spec: ProcessSpec, gpus: int, log: BinaryIO, environment: dict[str, str]) -> LocalJob:
        if gpus > 1:
            return in_own_session(python_command(spec.arguments, gpus), log, environment)
        modules = preloaded_for(spec.arguments, bool(self.gpus))
        if modules not in self._servers or self._servers[modules].ended:
            self._servers[modules] = ForkServer(modules, log)
        return self._servers[modules].start(spec.arguments, spec.log, environment)

    def _running(self) -> list[tuple[LocalJob, tuple[str, ...]]]:
        """Return the jobs that still run, and forget the others."""
        self.jobs = [job for job in self.jobs if job[0].poll() is None]
        return self.jobs

    def _free_gpus(self) -> list[str]:
        """Return the GPUs with a free place, those with the most first."""
        free = Counter(self.gpus)
        for _, gpus in self._running():
            free.subtract(gpus)
        return [gpu for gpu, places in free.most_common() if places]

    def _wanted_gpus(self, process: ProcessSpec) -> int:
        """Return the number of GPUs that a process takes: a single one is optional, several must exist."""
        requested = int(process.resources.get("gpus", 1))
        return min(requested, len(self.gpus)) if requested <= 1 else requested


def visible_gpus() -> list[str]:
    """Return the ids of the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [gpu for gpu in visible.split(",") if gpu.strip()]
    import torch

    return [str(gpu) for gpu in range(torch.cuda.device_count())]
