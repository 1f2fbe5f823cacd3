"""Processes as local workers, or as jobs of a Slurm cluster through submitit.

Which commands are started is decided elsewhere (`transfer/sweep`, or a single command with `--launcher slurm`).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class ProcessSpec:
    """A process to start: `python -m ARGUMENTS`."""

    arguments: tuple[str, ...]
    log: Path
    """The file to which its stdout and stderr are appended."""
    resources: dict[str, Any] = field(default_factory=dict)
    """The resources that it requests from a cluster: cpus, gpus, nodes, memory_gb, minutes, partition, ..."""


class Job(Protocol):
    """A process that was started or waits in a queue."""

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it waits or runs."""


class Launcher(Protocol):
    """Starts processes."""

    slots: int | None
    """The number of processes that can run at once; None if a scheduler such as Slurm decides."""

    def fits(self, process: ProcessSpec) -> bool:
        """Return whether the process can be started now. Raises UserError when it never can."""

    def start(self, processes: Sequence[ProcessSpec]) -> Sequence[Job]:
        """Start processes, or put them into a queue. Raises UserError."""

    def close(self) -> None:
        """Stop the running processes after they saved their states, or leave them to the cluster and print that."""


def python_command(arguments: Sequence[str], ranks: int, nodes: Sequence[str] = ()) -> list[str]:
    """Return the command line of a process; it uses torchrun for several ranks.

    Args:
        arguments: the module and its arguments.
        ranks: processes on this machine.
        nodes: torchrun's arguments about the nodes, if there are several.
    """
    torchrun = ["torch.distributed.run", *(nodes or ["--standalone"]), "--nproc-per-node", str(ranks), "-m"]
    return [sys.executable, "-m", *(torchrun if nodes or ranks > 1 else []), *arguments]
