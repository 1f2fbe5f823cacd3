"""Parity of the few-shot probe with the repository of big_vision.

    pip install jax
    git clone https://github.com/google-research/big_vision CHECKOUT
    python -m tests.benchmarks parity_bigvision --checkout CHECKOUT

The same features go through the peer's own `Evaluator.compute_fewshot_metrics` (its draws, its probe) and through ours:
a set of CUB-200-2011's size with 384 channels, and one of 8 classes. Prints the largest difference of accuracies, in
test images, with the peer in float64 and, as it runs by itself, in float32; exits with 1 where one is above its limit.
Of the modules that the peer's file imports, those for data and models are left out; the arithmetic uses none of them.

Needs google-research/big_vision and jax.
"""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.benchmarks.options import read
from tests.benchmarks.parity.checks import Check, importing, report
from tests.benchmarks.speed.fewshot_probe import DRAWS, SHOTS, Data, drawn, probed

SIZES = {"200 classes, 5994 / 5794 images": (200, 5994, 5794), "8 classes, 2000 / 3000": (8, 2000, 3000)}
CHANNELS = 384
SCALES = np.geomspace(0.1, 10, CHANNELS, dtype=np.float32)
STRENGTHS = (2.0**-10, 1.0, 2.0**10, 2.0**19)
FILE = "big_vision/evaluators/fewshot_lsr.py"
LEFT_OUT = (
    *("big_vision", "big_vision.datasets", "big_vision.pp", "big_vision.utils"),
    *("big_vision.datasets.core", "big_vision.input_pipeline", "big_vision.pp.builder"),
)


def main(argv: Sequence[str]) -> int:
    """Compares everything; the exit status."""
    peer = load_peer(read(argv, __doc__, checkout=Path).checkout)
    import jax

    checks = []
    for name, (classes, images, tests) in SIZES.items():
        train, labels, test, truth = drawn(classes, images, tests, CHANNELS)
        data = (train * SCALES + 1, labels, test * SCALES + 1, truth)
        for strength in STRENGTHS:
            correct = probed(data, (strength,))
            mine = np.stack([correct[f"correct_{shots}shot"].mean(0) for shots in SHOTS], axis=1)
            for exact, limit in ((True, 0), (False, tests // 500)):
                jax.config.update("jax_enable_x64", exact)
                theirs = peer_accuracies(peer, data, classes, strength, np.float64 if exact else np.float32)
                what = f"{name}, l2 {strength:g}, {'float64' if exact else 'float32'}"
                note = f"accuracy {mine[0, 2]:.4f} with 10 shots"
                wrong = np.abs(np.rint(tests * mine) - np.rint(tests * theirs))  # the peer's means are float32
                checks.append(Check(what, float(wrong.max()), limit, note))
    return report(checks)


def load_peer(checkout: Path) -> ModuleType:
    """The peer's evaluator. Raises UserError where it, or jax, is not there."""
    made: dict[str, dict[str, Any]] = {name: {} for name in LEFT_OUT}
    made["big_vision"]["__path__"] = [str(checkout / "big_vision")]
    with importing(checkout, FILE, "google-research/big_vision", ["big_vision"], made):
        import jax

        vars(sys.modules["big_vision.utils"]).update(jit_cpu=partial(partial, jax.jit), put_cpu=jax.device_put)
        return importlib.import_module("big_vision.evaluators.fewshot_lsr")


def peer_accuracies(peer: ModuleType, data: Data, classes: int, strength: float, kind: Any) -> np.ndarray:
    """[seeds, shots], by the peer's own method on features that it finds computed already."""
    train, labels, test, truth = data
    computed = {"set": (train.astype(kind), labels, test.astype(kind), truth, classes)}
    evaluator = SimpleNamespace(_repr=computed, shots=SHOTS, l2_reg=strength)
    compute = peer.Evaluator.compute_fewshot_metrics
    found = [compute(evaluator, None, seed, "set", None, None) for seed in range(DRAWS)]
    return np.array([[float(result[shots]) for shots in SHOTS] for result in found])
