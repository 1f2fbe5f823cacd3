"""Records of runs, what identifies a run, and the folder of runs. Imports no torch."""

import fcntl
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from backbones.errors import UserError
from backbones.files import cannot_write, check_writable, replaced, write_atomic

SCHEMA = 1
RECORD, OPTIONS, OUTCOMES, ERROR, LOCK, STATE = (
    "record.json",
    "options.yaml",
    "outcomes.npz",
    "error.txt",
    "lock",
    "state.pt",
)


# What `Record.read` insists on, so that reports can rely on it.
KINDS = {
    **dict.fromkeys(("run_id", "identity", "protocol", "task", "weights_id", "primary"), str),
    **dict.fromkeys(
        ("dataset", "backbone", "options", "outcome", "scores", "metrics", "cost", "environment", "details"), dict
    ),
    **dict.fromkeys(("untrained", "notes"), list),
    "seed": int,
    "smoke": bool,
}
ADDED: dict[str, Any] = {"export": None, "details": {}}  # what older records of this schema lack
STATUSES = ("completed", "nonfinite", "diverged", "collapsed", "at_chance")


@dataclass(frozen=True)
class Identity:
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

    def without(self, *keys: str) -> "Identity":
        """The same without some entries."""
        return Identity({key: value for key, value in self.content.items() if key not in keys})

    def run_id(self, task: str, dataset: str, backbone: str) -> str:
        """`<task>-<dataset>-<backbone>-<12 hex>`, a folder's name."""
        names = (re.sub(r"[^A-Za-z0-9_.+@,]+", "_", name).strip("._")[:80] for name in (dataset, backbone))
        return "-".join([task, *names, self.digest[:12]])


@dataclass(kw_only=True)
class Record:
    """One finished run: `record.json`. Scores are fractions in [0, 1]; empty when the training broke down."""

    schema: int = SCHEMA
    run_id: str
    identity: str
    protocol: str
    """Digest of the identity without its seed: runs that differ in nothing else."""
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

    @property
    def broke_down(self) -> bool:
        """Whether the training failed as a training."""
        return self.outcome["status"] != "completed"

    @classmethod
    def read(cls, path: Path) -> "Record":
        """A record from its file.

        Raises:
            UserError: not a record, or one of a newer schema.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            schema = content.pop("schema")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{path}: not a readable record ({error}); delete its folder to run it again") from None
        if schema != SCHEMA:
            raise UserError(f"{path}: schema {schema}, but this version reads {SCHEMA}; update the suite")
        names = {item.name for item in fields(cls)} - {"schema"}
        content = ADDED | content
        if set(content) != names:
            differing = ", ".join(sorted(set(content) ^ names))
            raise UserError(f"{path}: unknown or missing entries: {differing}; delete its folder to run it again")
        wrong = [name for name, kind in KINDS.items() if not isinstance(content[name], kind)]
        if wrong or content["outcome"].get("status") not in STATUSES:
            raise UserError(
                f"{path}: not a readable record ({', '.join(wrong) or 'outcome'}); delete its folder to run it again"
            )
        return cls(**content)


@dataclass(frozen=True)
class Store:
    """A folder of runs, one folder each."""

    root: Path

    def prepare(self) -> None:
        """Makes the folder and checks that it can be written.

        Raises:
            UserError: it cannot.
        """
        check_writable(self.root, "--out")

    def folder(self, run_id: str) -> Path:
        """The folder of a run; it need not exist."""
        return self.root / run_id

    def find(self, run_id: str, identity: Identity) -> Record | None:
        """The finished record of a run, None when there is none.

        Raises:
            UserError: the folder's record is damaged or belongs to another run.
        """
        path = self.folder(run_id) / RECORD
        if not path.exists():
            return None
        record = Record.read(path)
        if record.identity != identity.digest:
            raise UserError(f"{path}: belongs to another run ({record.identity[:16]}); move the folder away")
        return record

    @contextmanager
    def lock(self, run_id: str, waiting: Callable[[], None]) -> Iterator[Path]:
        """Holds a run's folder, after `waiting()` where another process has it. POSIX locks die with their process."""
        folder = self.folder(run_id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / LOCK).open("a")
        except OSError as error:
            raise cannot_write(folder / LOCK, error) from None
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                waiting()
                fcntl.lockf(file, fcntl.LOCK_EX)
            for scrap in folder.glob(".*.tmp"):
                scrap.unlink()  # of a process that was killed while it wrote
            yield folder

    def write(self, record: Record, options: str, outcomes: dict[str, np.ndarray]) -> None:
        """Writes a finished run; the record comes last, so a folder with one is complete."""
        folder = self.folder(record.run_id)
        write_atomic(folder / OPTIONS, options.encode())
        if outcomes:
            with replaced(folder / OUTCOMES) as temporary, temporary.open("wb") as file:
                np.savez_compressed(file, allow_pickle=False, **outcomes)
        text = json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False)
        write_atomic(folder / RECORD, text.encode())
        for name in (STATE, ERROR, LOCK):
            (folder / name).unlink(missing_ok=True)

    def records(self) -> tuple[list[Record], list[str]]:
        """All finished records in order of their names, and what could not be read."""
        found, problems = [], []
        for path in sorted(self.root.glob(f"*/{RECORD}")):
            try:
                found.append(Record.read(path))
            except UserError as error:
                problems.append(str(error))
        return found, problems
