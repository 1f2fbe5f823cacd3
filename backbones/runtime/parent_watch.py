"""Ends a process with the process that started it, also where that is killed and can tell nobody."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

PARENT = "TRANSFER_END_WITH"
"""Variable of the environment with the number of the process that this one ends with."""
SECONDS = 1.0
"""Seconds between two looks."""


def end_with_parent() -> None:
    """Send SIGTERM to this process, which saves its state, as soon as the process in `PARENT` has ended.

    It need not be the direct parent: torchrun may stand between. Without the variable nothing is done.
    """
    number = os.environ.pop(PARENT, "")
    if number.isdigit():
        _watch_for(int(number), lambda: os.kill(os.getpid(), signal.SIGTERM))


def exit_with(process: int) -> None:
    """End this process, which keeps nothing, as soon as the one of this number has ended."""
    _watch_for(process, lambda: os._exit(1))


def _watch_for(number: int, end: Callable[[], None]) -> None:
    def watch() -> None:
        while _is_alive(number):
            time.sleep(SECONDS)
        end()

    threading.Thread(target=watch, daemon=True, name="parent watch").start()


def _is_alive(number: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody has asked for its status does not."""
    try:
        os.kill(number, 0)
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except ProcessLookupError:
        return False
    except OSError:  # /proc is missing, or this process has too few file descriptors to read it by
        return True
    return stat.rpartition(")")[2].split()[0] != "Z"  # the name before may hold anything
