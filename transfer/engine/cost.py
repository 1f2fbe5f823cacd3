"""What a run has cost so far."""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Cost:
    """The cost of a run so far, in seconds of wall time, images and MiB; kept across interruptions."""

    train_seconds: float = 0.0
    eval_seconds: float = 0.0
    wait_seconds: float = 0.0
    images: int = 0
    params: int = 0
    gflops: float = 0.0
    gflops_by: dict[str, float | str] = field(default_factory=dict)
    extraction: dict[str, float] = field(default_factory=dict)
    """For features from a store: `extraction_seconds` of the device for all of them, whenever they were computed, and
    `found_hours`, GPU hours (core hours on a CPU) of those that other runs left there; nan where that is not known."""

    def summary(self) -> dict[str, Any]:
        """Return the rates that a record shows; None where nothing was trained."""
        rate = self.images / self.train_seconds if self.train_seconds else None
        share = self.wait_seconds / self.train_seconds if self.train_seconds else None
        kept = ("params", "gflops", "gflops_by", "train_seconds", "eval_seconds")
        return {
            **{name: getattr(self, name) for name in kept},
            "images_per_second": rate,
            "data_wait_share": share,
            **{name: None if math.isnan(value) else value for name, value in self.extraction.items()},
        }


def duration(seconds: float) -> str:
    """Return a duration: "40 s", "3.2 min", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.2g} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
