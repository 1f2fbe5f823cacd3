"""Ctrl-C while the modules of a command load: one line, status 130. Imports nothing of ours, for it comes first."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

INTERRUPTED = 130
"""Exit status after Ctrl-C while nothing is under way that could be saved."""


def end_on_interrupt() -> None:
    """End this process by one line on Ctrl-C, until `interrupts_are_errors`: nothing is at work yet that could be lost.

    Only in the process of a command, `python -m transfer...` or `transfer-...`, and where Ctrl-C is not ignored.
    """
    program = sys.argv[0] if sys.argv else ""
    if program != "-m" and not Path(program).name.startswith("transfer-"):
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupts_are_errors() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped by Ctrl-C\n")
    os._exit(INTERRUPTED)
