"""Seconds that all few-shot probes of one dataset take from stored features, and their memory.

    python -m tests.benchmarks fewshot_probe

A set of CUB-200-2011's size (200 classes, 5,994 and 5,794 images, 384 channels), 3 draws of 1, 5, 10 and 25 shots:
reading the features from the store, then every probe, with a fixed l2 and with the best of 30 for each probe, chosen on
5 more images per class. Peak memory: the same with 200 MB of features (100 classes, 50,000 and 15,104 images, 768
channels).
"""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tasks.fewshot.features import Stored, read_features, write_features
from tasks.fewshot.scoring import FrozenFeatures, probe_all
from tasks.fewshot.task import SupportSets, permuted
from tasks.probes import LeastSquares
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import figure, fresh_peak, peak, timed
from tests.support import context
from transfer.core.process import ALONE
from transfer.engine.context import auto_threads

SHOTS, DRAWS = (1, 5, 10, 25), 3
SEVERAL = tuple(2.0**power for power in range(-10, 20))
Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Features and labels for training, and for test."""


def main(argv: Sequence[str]) -> int:
    """Prints seconds and MiB."""
    read(argv, __doc__)
    torch.set_num_threads(auto_threads(None, torch.device("cpu"), ALONE, 0).count)
    with tempfile.TemporaryDirectory() as folder:
        labels, truth = write(Path(folder), 200, 5994, 5794, 384)
        run(Path(folder), labels, truth, (1024.0,))  # warm-up: threads, and memory of the libraries
        for name, strengths in (("fixed l2", (1024.0,)), ("30 values of l2", SEVERAL)):
            seconds, _ = timed(partial(run, Path(folder), labels, truth, strengths))
            figure(name, seconds, "s")
    with tempfile.TemporaryDirectory() as folder:
        labels, truth = write(Path(folder), 100, 50_000, 15_104, 768)
        before = fresh_peak()
        size = run(Path(folder), labels, truth, (1024.0,)) / 2**20
        figure("features", size, "MiB")
        figure("peak memory / features", (peak() - before) / size, "fold")
    return 0


def write(store: Path, classes: int, images: int, tests: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Files of random features; the labels of training and test images."""
    train, labels, test, truth = drawn(classes, images, tests, channels)
    for name, features in (("train", train), ("test", test)):
        content = Stored(np.arange(len(features)), features, np.zeros(len(features)))
        write_features(store / f"{name}.safetensors", content, {})
    return labels, truth


def drawn(classes: int, images: int, tests: int, channels: int) -> Data:
    """Overlapping classes, features in float32."""
    random = np.random.default_rng(0)
    labels, truth = (random.permutation(np.arange(count) % classes) for count in (images, tests))
    centres = 0.2 * random.normal(size=(classes, channels)).astype(np.float32)
    noise = (random.standard_normal((len(of), channels), dtype=np.float32) for of in (labels, truth))
    train, test = (one + centres[of] for one, of in zip(noise, (labels, truth)))
    return train, labels, test, truth


def probed(data: Data, strengths: tuple[float, ...], held: int = 0) -> dict[str, np.ndarray]:
    """All probes of 3 draws: by `correct_Nshot` whether [draws, tests] a test image is right."""
    _, labels, _, truth = data
    groups = [np.flatnonzero(labels == label) for label in range(truth.max() + 1)]
    sets = SupportSets("bigvision", tuple(permuted(groups, draw) for draw in range(DRAWS)), SHOTS, held, (), ())
    (x, y, x_test, y_test), rows = map(torch.from_numpy, data), np.arange(len(labels))
    features = FrozenFeatures(x, y, rows, x_test, y_test, len(groups))
    return probe_all(features, sets, LeastSquares, strengths, context())[0]


def run(store: Path, labels: np.ndarray, truth: np.ndarray, strengths: tuple[float, ...]) -> int:
    """Reads and probes; bytes of the features. All training images are read, as a set of many draws would."""
    train, test = (read_features(store / f"{name}.safetensors").features for name in ("train", "test"))
    probed((train, labels, test, truth), strengths, held=5 if len(strengths) > 1 else 0)
    return train.nbytes + test.nbytes
