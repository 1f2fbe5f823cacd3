"""Seconds until commands that compute nothing have answered: help, wrong options, finished records.

    python -m tests.benchmarks start [--rounds 7]

Each is a process of its own, from its start to its end, and the figure is the median of the rounds after one that is
not counted. The record that is printed again is made first, of embedded data.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

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


def seconds(arguments: Sequence[str]) -> float:
    """Run Python with the arguments, and return the seconds that it took."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args(argv).rounds
    with tempfile.TemporaryDirectory() as out:
        commands = {name: [word.format(out=out) for word in words] for name, words in COMMANDS.items()}
        subprocess.run([sys.executable, *commands["a finished record, by command"]], capture_output=True, check=True)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds + 1):
            for name, words in commands.items():
                times[name].append(seconds(words))
    for name, taken in times.items():
        print(f"{name:32} {statistics.median(taken[1:]):5.2f} s")
    return 0
