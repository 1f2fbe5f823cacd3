"""Kind `replaced`: what a command reads is replaced while it runs.

Each record that it leaves is that of the undisturbed command with the old thing or with the new one, and is named as
that; without a record it says what has changed. The same command, given again, is answered with the right records.
"""

import json
import os
import random
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from tests.faults.replaced_inputs import ALIKE, Files, Subject, subjects
from tests.faults.trial import NotHeldError
from tests.processes import Command
from transfer.records.record import Record

WAYS = ("by rename", "in place", "by rename, same time", "in place, same time")
SLOW = ("detect", "sweep")
AGE_SECONDS = 3600.0
"""How old the files are that a command finds: those just written are looked at more closely."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to: its identity and scores, and the results of its samples and steps."""

    identity: str
    scores: str
    samples: tuple[str, ...]


@dataclass(frozen=True)
class Alone:
    """What an undisturbed command answered with."""

    answer: tuple[str, ...]
    """Ids of its runs."""
    outcomes: dict[str, Outcome]
    seconds: float


@dataclass
class Replaced:
    """The commands, and what each came to undisturbed, with each thing as it was and as it is then."""

    work: Path
    alone: dict[tuple[str, str], Alone] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.work / "weights").mkdir()
        self.subjects = subjects(self.work / "weights")

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Replace one thing under one command; see `Kind`."""
        subject = rng.choices(self.subjects, [1 if item.name in SLOW else 4 for item in self.subjects])[0]
        thing, way = rng.choice([*subject.others]), rng.choice(WAYS)
        old, new = self._alone(subject, ""), self._alone(subject, thing)
        what = f"{subject.name}: {thing} replaced {way}"
        _write(folder, subject.files)
        first = _start(subject, folder, "first")
        time.sleep(rng.uniform(0, old.seconds))
        _replace(folder, subject.others[thing], way)
        first.wait(300)
        known = old.outcomes | new.outcomes
        _check_records(what, folder, known)
        _check_end(what, thing, first, subject, folder)
        if rng.random() < 0.3:  # what was there before comes back
            back = {name: subject.files[name] for name in subject.others[thing]}
            _replace(folder, back, rng.choice(WAYS))
            what, new = f"{what}, then put back", old
        second = _start(subject, folder, "second")
        if second.wait(300) != 0:
            raise NotHeldError(f"{what}: given again, exit status {second.poll()}: {_said(second)}")
        _check_records(what, folder, known)
        if (answer := _answer(subject, folder, "second")) != new.answer:
            raise NotHeldError(f"{what}: given again, answered with {answer}, not {new.answer}")
        return f"{subject.name}: {'refused' if first.poll() else 'one of both'}"

    def _alone(self, subject: Subject, thing: str) -> Alone:
        """Return what a command comes to where a thing, if any, was the new one before it began."""
        if (subject.name, thing) not in self.alone:
            folder = self.work / f"{subject.name}-{len(self.alone)}"
            folder.mkdir()
            _write(folder, subject.files | subject.others.get(thing, {}))
            begun = time.monotonic()
            command = _start(subject, folder, "alone")
            if command.wait(300) != 0:
                raise RuntimeError(_said(command))
            seconds = time.monotonic() - begun
            self.alone[subject.name, thing] = Alone(_answer(subject, folder, "alone"), _outcomes(folder), seconds)
            if thing and self.alone[subject.name, thing].answer == self._alone(subject, "").answer:
                raise NotHeldError(f"{subject.name}: another {thing} makes no other run")
        return self.alone[subject.name, thing]


def _start(subject: Subject, folder: Path, log: str) -> Command:
    words = [*subject.words]
    if subject.name != "sweep":
        words += [*ALIKE, "--out", "out/runs", "--features", "out/features", "--result-file", f"{log}.json"]
    return Command(
        subject.program, words, folder / f"log-{log}", {"OMP_NUM_THREADS": "1"}, prepare=partial(_begin, folder)
    )


def _begin(folder: Path) -> None:
    """Let a command work in its folder, and leave compiled code there, as Python does by itself."""
    os.chdir(folder)
    sys.dont_write_bytecode = False


def _write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        os.utime(folder / name, (time.time() - AGE_SECONDS,) * 2)


def _replace(folder: Path, files: Files, way: str) -> None:
    """Put other files in the place of those of these names, one after the other."""
    for name, content in files.items():
        path = folder / name
        before = path.stat()
        if way.startswith("in place"):
            path.write_bytes(content)
        else:
            beside = folder / "beside"
            beside.write_bytes(content)
            if "same time" in way:
                os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
            beside.replace(path)
        if "same time" in way:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _outcomes(folder: Path) -> dict[str, Outcome]:
    """Return what each run with a record came to, by its id."""
    return {path.parent.name: _outcome(path.parent) for path in folder.glob("out/runs/*/record.json")}


def _outcome(run: Path) -> Outcome:
    record = Record.read(run / "record.json")
    with np.load(run / "outcomes.npz") as arrays:
        samples = [f"{name} {arrays[name].tobytes()!r}" for name in sorted(arrays)]
    history = run / "history.jsonl"
    lines = history.read_text(encoding="utf-8") if history.exists() else ""
    return Outcome(record.run_key, json.dumps(record.scores, sort_keys=True), (*samples, lines))


def _check_records(what: str, folder: Path, known: dict[str, Outcome]) -> None:
    for run, outcome in _outcomes(folder).items():
        if run not in known:
            raise NotHeldError(f"{what}: a run {run}, which is of neither")
        if outcome != known[run]:
            odd = [name for name in ("identity", "scores", "samples") if vars(outcome)[name] != vars(known[run])[name]]
            raise NotHeldError(f"{what}: {run} has the name of one and the {', '.join(odd)} of the other")


def _check_end(what: str, thing: str, command: Command, subject: Subject, folder: Path) -> None:
    """Check that a command ended well, or says in words what has changed."""
    said = _said(command)
    if command.poll() not in (0, 1) or "Traceback" in said:
        raise NotHeldError(f"{what}: exit status {command.poll()}: {said[-700:]}")
    if command.poll() == 1 and thing not in said:
        raise NotHeldError(f"{what}: failed without a word about it: {said[-700:]}")


def _answer(subject: Subject, folder: Path, log: str) -> tuple[str, ...]:
    """Return the ids of the runs that a command, or a sweep's cells, gave as their result."""
    if subject.name == "sweep":
        cells = (folder / "out" / "cells").glob("*.done.json")
        return tuple(sorted(run for cell in cells for run in json.loads(cell.read_text())["runs"]))
    return tuple(json.loads((folder / f"{log}.json").read_text())["runs"])


def _said(command: Command) -> str:
    return command.stderr[-2000:]
