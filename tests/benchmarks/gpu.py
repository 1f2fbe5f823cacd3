"""The figures that a GPU owes: benchmarks one after the other, the most valuable first, into docs/measured.csv.

    python -m tests.benchmarks gpu [--minutes 25] [--file docs/measured.csv]

A benchmark whose rows for this card, version of torch and version of the code stand in the file is skipped, so that the
same command goes on after an interruption. None starts when the minutes are over. At the end it prints the goals beside
what was measured on this card.
"""

import csv
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from tests.benchmarks.options import read
from transfer.core.process import ALONE
from transfer.engine.device import choose_device, device_name

ROOT = Path(__file__).resolve().parents[2]
CODE = ("transfer", "backbones", "tasks", "configs", "tests/benchmarks")
COLUMNS = ("date", "machine", "torch", "commit", "command", "figure", "value", "unit")
TABLE = (
    "transfer.doctor gpu",
    "tests.benchmarks attention",
    "tests.benchmarks deit_step --batch-size 128 --steps 10",
    "tests.benchmarks dino_step --batch-size 32 --steps 5",
    "tests.benchmarks reid_training --steps 20",
    "transfer.doctor speed --backbone deit_s16_convstem --image-ops fast",
    "transfer.doctor speed --backbone deit_s16_convstem --image-ops fast --compile",
    "transfer.doctor speed --backbone deit_s16_convstem",
    "tests.benchmarks ranking --skip-torchreid",
    "tests.benchmarks attention --models",
    "tests.benchmarks attention --tune",
)
"""Commands in order of value: modules of Python and their arguments."""
LONGEST = 300
"""Seconds that a command may take above the minutes."""
FIGURE = re.compile(r"^ *(\S.*?) {2,}(-?[\d,]*\.?\d+) ([^\s,]+)", re.MULTILINE)
"""A line that a benchmark prints for a figure: its name, two or more blanks, the value and the unit."""


class Goal(NamedTuple):
    """A figure is to reach a factor of another one, or a value of its own."""

    command: str
    figure: str
    least: float
    of: str = ""


GOALS = (
    Goal("dino_step", "ours", 1.5, "the repository's settings"),
    Goal("deit_step", "ours", 1.0, "timm, bf16"),
    *(Goal("attention", f"{n} tokens, both: ours", 1.0, f"{n} tokens, both: softmax") for n in (197, 785, 1024, 4096)),
    Goal("attention", "4096 tokens, both: share of peak", 40.0),
    Goal("reid_training", "share of the time in which the GPU computes", 95.0),
)


def code_version() -> str:
    """The last commit of the code, with + where files differ from it; empty outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "log", "-1", "--format=%h", "--", *CODE], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno", "--", *CODE], capture_output=True, text=True)
    return commit.stdout.strip() + "+" * bool(changed.stdout.strip())


def rows_of(file: Path) -> list[dict[str, str]]:
    """The rows of the file, if it is there."""
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.is_file() else []


def measure_all(table: Sequence[str], machine: dict[str, str], file: Path, minutes: float) -> int:
    """Run the commands whose rows are missing, append what each measured, and return how many failed.

    Args:
        machine: the values of the columns machine, torch and commit.
    """
    end, failed = time.monotonic() + 60 * minutes, 0
    for command in table:
        if any({**machine, "command": command}.items() <= row.items() for row in rows_of(file)):
            print(f"{command}: measured already")
            continue
        if (left := end - time.monotonic()) <= 0:
            print(f"{command}: not started, the minutes are over")
            continue
        print(f"## {command}", flush=True)
        begin, words = time.monotonic(), [sys.executable, "-m", *command.split()]
        try:  # what has begun may end; what hangs may not stay
            ran = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=left + LONGEST)
        except subprocess.TimeoutExpired:
            print(f"{command}: stopped {LONGEST} s after the minutes")
            failed += 1
            continue
        print(ran.stdout, flush=True)
        if ran.returncode:
            print(f"{command}: exit status {ran.returncode}, nothing is written")
            failed += 1
            continue
        figures = [*FIGURE.findall(ran.stdout), ("duration", f"{time.monotonic() - begin:.0f}", "s")]
        append(file, [{**machine, "command": command, "figure": f, "value": v, "unit": u} for f, v, u in figures])
    return failed


def append(file: Path, rows: list[dict[str, str]]) -> None:
    """Add rows of today to the file."""
    new = not file.is_file()
    with file.open("a", encoding="utf-8", newline="") as target:
        writer = csv.DictWriter(target, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        writer.writerows({"date": today, **row, "value": row["value"].replace(",", "")} for row in rows)


def goals(machine: dict[str, str], rows: list[dict[str, str]]) -> None:
    """Print each goal beside the figure of this machine."""
    for goal in GOALS:
        found = {
            row["figure"]: float(row["value"])
            for row in rows
            if machine.items() <= row.items() and row["command"].split()[1] == goal.command
        }
        value = found.get(goal.figure)
        if value is not None and goal.of:
            value = value / found[goal.of] if goal.of in found else None
        said = "not yet measured" if value is None else f"{value:.2f}{'' if value >= goal.least else ', MISSED'}"
        print(f"{goal.command}, {goal.figure}, goal {goal.least:g}{f' x {goal.of}' if goal.of else ''}: {said}")


def main(argv: Sequence[str]) -> int:
    """Runs what is missing, and prints the goals; without a GPU it is one line."""
    given = read(argv, __doc__, minutes=25.0, file=str(ROOT / "docs" / "measured.csv"))
    device = choose_device("cuda", ALONE)
    machine = {"machine": device_name(device), "torch": torch.__version__, "commit": code_version()}
    failed = measure_all(TABLE, machine, Path(given.file), given.minutes)
    goals(machine, rows_of(Path(given.file)))
    return int(failed > 0)
