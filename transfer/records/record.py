"""The record of a finished run, `record.json`, and the key that identifies a run. Imports no torch."""

import hashlib
import json
import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from backbones.runtime.files import read_regular
from backbones.runtime.path_errors import path_error
from backbones.spec_values import gate_name
from transfer.cli.old_names import current_content, current_keys, current_options
from transfer.records.checksums import is_modified
from transfer.records.record_schema import (
    Numbers,
    entries_with_odd_texts,
    invalid_entries,
    is_a,
    not_finite_entries,
    too_deep_entries,
)

SCHEMA = 2
READABLE = (1, SCHEMA)
"""Schemas of records that this version reads; `transfer.cli.old_names` has the option names of the first one."""

# The types that `Record.read` checks, so that reports can rely on them.
KINDS = {
    **dict.fromkeys(("run_id", "run_key", "config_digest", "task", "weights_id", "primary"), str),
    **dict.fromkeys(("dataset", "backbone", "options", "outcome", "scores", "metrics", "cost"), dict),
    **dict.fromkeys(("environment", "details", "files", "run_key_content", "origin", "user_code"), dict),
    **dict.fromkeys(("untrained", "notes"), list),
    "seed": int,
    "task_version": int,
    "smoke": bool,
    "subset": (int, type(None)),
    "export": (str, type(None)),
    "shared": (dict, type(None)),
}
# The defaults of entries that older records of this schema lack.
ADDED: dict[str, Any] = {
    "export": None,
    "details": {},
    "files": {},
    "run_key_content": {},
    "shared": None,
    "origin": {},
    "user_code": {},
}


@dataclass(frozen=True)
class RunKey:
    """Everything that identifies a run; all other facts about a run are how it was executed.

    `content` holds plain values: task and version, the resolved backbone with users' files, weights, data digest,
    options, seed, smoke, subset, precision.
    """

    content: dict[str, Any]

    @property
    def digest(self) -> str:
        """The sha256 of the canonical JSON of `content` in hex."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def without(self, *keys: str) -> "RunKey":
        """Return the key without some entries."""
        return RunKey({key: value for key, value in self.content.items() if key not in keys})

    def run_id(self, task: str, dataset: str, backbone: str) -> str:
        """Return `<task>-<dataset>-<backbone>-<12 hex>`, the name of the run's folder."""
        names = (re.sub(r"[^A-Za-z0-9_.+@,]+", "_", name).strip("._")[:80] for name in (dataset, backbone))
        return "-".join([task, *names, self.digest[:12]])


@dataclass(kw_only=True)
class Record:
    """The content of `record.json`. Scores are fractions in [0, 1]; there are none if the training broke down."""

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
    shared: dict[str, Any] | None = None
    """Names of files that a shared copy left out; None if it is no copy. See `transfer.share.bundle`."""

    def scale(self, name: str) -> float:
        """Return the factor of a score in tables: fractions are printed in percent, other units as they are."""
        return 100.0 if self.metrics.get(name, {}).get("unit", "fraction") == "fraction" else 1.0

    def shown(self, name: str) -> float:
        """Return a score in the unit that tables print."""
        return self.scale(name) * self.scores[name]

    @cached_property
    def current_content(self) -> dict[str, Any]:
        """The content of the run key under the option names of this version; empty if it was not recorded."""
        return self.run_key_content if self.schema == SCHEMA else current_content(self.run_key_content)

    @cached_property
    def current_run_key(self) -> str:
        """The key that a run of the same settings has in this version; `run_key` if option names did not change it."""
        if self.schema == SCHEMA or not self.run_key_content:
            return self.run_key
        return RunKey(self.current_content).digest

    @property
    def training_failed(self) -> bool:
        """Whether the training broke down, which is a result."""
        return bool(self.outcome["status"] != "completed")

    @property
    def dirty(self) -> bool:
        """Whether the suite's files differed from its commit when the run was made."""
        return bool(self.environment.get("dirty"))

    @property
    def origin_marks(self) -> list[str]:
        """The marks of the trainings that the weights come from, and of the weights: "smoke", "dirty", "modified" after
        their export, "subset 8".
        """
        subset = self.origin.get("subset")
        marks = [mark for mark in ("smoke", "dirty", "modified") if self.origin.get(mark)]
        return marks + ([f"subset {subset}"] if subset is not None else [])

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
            raw = read_regular(path)
        except OSError as error:
            raise unreadable(path, error) from None
        return cls.parse(raw, path, edited=edited)

    @classmethod
    def parse(cls, raw: bytes, path: Path, *, edited: bool = False) -> "Record":
        """Return the record in the bytes of a file, see `read`; `path` is used in messages."""
        numbers = Numbers()
        try:
            content = json.loads(raw.decode("utf-8"), parse_constant=numbers.read, parse_float=numbers.read)
            schema = content.pop("schema")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise unreadable(path, error) from None
        if schema not in READABLE:
            kind = OtherSchema if type(schema) is int else UserError
            raise kind(f"{path}: schema {str(schema)[:40]}, but this version reads {SCHEMA}; update the suite")
        digest = content.pop("digest", None)
        content = ADDED | current_keys(content)
        if content.keys() != NAMES:
            differing = ", ".join(name[:40] for name in sorted(content.keys() ^ NAMES))
            raise UserError(f"{path}: unknown or missing entries: {differing}; delete its folder to run it again")
        wrong = [name for name, kind in KINDS.items() if not is_a(content[name], kind)]
        wrong = (
            wrong or too_deep_entries(raw, content) or entries_with_odd_texts(raw, content) or invalid_entries(content)
        )
        if not wrong and numbers.not_finite:
            wrong = not_finite_entries(content)
        if wrong:
            raise unreadable(path, ", ".join(wrong))
        if not edited and is_modified(raw, digest, content["files"]):
            raise UserError(
                f"{path}: edited after it was written; `python -m transfer.verify {path.parent}` says what differs. "
                "Put the old file back, or delete its folder to run it again"
            )
        return cls(schema=schema, **_with_current_names(schema, content))


def _with_current_names(schema: int, content: dict[str, Any]) -> dict[str, Any]:
    """Return a record's content with the option names of this version, whichever version wrote it.

    `run_key` and `run_key_content` stay, because the run's folder and runs that started from its weights name that key.
    """
    backbone = content["backbone"]
    if "gate" in backbone:
        content = content | {"backbone": backbone | {"gate": gate_name(backbone["gate"])}}
    if schema == SCHEMA:
        return content
    content = content | {"options": current_options(content["options"])}
    old_key = RunKey(content["run_key_content"]).without("seed")
    if content["run_key_content"] and content["config_digest"] == old_key.digest:
        current = RunKey(current_content(content["run_key_content"])).without("seed")
        content["config_digest"] = current.digest
    return content


NAMES = {item.name for item in fields(Record)} - {"schema"}


class OtherSchema(UserError):
    """The record is of another version of the suite."""


def unreadable(path: Path, reason: object) -> UserError:
    """Return the error for a file that holds no record, or that the disk or the user's rights keep from being read."""
    if isinstance(reason, OSError) and (refused := path_error(reason)):
        return refused
    return UserError(f"{path}: not a readable record ({reason}); delete its folder to run it again")
