"""What one finished run says about itself, `record.json`, and what identifies a run. Imports no torch."""

import hashlib
import json
import re
import sys
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from backbones.spec_values import gate_name
from transfer.cli.old_names import current_content, current_keys, current_options
from transfer.records.checksums import is_modified

SCHEMA = 2
READABLE = (1, SCHEMA)
"""Schemas of records that this version reads; `transfer.cli.old_names` has the option names of the first one."""

# What `Record.read` insists on, so that reports can rely on it.
KINDS = {
    **dict.fromkeys(("run_id", "run_key", "config_digest", "task", "weights_id", "primary"), str),
    **dict.fromkeys(("dataset", "backbone", "options", "outcome", "scores", "metrics", "cost"), dict),
    **dict.fromkeys(("environment", "details", "files", "run_key_content", "origin"), dict),
    **dict.fromkeys(("untrained", "notes"), list),
    "seed": int,
    "smoke": bool,
}
# What older records of this schema lack.
ADDED: dict[str, Any] = {
    "export": None,
    "details": {},
    "files": {},
    "run_key_content": {},
    "shared": None,
    "origin": {},
}
COSTS = (
    *("params", "gflops", "train_seconds", "eval_seconds", "images_per_second", "data_wait_share", "device_hours"),
    *("extraction_seconds", "found_hours"),
)
"""Entries of `Record.cost` that reports compute with: numbers, or None."""
STATUSES = ("completed", "nonfinite", "diverged", "collapsed", "at_chance")


@dataclass(frozen=True)
class RunKey:
    """What makes two runs the same run; everything else about them is how they were executed.

    `content` holds plain values: task and version, the resolved backbone with users' files, weights, data digest,
    options, seed, smoke, subset, precision.
    """

    content: dict[str, Any]

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of `content`, in hex."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def without(self, *keys: str) -> "RunKey":
        """The same without some entries."""
        return RunKey({key: value for key, value in self.content.items() if key not in keys})

    def run_id(self, task: str, dataset: str, backbone: str) -> str:
        """`<task>-<dataset>-<backbone>-<12 hex>`, a folder's name."""
        names = (re.sub(r"[^A-Za-z0-9_.+@,]+", "_", name).strip("._")[:80] for name in (dataset, backbone))
        return "-".join([task, *names, self.digest[:12]])


