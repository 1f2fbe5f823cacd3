"""The record of a finished run, `record.json`, and the key that identifies a run. Imports no torch."""

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from transfer.core.errors import UserError
from transfer.engine.outcome import RULE, SCORED, Status

_DIGEST_ENTRY = b',\n "digest": "'


def with_checksum(content: dict[str, Any]) -> bytes:
    """Return a record as JSON whose last entry, `digest`, is the sha256 (hex) of all bytes before that entry.

    Bytes of file names that are not UTF-8 are escaped as JSON has it.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    return _closed(text.removesuffix("\n}").encode(errors="backslashreplace"))


def is_modified(raw: bytes) -> bool:
    """Return whether a record's bytes were changed after `with_checksum` made them."""
    return raw != _closed(raw[: raw.rfind(_DIGEST_ENTRY)])


def _closed(body: bytes) -> bytes:
    """Return the bytes of a record with their digest as its last entry."""
    return body + _DIGEST_ENTRY + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def digest_of(content: Any) -> str:
    """Return the sha256 of the canonical JSON of plain values in hex. Raises ValueError if a number is not finite."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


SCHEMA = 1
STATUSES: tuple[str, ...] = get_args(Status)
"""How a training can have ended."""
OLDER_RULE = "checked by an older version of the rule; run it again"


@dataclass(frozen=True)
class RunKey:
    """Everything that identifies a run; all other facts about a run are how it was executed.

    `content` holds plain values: task and version, the resolved backbone with users' files, weights, data digest,
    options, seed, smoke, subset, precision, the kind of device.
    """

    content: dict[str, Any]

    @property
    def digest(self) -> str:
        """The sha256 of `content` in hex."""
        return digest_of(self.content)

    @property
    def config_digest(self) -> str:
        """The sha256 of `content` without the seed in hex, equal for runs that differ only in seeds."""
        return digest_of({key: value for key, value in self.content.items() if key != "seed"})

    def run_id(self, task: str, dataset: str, backbone: str) -> str:
        """Return `<task>-<dataset>-<backbone>-<12 hex>`, the name of the run's folder."""
        names = (re.sub(r"[^A-Za-z0-9_.+@,]+", "_", name).strip("._")[:80] for name in (dataset, backbone))
        return "-".join([task, *names, self.digest[:12]])


