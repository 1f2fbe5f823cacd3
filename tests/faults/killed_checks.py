"""For kind `kill`: the exit status after a signal, what was saved by then, and which processes and scraps are left."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from backbones.engine.checkpoint import PREVIOUS, STATE
from backbones.errors import Stopped
from backbones.runtime.files import scraps_in
from tests.faults.trial import NotHeldError
from tests.processes import Command, wait_for
from transfer.cli.interrupts import INTERRUPTED

NO_ORPHANS_SECONDS = 60
STATUSES = {
    signal.SIGKILL: {-signal.SIGKILL},
    signal.SIGTERM: {-signal.SIGTERM, Stopped.exit_status},
    signal.SIGINT: {INTERRUPTED, Stopped.exit_status},
    signal.SIGHUP: {-signal.SIGHUP, Stopped.exit_status},
}
"""How a command may end after a signal: by it where nothing is to be saved, else with the status of saved runs."""


def check_status(what: str, kind: signal.Signals, command: Command) -> None:
    """Check that a command which got a signal ended by it, or was at its end, and printed no traceback."""
    if "Traceback" in command.stderr:
        raise NotHeldError(f"{what}: {command.stderr[-700:]}")
    if command.poll() not in {0, *STATUSES[kind]}:
        raise NotHeldError(f"{what}: exit status {command.poll()} after {kind.name}: {command.stderr[-500:]}")


class Progress:
    """How far a training had come before a signal, and what the next start must go on from."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.logged, self.saved = runs, 0, 0

    def before(self) -> None:
        """Note the last step of the history whose state is on the disk, before a signal is sent."""
        self.logged = max((line.get("step", 0) for line in self._history()), default=0) if self._states() else 0

    @property
    def _came_on(self) -> bool:
        """Whether the process that gets the signal had trained by then, rather than one before it."""
        return self.logged > self.saved

    def after(self, what: str, kind: signal.Signals, command: Command) -> None:
        """Check that what was asked to stop saved its state, of the last step that it had come to."""
        if command.poll() == 0:
            return
        trained, polite = self._came_on, kind != signal.SIGKILL
        self.saved, done = max(map(_step, self._states()), default=(0, False))
        if polite and trained and not done and command.poll() != Stopped.exit_status:
            raise NotHeldError(f"{what}: {kind.name} after step {self.logged} ended with status {command.poll()}")
        if polite and trained and self.saved < self.logged:
            raise NotHeldError(f"{what}: {kind.name} after step {self.logged}, but step {self.saved} was saved")

    def goes_on(self, what: str, command: Command) -> None:
        """Check that a start which ended well went on from the step that was saved last, or found the record."""
        ways = (f"resuming after step {self.saved} ", "has a record, reused")
        if self.saved and not any(way in command.stderr for way in ways):
            raise NotHeldError(f"{what}: step {self.saved} was saved, and not gone on from: {command.stderr[:500]}")

    def _states(self) -> list[Path]:
        kept = ([run / name for name in (STATE, PREVIOUS) if (run / name).exists()] for run in self.runs.glob("*"))
        return [states[0] for states in kept if states]

    def _history(self) -> Iterator[dict[str, Any]]:
        for file in self.runs.glob("*/history.jsonl"):
            for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)


def _step(state: Path) -> tuple[int, bool]:
    """Return the step of a saved state, and whether it was the last one of the training."""
    content = torch.load(state, weights_only=True)
    return int(content["progress"]["step"]), bool(content["done"])


def check_no_orphans(what: str, session: int) -> None:
    """Check that no process of a command's session is left some seconds after it was killed alone."""
    try:
        wait_for(lambda: not [*_processes(session)], NO_ORPHANS_SECONDS)
    except AssertionError:
        left = [*_processes(session)]
        said = ", ".join(_said(process) for process in left)
        os.killpg(session, signal.SIGKILL)
        raise NotHeldError(f"{what}: {len(left)} processes go on: {said}") from None


def _processes(session: int) -> Iterator[int]:
    """Yield the processes of a session that have not ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if stat[3] == str(session) and stat[0] != "Z":
                yield int(entry.name)


def _said(process: int) -> str:
    try:
        place = Path(f"/proc/{process}")
        return (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200] + (place / "wchan").read_text()
    except OSError as error:
        return str(error)


def check_no_scraps(what: str, folder: Path) -> None:
    """Check that nothing is left that takes its name when it is whole."""
    places = (place for place in (folder, *folder.rglob("*")) if place.is_dir())
    if left := [str(scrap.relative_to(folder)) for place in places for scrap in scraps_in(place)]:
        raise NotHeldError(f"{what}: left {', '.join(left)}")
