"""What must be true of every command, whatever it was asked for."""

import contextlib
import io
import math
from pathlib import Path

from tests.interactions.commands import Ran
from transfer.engine.checkpoint import STATE, history
from transfer.records.record import Record
from transfer.records.store import ERROR, LOCK, RECORD
from transfer.verify.__main__ import main as verify


def broken(ran: Ran) -> list[str]:
    """What is wrong with a command that has run, or was refused; nothing where all is well."""
    traced = "traceback" in (ran.stdout + ran.stderr).lower()
    found = [f"an unexpected error: {_last(ran.stderr)}"] if traced else []
    if ran.status in (1, 2):
        return found + _of_refusal(ran)
    if ran.status not in (0, 3) or not ran.runs:
        return [*found, f"exit status {ran.status}, {len(ran.runs)} records: {_last(ran.stderr)}"]
    for folder in ran.runs:
        found += [f"{folder.name}: {text}" for text in of_run(folder, ran.status)]
    return found


def _of_refusal(ran: Ran) -> list[str]:
    """What is wrong with how a command was refused: it is one error, which names a flag that it was given."""
    lines = [line for line in ran.stderr.splitlines() if line.startswith("error:")]
    found = ["a record all the same"] if ran.runs else []
    if len(lines) != 1:
        found.append(f"{len(lines)} lines that start with `error:`: {_last(ran.stderr)}")
    return found


def _last(text: str) -> str:
    return " / ".join([line for line in text.splitlines() if line.strip()][-3:])[:400]


def of_run(folder: Path, status: int) -> list[str]:
    """What is wrong with the folder of a finished run; see `broken`."""
    record = Record.read(folder / RECORD)
    found = _of_scores(record, status) + _of_history(folder, record)
    found += [f"left {name}" for name in (STATE, ERROR, LOCK) if (folder / name).exists()]
    found += [f"left {path.name}" for path in folder.glob(".*")]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        if verify([str(folder)]):
            found.append(f"transfer.verify: {_last(said.getvalue())}")
    return found


def _of_scores(record: Record, status: int) -> list[str]:
    found = []
    if record.training_failed != (status == 3):
        found.append(f"exit status {status} with outcome {record.outcome['status']}")
    if record.training_failed and (record.scores or not record.outcome["reason"]):
        found.append("a training that broke down has scores, or no reason")
    if not record.training_failed and not record.scores and record.task != "tokens":  # one token is similar to none
        found.append("no score")
    for name, score in record.scores.items():
        low, high = record.metrics[name]["bounds"]
        if not (math.isfinite(score) and low <= score <= high):
            found.append(f"{name} = {score}")
    return found


def _of_history(folder: Path, record: Record) -> list[str]:
    steps = history(folder, "loss")
    numbers = [line["step"] for line in steps]
    in_order = numbers == list(range(1, len(steps) + 1))
    found = [] if in_order else ["the steps of the history are not 1, 2, 3, ..."]
    if record.training_failed:
        return found
    for line in steps:
        if "scale" not in line and not all(math.isfinite(value) for value in line.values()):
            return [*found, f"history of a completed run: {line}"]
    if not steps:
        return found
    last, end = steps[-1], record.options["epochs"]
    of_step = last["epoch"] / last["step"]  # whole steps come near a fraction of epochs
    if last["step"] != record.outcome["step"] or abs(last["epoch"] - end) > of_step * (end != int(end)):
        found.append(f"the history ends at {last['step']}, {last['epoch']}, not with the training")
    return found
