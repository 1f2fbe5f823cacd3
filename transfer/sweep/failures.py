"""Why a cell's command ended without a record, from its exit status and its log."""

import re
from pathlib import Path

WRONG_ARGUMENTS, STOPPED = 2, 143
"""Exit statuses of a cell's command."""
TAIL = 2**20
"""Bytes at the end of a log in which the reason is looked for."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Warning|Interrupt|Exit)\b")


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
    errors = [line for line in texts if line.startswith("error:")]
    if errors:
        last = errors[-1].removeprefix("error: ")
        # an error of several lines, as one of a file of the user's: its last line says what and where
        last = _of_traceback(texts) or last if last.startswith("Traceback") else last
    elif status == WRONG_ARGUMENTS:  # a flag's error is several lines
        last = " ".join(line for line in texts if not line.startswith("For full helptext"))[-300:]
    else:
        last = _of_traceback(texts) or (texts or ["its log is empty"])[-1]
    return f"exit status {status}: {last[:300]}; see {log}"


def _lines(log: Path, start: int) -> list[str]:
    """Return the lines of a log from a byte on that are not empty, without the frames of boxes."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - TAIL))
            content = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = content.replace("\r", "\n").splitlines()
    return [text for line in lines if (text := re.sub(r"[\u2500-\u257f]", "", line).strip())]


def _of_traceback(lines: list[str]) -> str:
    """Return the exception of the last traceback with the innermost file and line; empty without one."""
    begins = [place for place, line in enumerate(lines) if line.removeprefix("error: ").startswith("Traceback")]
    if not begins:
        return ""
    found = lines[begins[-1] :]
    frames = [match for line in found if (match := _FRAME.search(line))]
    raised = [line for line in found if _EXCEPTION.match(line)]
    if not raised:
        return ""
    where = f" ({Path(frames[-1]['file']).name}, line {frames[-1]['line']})" if frames else ""
    return raised[-1] + where
