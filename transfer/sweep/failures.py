"""Why a cell's command ended without a record, from its exit status and its log."""

import re
from pathlib import Path

WRONG_ARGUMENTS, STOPPED = 2, 143
"""Exit statuses of a cell's command."""
TAIL = 2**20
"""Bytes at the end of a log in which the reason is looked for."""


def failure_reason(status: int, log: Path, start: int = 0) -> str:
    """Return why a process failed: the signal that ended it, or the last error in its log.

    Args:
        status: exit status of the process; negative for a signal.
        log: what it and the attempts before it have printed.
        start: byte of the log at which this attempt begins.
    """
    if status < 0:
        hint = "; the system's memory limit does that" if status == -9 else ""
        return f"killed by signal {-status}{hint}; see {log}"
    if status == STOPPED:
        return "stopped by a signal from outside, its state saved; the same command goes on"
    texts = _lines(log, start)
    if status == WRONG_ARGUMENTS and not any(line.startswith("error:") for line in texts):
        last = " ".join(line for line in texts if not line.startswith("For full helptext"))[-300:]  # several lines
    else:
        errors = [line.removeprefix("error: ") for line in texts if line.startswith("error:")]
        last = (errors or texts or ["its log is empty"])[-1]
    return f"exit status {status}: {last[:300]}; see {log}"


def _lines(log: Path, start: int) -> list[str]:
    """Return the lines of a log from a byte on that are not empty, without the frames of boxes."""
    try:
        content = log.read_bytes()[start:][-TAIL:].decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = content.replace("\r", "\n").splitlines()
    return [text for line in lines if (text := re.sub(r"[\u2500-\u257f]", "", line).strip())]
