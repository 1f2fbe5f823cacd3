"""The speed that `doctor speed` last measured on a device, kept in the cache folder for the predictions of sweeps."""

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from transfer.core.cache import recall, remember
from transfer.core.files import parse_json


@dataclass(frozen=True)
class MeasuredSpeed:
    """What a device sustained in whole training steps."""

    device: str
    backbone: str
    tflops: float
    """10^12 operations per second, counted as 3 in training for each of a forward pass."""
    date: str


def remember_speed(device: str, backbone: str, images_per_second: float, gflops: float) -> None:
    """Keep the speed of a device, in place of an older one.

    Args:
        device: its name.
        backbone: what was trained.
        images_per_second: of whole training steps.
        gflops: 10^9 operations of a forward pass of one image.
    """
    today = datetime.now(UTC).date().isoformat()
    speed = MeasuredSpeed(device, backbone, 3 * gflops * images_per_second / 1e3, today)
    remember(_name(device), json.dumps(asdict(speed)).encode(), what="the measured speed")


def recall_speed(device: str) -> MeasuredSpeed | None:
    """Return the speed of a device; None if it was not measured here."""
    content = recall(_name(device))
    return None if content is None else MeasuredSpeed(**parse_json(content))


def _name(device: str) -> str:
    return f"speed/{hashlib.sha256(device.encode()).hexdigest()[:16]}.json"
