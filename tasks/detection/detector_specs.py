"""Detectors as their YAML files describe them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from backbones.errors import UsageError, did_you_mean, unknown
from backbones.settings import CONFIGS, config_names, read_yaml


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """A detector as described by its YAML file."""

    name: str
    base: str
    """Name of a file of mmdetection's configs/_base_/models, without its suffix."""
    masks: bool
    """Whether the detector predicts masks."""
    model: dict[str, Any]
    """Values merged into the base, as mmdetection's own configurations merge one file into another."""


def detector_names() -> list[str]:
    """Return the names of the shipped detectors."""
    return config_names("detectors")


def resolve_detector(name: str) -> DetectorSpec:
    """Read the description of a detector from a shipped name, or from a YAML file with the same keys.

    Raises:
        UsageError: the name or a key is unknown, or a value is of the wrong type.
    """
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        if name not in detector_names():
            raise unknown("detector", name, detector_names(), "; or a YAML")
        path = CONFIGS / "detectors" / f"{name}.yaml"
    content = {"name": path.stem, "model": {}, **read_yaml(path)}
    known_keys = {item.name: {"masks": bool, "model": dict}.get(item.name, str) for item in fields(DetectorSpec)}
    for key in sorted(content.keys() ^ known_keys.keys()):
        problem = "missing" if key in known_keys else f"unknown{did_you_mean(key, known_keys)}"
        raise UsageError(f"{path}: the key {key!r} is {problem}")
    for key, value in content.items():
        if not isinstance(value, known_keys[key]):
            raise UsageError(f"{path}: `{key}` is {value!r}; it must be of type {known_keys[key].__name__}")
    return DetectorSpec(**content)