@dataclass(kw_only=True)
class Record:
    """One finished run: `record.json`. Scores are fractions in [0, 1]; empty when the training broke down."""

    schema: int = SCHEMA
    run_id: str
    run_key: str
    config_digest: str
    """Digest of what the run key counts, without the seed: runs that differ in nothing else."""
    task: str
    task_version: int
    dataset: dict[str, Any]
    backbone: dict[str, Any]
    weights_id: str
    untrained: list[str]
    options: dict[str, Any]
    seed: int
    smoke: bool
    subset: int | None
    outcome: dict[str, Any]
    scores: dict[str, float]
    primary: str
    metrics: dict[str, dict[str, Any]]
    cost: dict[str, Any]
    environment: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """What a task says about its scores besides: draws and their spread, support sets, features."""
    export: str | None = None
    """Weights id of what the run left in its folder `export`; the `weights_id` of runs that start from it."""
    run_key_content: dict[str, Any] = field(default_factory=dict)
    """What `run_key` is the digest of; see `RunKey`."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """sha256 (hex) and size (bytes) of the other files of the run, by name. `Store.write` fills it in."""
    origin: dict[str, Any] = field(default_factory=dict)
    """Marks of the trainings behind the weights: `smoke`, `dirty`, `subset` (None: unknown); `training`, the protocol's
    digest of the last of them, and its `seed`. Empty if none is known."""
    shared: dict[str, Any] | None = None
    """What a shared copy left out; None for a run where it was made. See `transfer.share.bundle`."""

    def scale(self, name: str) -> float:
        """What a score is multiplied by in a table: fractions are printed in percent, other units as they are."""
        return 100.0 if self.metrics.get(name, {}).get("unit", "fraction") == "fraction" else 1.0

    def shown(self, name: str) -> float:
        """A score as tables print it."""
        return self.scale(name) * self.scores[name]

    @cached_property
    def current_content(self) -> dict[str, Any]:
        """What the key of a run of the same settings is the digest of today; empty if it was not recorded."""
        return self.run_key_content if self.schema == SCHEMA else current_content(self.run_key_content)

    @cached_property
    def current_run_key(self) -> str:
        """The key that a run of the same settings has today; `run_key` if older names make no difference."""
        if self.schema == SCHEMA or not self.run_key_content:
            return self.run_key
        return RunKey(self.current_content).digest

    @property
    def training_failed(self) -> bool:
        """Whether the training failed as a training."""
        return bool(self.outcome["status"] != "completed")

    @property
    def dirty(self) -> bool:
        """Whether the suite's files differed from its commit when the run was made."""
        return bool(self.environment.get("dirty"))

    @property
    def origin_marks(self) -> list[str]:
        """What marks the trainings behind the weights: "smoke", "dirty", "subset 8"."""
        subset = self.origin.get("subset")
        marks = [mark for mark in ("smoke", "dirty") if self.origin.get(mark)]
        return marks + ([f"subset {subset}"] if subset is not None else [])

    @classmethod
    def read(cls, path: Path, *, edited: bool = False) -> "Record":
        """A record from its file.

        Args:
            edited: take also one that was changed after it was written.

        Raises:
            UserError: not a record, one of a newer schema, or one that was edited.
        """
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from None
        return cls.parse(raw, path, edited=edited)

    @classmethod
    def parse(cls, raw: bytes, path: Path, *, edited: bool = False) -> "Record":
        """The same from the bytes of the file; `path` is for messages."""
        try:
            content = json.loads(raw)
            schema = content.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise unreadable(path, error) from None
        if schema not in READABLE:
            raise UserError(f"{path}: schema {schema}, but this version reads {SCHEMA}; update the suite")
        seal = content.pop("digest", None)
        content = ADDED | current_keys(content)
        if content.keys() != NAMES:
            differing = ", ".join(sorted(content.keys() ^ NAMES))
            raise UserError(f"{path}: unknown or missing entries: {differing}; delete its folder to run it again")
        wrong = [name for name, kind in KINDS.items() if not isinstance(content[name], kind)]
        wrong = wrong or _misshapen(content)
        if wrong:
            raise unreadable(path, ", ".join(wrong))
        if not edited and is_modified(raw, seal, content["files"]):
            raise UserError(
                f"{path}: edited after it was written; `python -m transfer.verify {path.parent}` says what differs. "
                "Put the old file back, or delete its folder to run it again"
            )
        return cls(schema=schema, **_with_current_names(schema, content))


def _with_current_names(schema: int, content: dict[str, Any]) -> dict[str, Any]:
    """Return a record's content with the names of this version, whichever version wrote it.

    `run_key` and `run_key_content` stay: the run's folder and what started from its weights name that key.
    """
    backbone = content["backbone"]
    if "gate" in backbone:
        content = content | {"backbone": backbone | {"gate": gate_name(backbone["gate"])}}
    if schema == SCHEMA:
        return content
    content = content | {"options": current_options(content["options"])}
    of_old_names = RunKey(content["run_key_content"]).without("seed")
    if content["run_key_content"] and content["config_digest"] == of_old_names.digest:
        current = RunKey(current_content(content["run_key_content"])).without("seed")
        content["config_digest"] = current.digest
    return content


def _misshapen(content: dict[str, Any]) -> list[str]:
    """The entries with a value that no report can take: a status of no meaning, a score that is no finite number."""
    outcome, scores, details = content["outcome"], content["scores"], content["details"].values()
    metrics = content["metrics"].values()
    errors = [about.get("standard_error") for about in details if isinstance(about, dict)]
    right = {
        "outcome": outcome.get("status") in STATUSES and _is_number(outcome.get("step", 0)),
        "scores": all(score is not None and _is_number(score) for score in scores.values()),
        "scores of a training that broke down": not scores or outcome.get("status") in ("completed", None),
        "metrics": all(isinstance(metric, dict) and _is_metric(metric) for metric in metrics),
        "cost": all(_is_number(content["cost"].get(name)) for name in COSTS),
        "details": all(map(_is_number, errors)),
    }
    return [name for name, held in right.items() if not held]


def _is_number(value: Any) -> bool:
    """A finite one, or nothing."""
    return value is None or (type(value) in (float, int) and abs(value) <= sys.float_info.max)


def _is_metric(metric: dict[str, Any]) -> bool:
    unit, direction = metric.get("unit", "fraction"), metric.get("direction", "higher")
    return isinstance(unit, str) and direction in ("higher", "lower")


NAMES = {item.name for item in fields(Record)} - {"schema"}


def unreadable(path: Path, reason: object) -> UserError:
    """The error for a file that holds no record."""
    return UserError(f"{path}: not a readable record ({reason}); delete its folder to run it again")
