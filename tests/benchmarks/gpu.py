"""The figures that a GPU owes: benchmarks one after the other, the most valuable first, into docs/measured.csv.

    python -m tests.benchmarks gpu [--minutes 25] [--out docs/measured.csv]

A benchmark whose rows for this card, version of torch and version of the code stand in the file is skipped, so that the
same command goes on after an interruption. None starts when the minutes are over.
"""

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch

from tests.benchmarks.options import read
from transfer.core.process import ALONE
from transfer.engine.device import choose_device, device_name

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "measured.csv"
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
PART = re.compile(r"^\| (?!part )(.+?) \| (.+) \|$", re.MULTILINE)
"""A row of the doctor's table, whose result is kept as it is."""


def code_version() -> str:
    """The last commit of the code, with + where files differ from it; empty outside a checkout."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "log", "-1", "--format=%h", "--", *CODE], capture_output=True, text=True)
    changed = subprocess.run([*git, "status", "--porcelain", "-uno", "--", *CODE], capture_output=True, text=True)
    return commit.stdout.strip() + "+" * bool(changed.stdout.strip())


def machine_of(device: torch.device) -> dict[str, str]:
    """The columns of a row that say where it was measured."""
    return {"machine": device_name(device), "torch": torch.__version__, "commit": code_version()}


def rows_of(file: Path) -> list[dict[str, str]]:
    """The rows of the file, if it is there."""
    return pd.read_csv(file, dtype=str, keep_default_na=False).to_dict("records") if file.is_file() else []  # type: ignore[return-value]


def measure_all(
    table: Sequence[str], machine: dict[str, str], file: Path, minutes: float, folders: Mapping[str, str] = {}
) -> int:
    """Run the commands whose rows are missing, append what each measured, and return how many failed.

    Args:
        machine: the values of the columns machine, torch and commit.
        folders: by the word in capitals that stands for each in the commands.
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
        begin, words = time.monotonic(), [sys.executable, "-m", *(folders.get(word, word) for word in command.split())]
        try:  # what has begun may end; what hangs may not stay
            printed = subprocess.check_output(words, cwd=ROOT, text=True, timeout=left + LONGEST)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{error.stdout}\n{error}; nothing is written")
            failed += 1
            continue
        print(printed, flush=True)
        numbers = [(name, value.replace(",", ""), unit) for name, value, unit in FIGURE.findall(printed)]
        figures = [*numbers, *((*row, "") for row in PART.findall(printed))]
        figures += [("duration", f"{time.monotonic() - begin:.0f}", "s")]
        about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", **machine, "command": command}
        rows = pd.DataFrame([about | dict(zip(COLUMNS[5:], figure)) for figure in figures], columns=COLUMNS)
        rows.to_csv(file, mode="a", header=not file.is_file(), index=False)
    return failed


def main(argv: Sequence[str]) -> int:
    """Runs what is missing; without a GPU it is one line."""
    given = read(argv, __doc__, minutes=25.0, out=str(MEASURED))
    machine = machine_of(choose_device("cuda", ALONE))
    return int(measure_all(TABLE, machine, Path(given.out), given.minutes) > 0)
