"""Runs of published cells at full scale, written as the evaluator writes them, for tests of the tables beside them."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from backbones.spec import resolve
from tests.runs import ended
from tests.transfer.records.test_store import record
from transfer.cli.options import BackboneOptions
from transfer.core.settings import read_yaml
from transfer.data.spec import resolve_dataset
from transfer.engine.options import RESOLVED
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.published_rows import table_of
from transfer.experiments.sweep_file import SweepFile, read_sweep
from transfer.records.protocol import not_of_task
from transfer.records.record import RunKey
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store, StoredRun
from transfer.report.published.matching import process_count
from transfer.report.published.table import paper_table
from transfer.report.tables.table import cell_text
from transfer.report.tables.text import note_texts

PROBED = "DINO-S/16, 3Conv+3BN+1Proj, 5e-4, AdamW, warm-up 10"
"""A row of table 2 whose steps are `dino` and `linear`."""
FACTS = ("task", "task_version", "weights_id", "seed", "smoke", "subset", "dataset")
"""What of a record is part of its identity as it stands."""


@lru_cache
def full(sweep: str) -> SweepFile:
    return read_sweep(sweep, "full", readings="both")


def cells_of(table: str, label: str, step: str, paper: str = "scaled_relu") -> list[SweepJob]:
    """The cells of a step of a row at the full tier."""
    sweep = full(table_of(paper, table).sweep)
    row = next(row for row in sweep.rows if row["label"] == label)
    return [cell for cell in expand(replace(sweep, rows=(row,))) if cell.step.name == step]


def cell_of(table: str, label: str, step: str, paper: str = "scaled_relu", **options: Any) -> SweepJob:
    """The first of them that has these options."""
    cells = cells_of(table, label, step, paper)
    return next(cell for cell in cells if all(cell.options[name] == value for name, value in options.items()))


def run_of(cell: SweepJob, folder: Path, right: int | None = None, of: int = 1000, **given: Any) -> StoredRun:
    """A run of a cell, written by the store: `right` of so many images, or a breakdown.

    What is given replaces entries of the record; those of `dataset` and `environment` are laid over the usual ones, and
    those of `changed` over its options.
    """
    options = dict.fromkeys(asdict(BackboneOptions())) | read_yaml(cell.step.source.path) | cell.options
    parts = {name: options.pop(name) for name in asdict(BackboneOptions()) if name in options}
    weights = parts.get("weights") or "random"
    spec = resolve(cell.backbone, **{**parts, "weights": weights})
    facts = resolve_dataset(cell.dataset)
    data = {"name": cell.dataset, "version": facts.version or ("V1" if cell.dataset == "msmt17" else None)}
    data |= {"counts": facts.counts, "digest": "0" * 64, "skipped": 0} | given.pop("dataset", {})
    precisions = {"precision": "bf16" if options.get("precision") == "auto" else options.get("precision")}
    environment = {"dirty": False, **precisions, "eval_precision": "fp32", "started": f"2026-11-22T0{cell.seed}"}
    environment |= {"world_size": process_count(cell.step) or 1, "sequence_parallel": 1}
    options |= given.pop("changed", {})
    values: dict[str, Any] = {
        "task": cell.step.task.name,
        "task_version": 1,
        "dataset": data,
        "weights_id": weights,
        "seed": cell.seed,
        "smoke": False,
        "subset": None,
        "environment": environment | given.pop("environment", {}),
        **given,
    }
    names = [*options.keys() - {*not_of_task(values["task"]), *RESOLVED}]
    content = {name: value for name, value in values.items() if name in FACTS} | {"backbone": spec.identity()}
    # a folder counts by its content
    content["options"] = {name: "a" if name == "token_labels" and options[name] else options[name] for name in names}
    content["precision"] = [values["environment"].get(name) for name in ("precision", "eval_precision")]
    run_key = RunKey(content)
    usual: dict[str, Any] = {
        "run_id": run_key.run_id(cell.step.task.name, cell.dataset, cell.backbone),
        "run_key_content": content,
        "backbone": spec.as_dict(),
        "options": parts | options | {"backbone": cell.backbone, "dataset": [cell.dataset]},
        "scores": {} if right is None else {"top1": right / of},
        "metrics": {"top1": {"unit": "fraction", "direction": "higher", "bounds": [0.0, 1.0]}},
        "outcome": ended("nonfinite" if right is None else "completed", 9),
        "cost": {"device_hours": 2.0},
    }
    made = record(run_key, **usual | values)
    run_id = made.run_id
    (folder / run_id / "export").mkdir(parents=True)
    outcomes = {}
    if right is not None:
        names = np.array([f"{number:05d}" for number in range(of)])
        rank = np.array([0] * right + [7] * (of - right))
        outcomes = {"sample": names, "cluster": names, "rank": rank, "ties": np.zeros(of, dtype=int)}
    return StoredRun(folder / run_id, Store(folder).write(made, "", outcomes))


def shown_table(runs: Sequence[StoredRun], paper: str, table: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a table and its notes as a reader sees them: all but whole numbers as texts."""
    made = paper_table(StoredRuns.of(runs), paper, table)
    rows = [{name: _text(name, value) for name, value in row.items()} for row in made.rows]
    return rows, note_texts(made.notes)


def _text(name: str, value: Any) -> str | int:
    if isinstance(value, int):
        return value
    return " ".join(value or ()) if name == "runs" else cell_text(value)


def lines_of(runs: list[StoredRun], table: str, label: str, paper: str = "scaled_relu") -> list[dict[str, Any]]:
    """The lines of a row."""
    rows, _ = shown_table(runs, paper, table)
    return [row for row in rows if row["row"] == label]


def line_of(runs: list[StoredRun], table: str, label: str, paper: str = "scaled_relu") -> dict[str, Any]:
    """The only one."""
    (line,) = lines_of(runs, table, label, paper)
    return line
