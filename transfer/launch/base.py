"""What a launcher is: it starts processes and says how each of them ends."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class ProcessSpec:
    """One process to be: `python -m WORDS`."""

    words: tuple[str, ...]
    log: Path
    """Its stdout and stderr are added to this file."""
    resources: dict[str, Any] = field(default_factory=dict)
    """cpus, gpus, nodes, memory_gb, minutes, partition, ...: what a cluster is asked for."""


class Job(Protocol):
    """A process that was started, or waits to be."""

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it waits or runs."""

    def cancel(self) -> None:
        """Asks it to save its state and stop."""


class Launcher(Protocol):
    """Starts processes."""

    @property
    def slots(self) -> int | None:
        """How many can be under way at once; None where somebody else, as Slurm, decides."""

    def fits(self, work: ProcessSpec) -> bool:
        """Whether it can be started now. Raises UserError when it never can."""

    def start(self, works: Sequence[ProcessSpec]) -> Sequence[Job]:
        """Starts processes, or puts them into a queue. Raises UserError."""

    def close(self) -> None:
        """Lets go of what is under way: stops it with its state saved, or leaves it to the cluster and says so."""


def python_words(work: ProcessSpec, gpus: int) -> list[str]:
    """The command line of a work: by torchrun where it takes several GPUs."""
    ranks = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus), "-m"] if gpus > 1 else []
    return [sys.executable, "-m", *ranks, *work.words]
