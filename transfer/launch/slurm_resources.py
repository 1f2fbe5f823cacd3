"""What a process needs, in the words of a sweep's YAML, and what Slurm is asked for."""

import shlex
from pathlib import Path
from typing import Any

from backbones.errors import UsageError, did_you_mean
from transfer import ROOT
from transfer.cli.options import MINIMUM, RESOURCES, LaunchOptions
from transfer.launch.base import ProcessSpec
from transfer.launch.slurm_child import Child

NAMES = ("partition", "account", "qos", "constraint")


def child(work: ProcessSpec, delay: int, tables: bool) -> Child:
    """What the job of a work runs; `delay` is the time in seconds from Slurm's notice to its end."""
    given = work.resources
    return Child(
        words=work.words,
        log=work.log.absolute(),
        folder=Path.cwd(),
        root=ROOT,
        nodes=given.get("nodes") or 1,
        processes=ranks(given),
        cpus=given.get("cpus"),
        tables=tables,
        grace=delay * 0.75,
    )


def ranks(resources: dict[str, Any]) -> int:
    """Processes on each node: one for each GPU; without GPUs as many as `processes` says.

    Raises:
        UsageError: both are given and differ.
    """
    gpus, processes = resources.get("gpus") or 0, resources.get("processes")
    if gpus and processes not in (None, gpus):
        raise UsageError(f"processes {processes} on {gpus} GPUs: there is one for each GPU; leave processes out")
    return gpus or processes or 1


def sbatch_parameters(resources: dict[str, Any], parallel: int) -> dict[str, Any]:
    """What submitit's executor takes for the resources of a work.

    Args:
        parallel: elements of an array that may run at once.

    Raises:
        UsageError: an unknown resource, or a value that cannot be.
    """
    _check(resources)
    minutes, cpus, memory = (
        resources.get("minutes") or LaunchOptions.minutes,
        resources.get("cpus"),
        resources.get("memory_gb"),
    )
    given: dict[str, Any] = {name: str(resources[name]) for name in NAMES if resources.get(name)}
    given |= {"gpus_per_node": resources["gpus"]} if resources.get("gpus") else {}
    given |= {"mem": f"{max(1, round(memory * 1024))}MB"} if memory else {}
    # since Slurm 22.05 a task does not get the cores of its job unasked
    given |= {"cpus_per_task": cpus, "srun_args": [f"--cpus-per-task={cpus}"]} if cpus else {}
    return given | {
        "time": minutes,
        "nodes": resources.get("nodes") or 1,
        "ntasks_per_node": 1,
        "signal_delay_s": min(120, minutes * 20),
        "array_parallelism": parallel,
        "wckey": None,
        # whatever the cluster lets a job inherit
        "setup": [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"],
        "additional_parameters": {"requeue": True, **(resources.get("extra") or {})},
    }


def _check(resources: dict[str, Any]) -> None:
    known = (*RESOURCES, "extra")
    for name, value in resources.items():
        if name not in known:
            raise UsageError(f"resources: unknown {name!r}{did_you_mean(name, known)} ({', '.join(known)})")
        if value is None:
            continue
        if name in MINIMUM and (type(value) is not int or value < MINIMUM[name]):
            raise UsageError(f"resources: {name} is {value!r}; expected a whole number of at least {MINIMUM[name]}")
        if name == "memory_gb" and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise UsageError(f"resources: memory_gb is {value!r}; expected a number above 0")
        if name == "extra" and not isinstance(value, dict):
            raise UsageError(f"resources: extra is {value!r}; expected options of sbatch, as `mail-user: NAME`")
