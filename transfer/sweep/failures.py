"""Why a cell's command ended without a record, from its exit status and its log."""

import re
from pathlib import Path

WRONG_ARGUMENTS, STOPPED = 2, 143
"""Exit statuses of a cell's command."""


def failure_reason(status: int, log: Path) -> str:
    """Return why a process failed: the signal that ended it, or the last error in its log."""
    if status < 0:
        hint = "; the system's memory limit does that" if status == -9 else ""
        return f"killed by signal {-status}{hint}; see {log}"
    if status == STOPPED:
        return "stopped by a signal from outside, its state saved; the same command goes on"
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
    except OSError:
        lines = []
    texts = [text for line in lines if (text := re.sub(r"[\u2500-\u257f]", "", line).strip())]  # without boxes
    errors = [line for line in texts if line.startswith("error:")]
    if errors or status != WRONG_ARGUMENTS:
        last = (errors or texts or ["its log is empty"])[-1].removeprefix("error: ")
    else:  # a flag's error is several lines
        last = " ".join(line for line in texts if not line.startswith("For full helptext"))[-300:]
    return f"exit status {status}: {last[:300]}; see {log}"
