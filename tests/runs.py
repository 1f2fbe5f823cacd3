"""What tests read of the run that a command left in a folder: its record, its history, its scores by sample."""

from pathlib import Path
from typing import Any

import numpy as np

from transfer.engine import checkpoint
from transfer.engine.outcome import RULE
from transfer.records.record import Record


def ended(status: str = "completed", step: int = 9, reason: str = "") -> dict[str, Any]:
    """The outcome of a record that today's rule has judged."""
    return {"status": status, "reason": reason, "step": step, "rule": RULE}


def record(out: Path) -> Record:
    """The only record in a folder of runs."""
    (path,) = out.glob("*/record.json")
    return Record.read(path)


def history(out: Path) -> list[dict[str, Any]]:
    """The lines of the only history in a folder of runs."""
    return checkpoint.history(next(out.glob("*/history.jsonl")).parent)


def outcomes(out: Path) -> dict[str, np.ndarray]:
    """What the only run of a folder keeps of each sample."""
    with np.load(next(out.glob("*/outcomes.npz"))) as file:
        return dict(file)


def steps(out: Path) -> int:
    """The number of steps that an unfinished run has logged, once its state has reached the disk."""
    (path,) = list(out.glob("*/history.jsonl")) or [None]
    states = list(out.glob("*/state.pt"))
    return path.read_text().count("\n") if path and states else 0


def differences(a: Record, b: Record) -> dict[str, tuple[Any, Any]]:
    """The fields in which two records differ, of those that do not depend on how and when a run was executed."""
    timeless = ("cost", "environment", "options", "files")  # options.yaml says how it was executed
    one, two = vars(a), vars(b)
    names = [name for name in sorted(one.keys() | two.keys()) if name not in timeless]
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def assert_equal_runs(one: Path, two: Path) -> None:
    """Fail unless the runs of two folders have equal records, histories and outcomes, bit for bit."""
    assert differences(record(one), record(two)) == {}
    assert history(one) == history(two)
    a, b = outcomes(one), outcomes(two)
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[key], b[key], equal_nan=a[key].dtype.kind == "f") for key in a)