@dataclass(kw_only=True)
class Record:
    """The content of `record.json`. Scores are fractions in [0, 1]; empty if training failed."""

    schema: int = SCHEMA
    run_id: str
    run_key: str
    config_digest: str
    """Digest of the run key's content without the seed, equal for runs that differ only in seeds."""
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
    """Further facts about the scores that depend on the task: draws and their spread, support sets, features."""
    export: str | None = None
    """Id of the weights in the run's folder `export`, which is the `weights_id` of runs that start from them."""
    run_key_content: dict[str, Any] = field(default_factory=dict)
    """Content of which `run_key` is the digest; see `RunKey`."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The sha256 (hex) and size (bytes) of the other files of the run, by name. `Store.write` fills it in."""
    origin: dict[str, Any] = field(default_factory=dict)
    """Marks of the trainings that the weights come from: `smoke`, `dirty`, `subset` (None if unknown), `modified` for
    weights that changed after their export; and of the last training its `config_digest` as `training` and its `seed`.
    Empty if no training is known."""
    user_code: dict[str, dict[str, str]] = field(default_factory=dict)
    """The `file` (path/to/file.py:NAME) and its `sha256` of each part of the run that is a user's: "task", "method",
    "reader", "metric NAME". Parts of the backbone are in `backbone`."""
    recipe: str | None = None
    """The recipe of the command, which is the task's name except for a pretraining run; no part of the run key."""
    shared: dict[str, Any] | None = None
    """Names of files that a shared copy left out; None if the record is not a copy. See `transfer.verify.bundle`."""

    def scale(self, name: str) -> float:
        """Return the factor of a score in tables: fractions are printed in percent, other units as they are."""
        return 100.0 if self.metrics.get(name, {}).get("unit", "fraction") == "fraction" else 1.0

    def shown(self, name: str) -> float:
        """Return a score in the unit that tables print."""
        return self.scale(name) * self.scores[name]

    def standard_error(self, name: str) -> float | None:
        """Return the standard error of a score over its draws, in the score's unit; None for a single draw."""
        details = self.details.get(name)
        return details.get("standard_error") if isinstance(details, dict) else None

    @property
    def training_failed(self) -> bool:
        """Whether the training failed, which is a result."""
        return self.status not in SCORED

    @property
    def saved_no_weights(self) -> bool:
        """Whether a pretraining was told to save no weights."""
        return not self.export and not self.training_failed and self.options.get("save_weights") == "none"

    @property
    def not_judged(self) -> bool:
        """Whether the rule could not tell, or an older one did: neither alive nor failed."""
        return self.status == "not_judged"

    @property
    def scored(self) -> bool:
        """Whether the run counts with its scores; one that an older rule found failed has none."""
        return bool(self.scores) or self.status == "completed"

    @property
    def status(self) -> Status:
        """How the training ended, by today's rule."""
        status: Status = self.outcome["status"]
        return status if self.outcome.get("rule", 0) >= RULE or status == "nonfinite" else "not_judged"

    @property
    def reason(self) -> str:
        """Why the training has its status; empty where nothing is to be said."""
        return str(self.outcome["reason"]) if self.status == self.outcome["status"] else OLDER_RULE

    @property
    def dirty(self) -> bool:
        """Whether the suite's files differed from its commit when the run was made."""
        return bool(self.environment.get("dirty"))

    @property
    def marks(self) -> list[str]:
        """Why its scores are no results: "smoke", "dirty", "subset 8"."""
        return _marks({"smoke": self.smoke, "dirty": self.dirty, "subset": self.subset})

    @property
    def origin_marks(self) -> list[str]:
        """The marks of the trainings that the weights come from, and of the weights: "smoke", "dirty", "modified" after
        their export, "subset 8".
        """
        return _marks(self.origin)

    @property
    def hours(self) -> float:
        """The GPU hours of the run; on CPUs the core hours, over threads and loader processes of each rank.

        The hours in which other runs extracted features that this run read from a store are included; nan where hours
        are not recorded.
        """
        if (device_hours := self.cost.get("device_hours")) is None:
            return math.nan
        cores = (self.environment.get("threads") or 1) + (self.environment.get("workers") or 0)
        return float(device_hours) * (1 if self.kind_of_hours == "GPU" else cores) + self.found_hours

    @property
    def found_hours(self) -> float:
        """The hours of extraction by other runs of features that this run found; nan where they are not recorded."""
        hours = self.cost.get("found_hours", 0.0)
        return math.nan if hours is None else float(hours)

    @property
    def kind_of_hours(self) -> str:
        """Whether they are hours of a "GPU" or of a "core", by the type of the device."""
        return "GPU" if self.environment.get("device_type") == "cuda" else "core"

    @classmethod
    def read(cls, path: Path, *, edited: bool = False) -> "Record":
        """Return the record in a file.

        Args:
            path: the file.
            edited: whether a record that was changed after it was written is accepted.

        Raises:
            UserError: the file holds no record, one of a newer schema, or one that was edited.
        """
        try:
            raw = path.read_bytes()
            content = json.loads(raw.decode("utf-8"))
            if content["schema"] != SCHEMA:
                version = f"schema {content['schema']}, but this version reads {SCHEMA}"
                raise UserError(f"{path}: {version}; update the suite")
            content.pop("digest", None)
            record = cls(**content)
        except OSError as error:  # of the disk, or the user's rights
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:  # an entry is missing or unknown, among others
            raise UserError(f"{path}: not a readable record ({error}); delete its folder to run it again") from None
        if not edited and is_modified(raw):
            raise UserError(
                f"{path}: edited after it was written; `python -m transfer.verify {path.parent}` says what differs. "
                "Put the old file back, or delete its folder to run it again"
            )
        return record


def total_hours(records: Iterable[Record]) -> str | None:
    """Return the hours of runs, each once, by kind: "1.2 GPU + 0.1 core"; None without runs, or where
    one has none recorded.

    Extraction of the same features counts once, with the run that did it if it is one of these.
    """
    kinds: defaultdict[str, float] = defaultdict(float)
    found = defaultdict[tuple[str, str], list[float]](list)
    for record in {record.run_id: record for record in records}.values():
        kinds[record.kind_of_hours] += record.hours - record.found_hours
        if "found_hours" in record.cost:
            entries = record.details.get("features", {}).get("entries", record.run_id)
            found[record.kind_of_hours, str(entries)].append(record.found_hours)
    for (kind, _), hours in found.items():
        kinds[kind] += max(hours) if all(hours) else 0.0
    if any(map(math.isnan, kinds.values())):
        return None
    return " + ".join(f"{took:.3g} {kind}" for kind, took in kinds.items()) or None


def _marks(facts: Mapping[str, Any]) -> list[str]:
    subset = facts.get("subset")
    marks = [mark for mark in ("smoke", "dirty", "modified") if facts.get(mark)]
    return marks + ([f"subset {subset}"] if subset is not None else [])
