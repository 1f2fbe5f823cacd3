"""Worker slots of this machine, where the processes of a sweep run; `slurm.py` beside it has the same for a cluster."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from backbones.errors import UserError
from backbones.runtime.files import write_error
from backbones.runtime.threads import SIDE_BY_SIDE
from transfer.launch.base import ProcessSpec, python_words

GRACE_SECONDS = 120.0  # for a process that was asked to stop to save its state


@dataclass
class LocalJob:
    """A process of this machine, in a group of its own."""

    process: subprocess.Popen[bytes]
    gpus: tuple[str, ...] = ()

    def poll(self) -> int | None:
        """See `Job`."""
        return self.process.poll()

    def cancel(self) -> None:
        """SIGTERM to the process alone: it stops its own children, as loader processes, when its state is saved."""
        if self.process.poll() is None:
            self.process.terminate()

    def kill(self) -> None:
        """Ends the whole group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class LocalLauncher:
    """Worker slots of this machine; cores and GPUs are shared out, none is used twice.

    Args:
        workers: processes at once; None: one for each GPU, or else for each core.
    """

    def __init__(self, workers: int | None = None):
        from backbones.runtime.threads import usable_cores

        self.gpus = _visible_gpus()
        self.workers = workers or len(self.gpus) or usable_cores()
        self.jobs: list[LocalJob] = []

    @property
    def slots(self) -> int | None:
        """See `Launcher`."""
        return self.workers

    def start(self, works: Sequence[ProcessSpec]) -> list[LocalJob]:
        """See `Launcher`.

        Raises:
            UserError: a work asks for more GPUs than there are, or its log cannot be written.
        """
        return [self._start(work) for work in works]

    def fits(self, work: ProcessSpec) -> bool:
        """Whether a slot and the GPUs that a work takes are free now. Raises UserError when they never are."""
        wanted = self._wanted_gpus(work)
        if int(work.resources.get("nodes", 1)) > 1:
            raise UserError(f"a cell asks for {work.resources['nodes']} nodes: give --launcher slurm")
        if wanted > len(self.gpus):
            raise UserError(
                f"a cell asks for {wanted} GPUs, this machine has {len(self.gpus)}: give --gpus {len(self.gpus)}, "
                "which is recorded, or --launcher slurm"
            )
        return len(self._running()) < self.workers and wanted <= len(self._free_gpus())

    def close(self) -> None:
        """See `Launcher`; what does not stop in time is killed."""
        running = self._running()
        for job in running:
            job.cancel()
        end = time.monotonic() + GRACE_SECONDS
        for job in running:
            try:
                job.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                job.kill()

    def _start(self, work: ProcessSpec) -> LocalJob:
        gpus = tuple(self._free_gpus()[: self._wanted_gpus(work)])
        words = python_words(work, len(gpus))
        environment = dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if self.gpus else {})
        environment[SIDE_BY_SIDE] = str(max(1, self.workers // max(1, len(gpus))))
        try:
            with work.log.open("ab") as log:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise write_error(work.log, error) from None
        job = LocalJob(process, gpus)
        self.jobs.append(job)
        return job

    def _running(self) -> list[LocalJob]:
        """Those under way; the others are forgotten."""
        self.jobs = [job for job in self.jobs if job.poll() is None]
        return self.jobs

    def _free_gpus(self) -> list[str]:
        taken = {gpu for job in self._running() for gpu in job.gpus}
        return [gpu for gpu in self.gpus if gpu not in taken]

    def _wanted_gpus(self, work: ProcessSpec) -> int:
        """One if there is one; several must be there."""
        asked = int(work.resources.get("gpus", 1))
        return min(asked, len(self.gpus)) if asked <= 1 else asked


def _visible_gpus() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [gpu for gpu in given.split(",") if gpu.strip()]
    import torch

    return [str(gpu) for gpu in range(torch.cuda.device_count())]
