"""What the benchmarks measured: one committed table, `measured.csv`, whose figures the documentation repeats."""

import csv
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

FILE = Path(__file__).resolve().parent / "measured.csv"


@dataclass(frozen=True)
class Measurement:
    """One line of the table: a figure with its unit, and how, where and when it was measured."""

    name: str
    command: str
    figure: str
    machine: str
    date: str
    commit: str


def read_measurements(path: Path = FILE) -> list[Measurement]:
    """Return every line of the table, the oldest of each benchmark first."""
    with path.open(newline="", encoding="utf-8") as file:
        return [Measurement(**row) for row in csv.DictReader(file)]


def latest(measurements: Sequence[Measurement], name: str) -> Iterator[Measurement]:
    """The lines of a benchmark that no later measurement by the same command on the same machine replaces."""
    own = [one for one in measurements if one.name == name]
    newest = {(one.command, one.machine): one.date for one in sorted(own, key=lambda one: one.date)}
    yield from (one for one in own if newest[one.command, one.machine] == one.date)


def append(measurement: Measurement, path: Path = FILE) -> None:
    """Add a line at the end of the table."""
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Measurement)], lineterminator="\n")
        writer.writerow(asdict(measurement))


def measured_now(name: str, command: str, output: str) -> Measurement:
    """Make a line for a run that just ended: the figure is what the run printed, in one line."""
    figure = "; ".join(" ".join(line.split()) for line in output.splitlines() if line.strip())
    return Measurement(name, command, figure, this_machine(), datetime.now(UTC).date().isoformat(), this_commit())


def this_machine() -> str:
    """Name the processor, the cores that this process may use, the GPU and the version of torch."""
    import torch

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpu = [torch.cuda.get_device_name()] if torch.cuda.is_available() else []
    return ", ".join(
        [model or platform.processor() or platform.machine(), f"{cores} cores", *gpu, f"torch {torch.__version__}"]
    )


def this_commit() -> str:
    """Name the commit that is checked out, with `-dirty` where files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=FILE.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
