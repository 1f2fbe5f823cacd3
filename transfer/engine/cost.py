"""What a run has cost so far, and the speed of this machine that `doctor speed` measured last. Imports no torch."""

import hashlib
import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from transfer.core.cache import recall, remember

CORE_SPEED, GPU_SPEED = {"fp32": 0.05, "bf16": 0.15}, 50.0
"""TFLOP/s that a core, by precision, and a GPU are assumed to sustain where `doctor speed` measured none; an AMD EPYC
trained `cifar_ti4` at 0.057 and 0.19."""


@dataclass
class Cost:
    """The cost of a run so far, in seconds of wall time, images and MiB; kept across interruptions."""

    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    wait_seconds: float = 0.0
    images: int = 0
    params: int = 0
    gflops: float = 0.0
    gflops_by: dict[str, float] = field(default_factory=dict)
    extraction: dict[str, float] = field(default_factory=dict)
    """For features from a store: `extraction_seconds` of the device for all of them, whenever they were computed, and
    `found_hours`, GPU hours (core hours on a CPU) of those that other runs left there; nan where that is not known."""

    def summary(self) -> dict[str, Any]:
        """Return the rates that a record shows; None where nothing was trained."""
        rate = self.images / self.train_seconds if self.train_seconds else None
        share = self.wait_seconds / self.train_seconds if self.train_seconds else None
        names = ("params", "gflops", "gflops_by", "train_seconds", "eval_seconds")
        rates = {"images_per_second": rate, "data_wait_share": share}
        known = {name: None if math.isnan(value) else value for name, value in self.extraction.items()}
        return {name: getattr(self, name) for name in names} | rates | known


def duration(seconds: float) -> str:
    """Return a duration: "40 s", "3.2 min", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class MeasuredSpeed(NamedTuple):
    """What a device sustained in whole training steps."""

    backbone: str
    """What was trained."""
    tflops: float
    """10^12 operations per second, counted as 3 in training for each of a forward pass."""
    date: str


def remember_speed(device: str, backbone: str, images_per_second: float, gflops: float) -> None:
    """Keep the speed of a device, by its name, for the predictions of sweeps.

    Args:
        images_per_second: of whole training steps.
        gflops: 10^9 operations of a forward pass of one image.
    """
    speed = MeasuredSpeed(backbone, 3 * gflops * images_per_second / 1e3, datetime.now(UTC).date().isoformat())
    remember(_speed_file(device), json.dumps(speed).encode(), what="the measured speed")


def recall_speed(device: str) -> MeasuredSpeed | None:
    """Return the speed of a device; None if it was not measured here."""
    content = recall(_speed_file(device))
    return None if content is None else MeasuredSpeed(*json.loads(content))


def _speed_file(device: str) -> str:
    return f"speeds/{hashlib.sha256(device.encode()).hexdigest()[:16]}.json"
