"""What must be true of every command, whatever it was asked for."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.interactions.commands import Ran
from transfer.records.record import STATUSES, Record
from transfer.records.store import ERROR, HISTORY, LOCK, OUTCOMES, RECORD, STATE
from transfer.verify.__main__ import main as verify

ORDERED = (("rank1", "rank5", "rank10"), ("top1", "top5"), ("knn_top1", "knn_top5"), ("top1", "best_top1"))
"""Scores of which none is above the next."""
SLOW_TO_START = ("linear",)
"""Tasks that extract features of whole splits before they train."""
TABLES = "detect"
"""The task whose outcomes are tables of several lengths."""


def broken(ran: Ran, expected: str | None = None, *, anew: bool = False) -> list[str]:
    """What is wrong with a command that has run; nothing where all is well.

    Args:
        expected: what its error must say; None: it must have come to a record.
        anew: compute every score of float32 anew by the plain statement of its metric in float64.
    """
    found = [] if "Traceback" not in ran.stdout + ran.stderr else ["a traceback"]
    if expected is not None:
        return found + refusal(ran, expected)
    if ran.status not in (0, 3):
        return [*found, f"exit status {ran.status}: {_last(ran.stderr)}"]
    if not ran.runs:
        return [*found, "no record"]
    for folder in ran.runs:
        found += [f"{folder.name}: {text}" for text in of_run(folder, ran.status, anew=anew)]
    return found + [f"warned: {text}" for text in ran.warned]


def refusal(ran: Ran, expected: str) -> list[str]:
    """What is wrong with how a command was refused: one error, of a wrong word or a failure, that says what matters."""
    found = [] if ran.status in (1, 2) else [f"exit status {ran.status} where 1 or 2 is due"]
    said = " ".join((ran.stdout + ran.stderr).replace("│", " ").split())
    lines = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    if len(lines) != 1 and "For full helptext" not in said:  # the box around a flag that cannot be read
        found.append(f"{len(lines)} lines that start with `error:`")
    if expected not in said:
        found.append(f"the error does not say {expected!r}: {_last(ran.stderr)}")
    if " starts" in ran.stderr and ran.command.words[0] in SLOW_TO_START:
        found.append("refused after the run has started, which reads images before it trains")
    return found + ["a record all the same"] * bool(ran.runs)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[:400]


def of_run(folder: Path, status: int, *, anew: bool = False) -> list[str]:
    """What is wrong with the folder of a finished run; see `broken`."""
    record = Record.read(folder / RECORD)
    found = _of_scores(record, status) + _of_cost(record) + _of_history(folder, record)
    found += [f"left {name}" for name in (STATE, ERROR, LOCK) if (folder / name).exists()]
    found += [f"left {path.name}" for path in folder.glob(".*")]
    if record.scores:
        found += _of_outcomes(folder, record)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        # of a dozen images half precision leaves nothing to compare with
        anew = anew and record.environment["eval_precision"] == "fp32"
        if verify([str(folder), *["--recompute"] * anew]):
            found.append(f"transfer.verify: {_last(said.getvalue())}")
    return found


def _of_scores(record: Record, status: int) -> list[str]:
    found = []
    if record.outcome["status"] not in STATUSES:
        found.append(f"outcome {record.outcome['status']!r}")
    if record.training_failed != (status == 3):
        found.append(f"exit status {status} with outcome {record.outcome['status']}")
    if record.training_failed and (record.scores or not record.outcome["reason"]):
        found.append("a training that broke down has scores, or no reason")
    if not record.training_failed and record.primary not in record.scores:
        found.append(f"no {record.primary}")
    for name, score in record.scores.items():
        low, high = record.metrics[name]["bounds"]
        if not (math.isfinite(score) and low <= score <= high):
            found.append(f"{name} = {score}")
    for names in ORDERED:
        values = [record.scores[name] for name in names if name in record.scores]
        found += [f"{' <= '.join(names)} does not hold: {values}"] * (values != sorted(values))
    return found


def _of_cost(record: Record) -> list[str]:
    cost = record.cost
    positive = {"params", "gflops", "peak_mib"} | ({"eval_seconds"} if record.scores else set())
    if cost["train_seconds"]:
        positive |= {"images_per_second"}
    found = [f"cost {name} = {cost[name]}" for name in sorted(positive) if not (cost[name] and cost[name] > 0)]
    share = cost["data_wait_share"]
    return found + [f"data_wait_share = {share}"] * (share is not None and not 0 <= share <= 1)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The history of a run."""
    path = folder / HISTORY
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _of_history(folder: Path, record: Record) -> list[str]:
    steps = [line for line in lines_of(folder) if "loss" in line]
    numbers = [line["step"] for line in steps]
    found = ["the steps of the history are not 1, 2, 3, ..."] * (numbers != list(range(1, len(steps) + 1)))
    if record.training_failed:
        return found
    for line in steps:
        wrong = {name: value for name, value in line.items() if not isinstance(value, float | int)}
        wrong |= {name: value for name, value in line.items() if name not in wrong and not math.isfinite(value)}
        if wrong and "scale" not in line:
            return [*found, f"history of a completed run: {wrong} at step {line['step']}"]
    if steps and (steps[-1]["step"] != record.outcome["step"] or steps[-1]["epoch"] != record.options["epochs"]):
        found.append(f"the history ends at {steps[-1]['step']}, {steps[-1]['epoch']}, not with the training")
    return found


def _of_outcomes(folder: Path, record: Record) -> list[str]:
    with np.load(folder / OUTCOMES) as file:
        arrays = dict(file)
    found = [f"outcomes have no {name}" for name in ("sample", "cluster") if name not in arrays]
    if record.task == TABLES:
        return found
    lengths = {len(values) for values in arrays.values()}
    if len(lengths) != 1:
        found.append(f"outcomes of lengths {sorted(lengths)}")
    if len({*arrays["sample"].tolist()}) != len(arrays["sample"]):
        found.append("a sample stands twice in the outcomes")
    return found
