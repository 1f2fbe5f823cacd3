"""What the view `fast` moves in scores and pixels beside `bicubic`, as a Markdown table.

python -m tests.benchmarks parity_views --weights FOLDER --images DATA.yaml [--backbone tiny]

Frozen tasks score every image by both views, by the weights of an export, on the embedded sets and on the dataset of a
YAML file; images of 32 pixels are resized to 36 and cropped to 32, so that every pixel is resampled.

Needs an export that `classify` can score, and the YAML file of a dataset that its classifier knows.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import transfer
from tests.benchmarks.options import read
from tests.benchmarks.speed.feed import by_pil, by_torchvision
from transfer.data.loading.augment import eval_transform
from transfer.data.toy.digits import WRITERS, draw_jpegs

VIEW: dict[str, Any] = {"size": 32, "resize": 36, "progress": False}
METRICS = {"fewshot": "accuracy_10shot", "knn": "top1", "classify": "top1"}


def scores(task: str, dataset: str, given: argparse.Namespace, folder: str) -> tuple[list[float], int, int]:
    """The score by both views, the number of images, and of those that are right by one view only."""
    values, right = [], []
    for view in ("bicubic", "fast"):
        words = {"backbone": given.backbone, "weights": given.weights, "dataset": dataset, "resize_mode": view}
        run = transfer.evaluate(task, out=Path(folder), **words, **VIEW)[0]
        values.append(run.scores[METRICS[task]])
        samples = run.per_sample()
        right.append(samples["correct_10shot"].mean(1) if task == "fewshot" else samples["rank"] < 1)
    return values, len(right[0]), int((right[0] != right[1]).sum())


def rows(given: argparse.Namespace) -> Iterator[tuple[str, str, list[float], int, int]]:
    """Task, dataset, both scores, images, and images that differ."""
    with tempfile.TemporaryDirectory() as folder:
        for dataset in (f"toy_{name}" for name in WRITERS):
            yield ("fewshot", dataset, *scores("fewshot", dataset, given, folder))
        for task in METRICS:
            yield (task, Path(given.images).stem, *scores(task, given.images, given, folder))


def pixels() -> tuple[int, float]:
    """The largest and the mean difference of views of 224 pixels of drawn JPEG files, in levels of 255."""
    slow, fast = eval_transform(224), eval_transform(224, view="fast")
    files = draw_jpegs(32, 480, 360)
    differences = [(slow(by_pil(file)).int() - fast(by_torchvision(file)).int()).abs() for file in files]
    means = [float(one.float().mean()) for one in differences]
    return max(int(one.max()) for one in differences), float(np.mean(means))


def main(argv: Sequence[str]) -> int:
    """Print the table."""
    given = read(argv, __doc__, backbone="tiny", weights=str, images=str)
    largest = 0.0
    print("| task | data | images | `bicubic` | `fast` | points | images that differ |")
    print("|---|---|---|---|---|---|---|")
    for task, dataset, (slow, fast), images, differing in rows(given):
        points = 100 * (fast - slow)
        largest = max(largest, abs(points))
        print(f"| {task} | {dataset} | {images:,} | {slow:.2%} | {fast:.2%} | {points:+.2f} | {differing} |")
    most, mean = pixels()
    print(f"largest difference of a score: {largest:.2f} points")
    print(f"pixels of 224 x 224 views: at most {most} of 255, {mean:.4f} on average")
    return 0
