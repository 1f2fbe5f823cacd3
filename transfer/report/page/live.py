"""The runs without a record on a page that is served: under way with their loss and time left, interrupted, failed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from backbones.settings import read_yaml
from transfer.records.store import HISTORY, OPTIONS, Unfinished
from transfer.report.page.section_types import Section
from transfer.report.tables.table import Column, Row, Table

TAIL = 2**16
"""Bytes at the end of a history in which its last step is looked for."""


def live_section(unfinished: Sequence[Unfinished]) -> Section | None:
    """Return the section of the runs without a record; None if there are none."""
    if not unfinished:
        return None
    states = [run.state for run in unfinished]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    rows = [_row(run) for run in unfinished]
    columns = [Column("loss", significant_digits=4), Column("minutes left", digits=0)]
    table = Table.from_rows(rows, columns).without_empty()
    return Section(title="Not finished", table=table, note=f"{counts}.")


def _row(run: Unfinished) -> Row:
    cells: Row = {"run of": run.folder.name, "state": run.state}
    cells |= dict.fromkeys(("step", "epoch", "loss", "minutes left"))
    step = last_step(run.folder)
    if run.state == "under way" and step is not None:
        cells |= {"step": step["step"], "loss": step["loss"]} | _progress(run.folder, float(step["epoch"]))
    return cells | {"reason": (run.reason.splitlines() or [""])[0]}


def last_step(folder: Path) -> dict[str, Any] | None:
    """Return the last training step in a run's history that is whole; None without any."""
    try:
        with (folder / HISTORY).open("rb") as file:
            file.seek(max(file.seek(0, 2) - TAIL, 0))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            step = json.loads(line)
        except ValueError:
            continue  # cut off, by the writer or at the front
        if isinstance(step, dict) and {"step", "epoch", "loss"} <= step.keys():
            return step
    return None


def _progress(folder: Path, epoch: float) -> Row:
    """Return the epoch of all, and minutes left if training goes on as since the run's folder was made."""
    try:
        epochs = float(read_yaml(folder / OPTIONS)["epochs"])
        begin, now = ((folder / name).stat().st_mtime for name in (OPTIONS, HISTORY))
    except (UserError, OSError, KeyError, TypeError, ValueError):
        return {}
    left = (now - begin) * (epochs - epoch) / epoch / 60 if 0 < epoch <= epochs else None
    return {"epoch": f"{epoch:.1f} of {epochs:g}", "minutes left": left}
