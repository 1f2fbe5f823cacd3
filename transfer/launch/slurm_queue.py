"""Reads the states of jobs from `squeue` (no accounting is needed) and explains why Slurm rejects a job."""

import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field

from backbones.errors import UserError

TOOLS = ("sbatch", "srun", "squeue", "scontrol", "scancel")
LOOK_SECONDS = 3.0  # between two calls of squeue, which loads a server that all users share
TIMEOUT_SECONDS = 60
ENDED = re.compile("BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT")
NEVER = re.compile("BadConstraints|PartitionConfig|Partition(Node|Time)Limit|InvalidAccount|InvalidQOS")
"""Reasons, as `squeue` prints them, for which a job would never start."""


def need_slurm() -> None:
    """Raise UserError when commands of Slurm are missing."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        raise UserError(
            f"--launcher slurm: {', '.join(missing)} not found; run the command on a machine of a Slurm cluster, "
            "or use --launcher local"
        )


def refusal(text: str) -> UserError:
    """Return the error for a job that `sbatch` rejects, with its message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    lines = [re.sub(r"^(sbatch|squeue): (error: |fatal: )?", "", line) for line in lines]
    return UserError(f"Slurm rejected the job: {'; '.join(dict.fromkeys(lines))}")


@dataclass
class Queue:
    """The states of all of a user's jobs, from one call of `squeue`."""

    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The state of each job id (`12`, or `12_3` in an array) and, for a waiting job, why it waits."""
    silent: str = ""
    """The error message of `squeue` when it does not answer."""
    looked: float = -LOOK_SECONDS
    """When `squeue` was last called, in monotonic seconds."""

    def look(self, now: bool = False) -> None:
        """Call `squeue` again, unless that was done a moment ago."""
        if not now and time.monotonic() < self.looked + LOOK_SECONDS:
            return
        user = str(os.getuid())
        command = ["squeue", "--noheader", "--array", "--states", "all", "--user", user, "--format", "%i|%T|%r"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
            self.silent = "" if done.returncode == 0 else done.stderr.strip() or "squeue does not answer"
        except (OSError, subprocess.TimeoutExpired) as error:
            self.silent = str(error)
        self.looked = time.monotonic()
        if not self.silent:
            lines = (line.split("|", 2) for line in done.stdout.splitlines())
            self.states = {parts[0]: (parts[1], parts[2]) for parts in lines if len(parts) == 3}

    def live(self) -> set[str]:
        """Return the ids of jobs that wait or run now. Raises UserError when Slurm does not answer."""
        self.look(now=True)
        if self.silent:
            raise refusal(self.silent)
        return {job for job, (state, _) in self.states.items() if not ENDED.fullmatch(state)}
