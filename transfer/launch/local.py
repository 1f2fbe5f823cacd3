"""Runs the processes of a sweep in worker slots of this machine; `slurm.py` is the counterpart for a cluster."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from transfer.core.errors import UserError
from transfer.core.files import write_error
from transfer.core.process import PARENT, SIDE_BY_SIDE, usable_cores
from transfer.launch import ProcessSpec, python_command

GRACE_SECONDS = 120.0  # for a process to save its state after SIGTERM


@dataclass
class LocalJob:
    """A process on this machine, in a process group of its own."""

    process: subprocess.Popen[bytes]
    gpus: tuple[str, ...] = ()

    def poll(self) -> int | None:
        """See `Job`."""
        return self.process.poll()


class LocalLauncher:
    """Runs processes on this machine and gives each of them GPUs that no other one uses.

    Args:
        workers: the number of processes that run at once. None means one per GPU, or one per core without GPUs.

    Attributes:
        shared_by: the number of processes that the cores are divided by. It does not depend on `workers`, because the
            number of threads of a process changes floating-point rounding.
    """

    def __init__(self, workers: int | None = None):
        self.gpus = visible_gpus()
        self.shared_by = len(self.gpus) or usable_cores()
        self.workers = workers or self.shared_by
        self.jobs: list[LocalJob] = []

    @property
    def slots(self) -> int | None:
        """See `Launcher`."""
        return self.workers

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
        if wanted > len(self.gpus):
            raise UserError(
                f"a job requests {wanted} GPUs, this machine has {len(self.gpus)}; use --gpus {len(self.gpus)} "
                "(recorded) or --launcher slurm"
            )
        return len(self._running()) < self.workers and wanted <= len(self._free_gpus())

    def close(self) -> None:
        """See `Launcher`; a process that does not stop in time is killed."""
        for job in (running := self._running()):
            job.process.terminate()  # alone: it stops its children, such as loaders, when its state is saved
        end = time.monotonic() + GRACE_SECONDS
        for job in running:
            try:
                job.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)

    def _start(self, spec: ProcessSpec) -> LocalJob:
        gpus = tuple(self._free_gpus()[: self._wanted_gpus(spec)])
        command = python_command(spec, len(gpus))
        environment = dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if self.gpus else {})
        environment[PARENT] = str(os.getpid())
        environment[SIDE_BY_SIDE] = str(max(1, self.shared_by // max(1, len(gpus))))
        try:
            with spec.log.open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
                )
        except OSError as error:
            raise write_error(spec.log, error) from None
        job = LocalJob(process, gpus)
        self.jobs.append(job)
        return job

    def _running(self) -> list[LocalJob]:
        """Return the jobs that still run, and forget the others."""
        self.jobs = [job for job in self.jobs if job.poll() is None]
        return self.jobs

    def _free_gpus(self) -> list[str]:
        taken = {gpu for job in self._running() for gpu in job.gpus}
        return [gpu for gpu in self.gpus if gpu not in taken]

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
