"""Seconds until commands that compute nothing have answered: help, wrong options, finished records.

    python -m tests.benchmarks start [--rounds 7]

Each is a process of its own, from its start to its end, and the figure is the median of the rounds after one that is
not counted. The record that is printed again is made first, of embedded data.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial

import torch

from tests.benchmarks.speed.timing import Step, measure

KNN = "-m transfer.run knn --backbone tiny --smoke --threads 1 --device cpu --out {out}"
PYTHON = (
    "import transfer; transfer.evaluate('knn', backbone='tiny', smoke=True, threads=1, device='cpu', out='{out}', "
    "progress=False)"
)
COMMANDS = {
    "python, numpy imported": ["-c", "import numpy"],
    "torch imported": ["-c", "import torch"],
    "import transfer": ["-c", "import transfer"],
    "an unknown option": ["-m", "transfer.run", "reid", "--backbone", "dino_s16", "--lrr", "1"],
    "transfer.run --help": ["-m", "transfer.run", "--help"],
    "transfer.run reid --help": ["-m", "transfer.run", "reid", "--help"],
    "a finished record, by command": KNN.split(),
    "a finished record, from Python": ["-c", PYTHON],
}


def run(words: Sequence[str]) -> None:
    """Run Python with these words, and wait for its end."""
    subprocess.run([sys.executable, *words], capture_output=True, check=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args(argv).rounds
    with tempfile.TemporaryDirectory() as out:
        commands = {name: [word.format(out=out) for word in words] for name, words in COMMANDS.items()}
        subprocess.run([sys.executable, *commands["a finished record, by command"]], capture_output=True, check=True)
        steps: dict[str, Step] = {name: partial(run, words) for name, words in commands.items()}
        rates = measure(steps, rounds, 1, 1, torch.device("cpu"))
    for name, rate in rates.items():
        print(f"{name:32} {1 / rate:5.2f} s")
    return 0
