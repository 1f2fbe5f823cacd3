"""Ends a process with the process that started it, also where that is killed and can tell nobody."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

PARENT = "TRANSFER_END_WITH"
"""Variable of the environment with the process that this one ends with, as PID:START."""
SECONDS = 1.0
"""Seconds between two looks."""

ENDED = "ended"
"""In place of its start, of a process that has ended and that nobody has asked for its status."""


def this_process() -> str:
    """Return this process as a value of `PARENT`."""
    return f"{os.getpid()}:{_started(os.getpid())}"


def end_with_parent() -> None:
    """Send SIGTERM to this process, which saves its state, as soon as the process in `PARENT` has ended.

    It need not be the direct parent: torchrun may stand between. Without the variable nothing is done.
    """
    watched = os.environ.pop(PARENT, "")
    number, _, started = watched.partition(":")
    if number.isdigit():
        _watch_for(int(number), started, lambda: os.kill(os.getpid(), signal.SIGTERM))


def exit_with(process: str) -> None:
    """End this process, which keeps nothing, as soon as another one has ended, given as `this_process` names it."""
    number, _, started = process.partition(":")
    _watch_for(int(number), started, lambda: os._exit(1))


def _watch_for(number: int, started: str, end: Callable[[], None]) -> None:
    def watch() -> None:
        while _is_alive(number, started):
            time.sleep(SECONDS)
        end()

    threading.Thread(target=watch, daemon=True, name="parent watch").start()


def _is_alive(number: int, started: str) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's: the number was given to a new process
        return False
    now = _started(number)
    return now != ENDED and (now == started or not now or not started)


def _started(number: int) -> str:
    """Return when a process was started, in the system's ticks, or `ENDED`.

    Empty where the system does not say: it has no /proc, or this process has no file descriptor left to read it by.
    """
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the name before may hold anything
    return ENDED if fields[0] == "Z" else fields[19]
