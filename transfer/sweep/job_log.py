"""What the log of a job says: its last line while it runs, and why its command ended without a record."""

import re
from pathlib import Path

WRONG_ARGUMENTS, STOPPED = 2, 143
"""Exit statuses of a job's command."""
TAIL = 2**20
"""Bytes at the end of a log that are read."""


def last_line(log: Path, start: int = 0) -> str:
    """Return the last line of a log, such as a progress bar with epoch, loss and time left; empty if there is none."""
    return (_lines(log, start) or [""])[-1]


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
        return "stopped by a signal, its state saved; rerun the command to resume"
    texts = [line for line in _lines(log, start) if not line.startswith("For full helptext")]
    together = re.sub(r":\n", ": ", "\n".join(texts))  # a line that ends with a colon is not all
    errors = re.findall(r"(?m)^error: ?(.*)", together)
    if status == WRONG_ARGUMENTS and not errors:  # the parser's message, of several lines
        errors = [" ".join(texts)[-300:]]
    return f"exit status {status}: {(errors or texts or ['its log is empty'])[-1][:300]}; see {log}"


def _lines(log: Path, start: int) -> list[str]:
    """Return the non-empty lines of a log after a byte offset, without drawn bars, boxes and moves of the cursor."""
    try:
        content = log.read_bytes()[start:][-TAIL:].decode("utf-8", errors="replace")
    except OSError:
        return []
    content = re.sub(r"\x1b\[\w|\|[ \u2580-\u259f]*\||[\u2500-\u257f]", " ", content)
    return [text for line in re.split(r"[\r\n]", content) if (text := " ".join(line.split()))]
