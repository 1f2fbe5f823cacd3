"""What scoring in bf16 saves in time and moves in score, per task, as the Markdown table of docs/measured.md.

python -m tests.benchmarks eval_precision --reid MARKET_FOLDER --images PARQUET_FOLDER [--threads 2]
Random weights, which a seed each draws; nothing is trained. MARKET_FOLDER is in Market-1501's layout, PARQUET_FOLDER
one of CIFAR-10's Parquet files, of which 20 images a class and split are taken.

Needs data in Market-1501's layout and CIFAR-10's Parquet files.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from backbones.spec import resolve
from tests.benchmarks.options import read
from tests.support import command
from transfer.data.spec import DatasetSpec
from transfer.engine.context import Context
from transfer.task import load_task

TASKS = {
    "reid": ("mAP", ["--size", "128", "64", "--epochs", "0"]),
    "knn": ("top1", ["--size", "96", "--resize", "96", "--other-k", "10"]),
    "fewshot": ("accuracy_10shot", ["--size", "96", "--resize", "96", "--shots", "1", "10"]),
    "tokens": ("similarity_last", ["--size", "96", "--resize", "96", "--images", "200"]),
}
"""The score that is shown, and the words of the command."""
BACKBONES = ("vit_ti", "vit_s")
PRECISIONS = ("fp32", "bf16")
SEEDS = 5


def score(task: str, backbone: str, options: Any, data: Any, seed: int, precision: str) -> tuple[float, float]:
    """Seconds of scoring, and the score, of random weights."""
    spec = resolve(backbone, weights="random")
    with tempfile.TemporaryDirectory() as folder:
        context = Context(torch.device("cpu"), "fp32", precision, seed=seed, features=Path(folder))  # type: ignore[arg-type]
        start = time.monotonic()
        found = load_task(task).run(spec, data, options, context)[0]
        return time.monotonic() - start, found[TASKS[task][0]]


def rows(task: str, options: Any, data: Any) -> Iterator[str]:
    """The table's row of each backbone."""
    for backbone in BACKBONES:
        given = (task, backbone, options, data)
        found = {kind: [score(*given, seed, kind) for seed in range(SEEDS)] for kind in PRECISIONS}
        seconds = [statistics.median(time for time, _ in found[kind]) for kind in PRECISIONS]
        full, half = ([(1 if task == "tokens" else 100) * value for _, value in found[kind]] for kind in PRECISIONS)
        moved = [b - a for a, b in zip(full, half)]
        cells = [f"{task} ({TASKS[task][0]})", backbone, *(f"{time:.1f}" for time in seconds)]
        cells += [f"{statistics.mean(full):.3f}", " ".join(f"{one:+.4f}" for one in moved)]
        yield " | ".join([*cells, f"{statistics.mean(moved):+.4f}", f"{max(map(abs, moved)):.4f}"])


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    given = read(argv, __doc__, reid=Path, images=Path, threads=2)
    print("| task | backbone | fp32 s | bf16 s | score fp32 | by seed: bf16 - fp32 | mean | largest |")
    print("|---|---|---|---|---|---|---|---|")
    for task, (_, words) in TASKS.items():
        options = command(task, "--backbone", "vit_ti", "--weights", "random", *words).options
        folder, layout, subset = (given.reid, "market1501", None) if task == "reid" else (given.images, "parquet", 20)
        spec = DatasetSpec(name=folder.name, format=layout, root=(str(folder.resolve()),))
        data = load_task(task).open(spec, options, root=None, subset=subset, drop_corrupt=False)
        for row in rows(task, options, data):
            print(f"| {row} |", flush=True)
    return 0
