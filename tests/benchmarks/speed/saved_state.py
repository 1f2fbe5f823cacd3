"""Seconds of saving and reading the state of a ViT-B in training, and what its checksums take of them.

    python -m tests.benchmarks saved_state [--backbone vit_b] [--rounds 3] [--folder FOLDER]

The state has the weights, AdamW's two moments and an average of the weights. Saving without checksums, and reading
without looking at them, alternate with saving and reading as trainings do.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from backbones.backbone import create
from backbones.engine.checkpoint import PARTS, STATE, load_state, save_state

KEY = "benchmark"
MINUTE = 60.0


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def save_without(folder: Path, state: dict[str, object]) -> None:
    """Save a state whose archive has no checksums."""
    torch.serialization.set_crc32_options(False)
    try:
        save_state(folder, state)
    finally:
        torch.serialization.set_crc32_options(True)


def main(argv: list[str]) -> int:
    """Print the medians over all rounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks saved_state")
    parser.add_argument("--backbone", default="vit_b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args(argv)
    tensors = create(options.backbone, weights="random").state_dict()
    copies = {
        name: {key: value.clone() for key, value in tensors.items()} for name in ("model", "mean", "square", "ema")
    }
    state: dict[str, object] = {**dict.fromkeys(PARTS), "run_key": KEY, "tensors": copies}
    times: dict[str, list[float]] = {name: [] for name in ("saved", "without", "read", "unchecked")}
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        for _ in range(options.rounds):
            times["without"].append(seconds(lambda: save_without(folder, state)))
            times["saved"].append(seconds(lambda: save_state(folder, state)))
            size = (folder / STATE).stat().st_size / 2**30
            times["unchecked"].append(seconds(lambda: torch.load(folder / STATE, weights_only=True)))
            times["read"].append(seconds(lambda: load_state(folder, KEY)))
    saved, without, read, unchecked = (median(times[name]) for name in ("saved", "without", "read", "unchecked"))
    print(f"a state of {size:.2f} GiB: saved in {saved:.2f} s, without checksums {without:.2f} s")
    print(f"read and checked in {read:.2f} s, read alone {unchecked:.2f} s")
    print(f"checksums are {100 * max(saved - without, 0) / MINUTE:.1f} % of a minute between two states")
    return 0
