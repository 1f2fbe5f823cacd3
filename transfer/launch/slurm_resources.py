"""Translates the resources that a process needs, as a sweep's YAML names them, into parameters for Slurm."""

import shlex
from pathlib import Path
from typing import Any

from transfer.cli.options import LaunchOptions, check_resources
from transfer.core.files import ROOT
from transfer.launch import ProcessSpec
from transfer.launch.slurm_child import Child

NAMES = ("partition", "account", "qos", "constraint")


def child(process: ProcessSpec, delay: int, tables: bool) -> Child:
    """Return the function that a job runs; `delay` is the time in seconds from Slurm's notice to the job's end."""
    resources = process.resources
    return Child(
        arguments=process.arguments,
        log=process.log.absolute(),
        folder=Path.cwd(),
        root=ROOT,
        nodes=resources.get("nodes") or 1,
        processes=ranks(resources),
        cpus=resources.get("cpus"),
        tables=tables,
        grace=delay * 0.75,
    )


def ranks(resources: dict[str, Any]) -> int:
    """Return the number of processes on each node: one per GPU, or without GPUs what `processes` says."""
    return resources.get("gpus") or resources.get("processes") or 1


def sbatch_parameters(resources: dict[str, Any], parallel: int) -> dict[str, Any]:
    """Return the parameters of submitit's executor for the resources of a process.

    Args:
        parallel: the number of elements of an array that may run at once.

    Raises:
        UsageError: a resource is unknown or has an impossible value.
    """
    check_resources(resources)
    minutes = resources.get("minutes") or LaunchOptions.minutes
    cpus, memory = resources.get("cpus"), resources.get("memory_gb")
    parameters: dict[str, Any] = {name: str(resources[name]) for name in NAMES if resources.get(name)}
    parameters |= {"gpus_per_node": resources["gpus"]} if resources.get("gpus") else {}
    parameters |= {"mem": f"{max(1, round(memory * 1024))}MB"} if memory else {}
    # since Slurm 22.05 a task gets the cores of its job only when srun is told so
    parameters |= {"cpus_per_task": cpus, "srun_args": [f"--cpus-per-task={cpus}"]} if cpus else {}
    return parameters | {
        "time": minutes,
        "nodes": resources.get("nodes") or 1,
        "ntasks_per_node": 1,
        "signal_delay_s": min(120, minutes * 20),
        "array_parallelism": parallel,
        "wckey": None,
        # set here because a cluster may not let jobs inherit the environment
        "setup": [f"export PYTHONPATH={shlex.quote(str(ROOT))}${{PYTHONPATH:+:$PYTHONPATH}}"],
        "additional_parameters": {"requeue": True, **(resources.get("extra") or {})},
    }
