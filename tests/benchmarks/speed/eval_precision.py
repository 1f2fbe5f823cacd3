"""What scoring in bf16 saves in time and moves in score, per task, as the Markdown table of docs/concepts/precision.md.

python -m tests.benchmarks eval_precision --reid MARKET_FOLDER --images PARQUET_FOLDER [--results FILE] [--threads 2]
Random weights, which a seed each draws; nothing is trained. MARKET_FOLDER is in Market-1501's layout, PARQUET_FOLDER
one of CIFAR-10's Parquet files, of which 20 images a class and split are taken. Every result is a line of FILE at once,
and what stands there is not computed again.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from backbones.backbone import create
from backbones.spec import resolve
from tasks.reid.task import TASK as REID
from tasks.reid.training import ReidLearner
from transfer.cli.command import read_command
from transfer.cli.recipe import task_recipe
from transfer.core.seeding import seed_torch
from transfer.data.spec import DatasetSpec
from transfer.engine.context import Context
from transfer.task import load_task

TASKS = {
    "reid": ("mAP", ["--size", "128", "64"]),
    "knn": ("top1", ["--size", "96", "--resize", "96", "--other-k", "10"]),
    "fewshot": ("accuracy_10shot", ["--size", "96", "--resize", "96", "--shots", "1", "10"]),
    "tokens": ("similarity_last", ["--size", "96", "--resize", "96", "--images", "200"]),
}
"""The score that is shown, and the words of the command."""
BACKBONES = ("vit_ti", "vit_s")
PRECISIONS = ("fp32", "bf16")


def options_of(task: str) -> Any:
    """The options of a command with the task's words."""
    words = ["--backbone", "vit_ti", "--weights", "random", *TASKS[task][1]]
    return read_command(task_recipe(task), load_task(task).options, words).options


def score(task: str, backbone: str, seed: int, precision: str, data: Any) -> tuple[float, float]:
    """Seconds of scoring, and the score, of random weights."""
    options, spec = options_of(task), resolve(backbone, weights="random")
    with tempfile.TemporaryDirectory() as folder:
        context = Context(torch.device("cpu"), "fp32", precision, seed=seed, features=Path(folder))  # type: ignore[arg-type]
        start = time.monotonic()
        if task == "reid":
            seed_torch(seed)
            learner = ReidLearner(create(spec, img_size=options.size), 2, options).eval()
            found = REID._rank(learner, data, options, context).scores()
        else:
            found = load_task(task).run(spec, data, options, context)[0]
        return time.monotonic() - start, found[TASKS[task][0]]


def opened(task: str, given: argparse.Namespace) -> Any:
    """The data of a task."""
    folder, layout = (given.reid, "market1501") if task == "reid" else (given.images, "parquet")
    spec = DatasetSpec(name=folder.name, format=layout, root=(str(folder.resolve()),))
    subset = None if task == "reid" else given.subset
    return load_task(task).open(spec, options_of(task), root=None, subset=subset, drop_corrupt=False)


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every result, those of earlier calls among them."""
    done = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    known = {(one["task"], one["backbone"], one["seed"], one["precision"]) for one in done}
    for task in given.tasks:
        data = opened(task, given)
        for key in itertools.product((task,), given.backbones, range(given.seeds), PRECISIONS):
            if key in known:
                continue
            seconds, value = score(*key, data)
            names = ("task", "backbone", "seed", "precision", "seconds", "score")
            done.append(dict(zip(names, (*key, seconds, value))))
            with given.results.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            print(done[-1], file=sys.stderr, flush=True)
    return done


def table(results: list[dict[str, Any]]) -> str:
    """One row for each task and backbone."""
    names = ["task", "backbone", "seeds", "fp32 s", "bf16 s", "score fp32", "by seed: bf16 - fp32", "mean", "largest"]
    lines = [names, ["---"] * len(names)]
    for task, backbone in dict.fromkeys((one["task"], one["backbone"]) for one in results):
        rows = [one for one in results if (one["task"], one["backbone"]) == (task, backbone)]
        of = {(one["seed"], one["precision"]): one for one in rows}
        seeds = [seed for seed in sorted({one["seed"] for one in rows}) if all((seed, p) in of for p in PRECISIONS)]
        if not seeds:
            continue
        times = [statistics.median(of[seed, p]["seconds"] for seed in seeds) for p in PRECISIONS]
        scale = 1 if task == "tokens" else 100
        moved = [scale * (of[seed, "bf16"]["score"] - of[seed, "fp32"]["score"]) for seed in seeds]
        mean = scale * statistics.mean(of[seed, "fp32"]["score"] for seed in seeds)
        cells = [f"{task} ({TASKS[task][0]})", backbone, str(len(seeds)), *(f"{time:.1f}" for time in times)]
        cells += [f"{mean:.3f}", " ".join(f"{one:+.4f}" for one in moved), f"{statistics.mean(moved):+.4f}"]
        lines.append([*cells, f"{max(map(abs, moved)):.4f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reid", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=Path("eval_precision.jsonl"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--subset", type=int, default=20, help="images of each class, in each split")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    print(table(measured(given)))
    return 0
