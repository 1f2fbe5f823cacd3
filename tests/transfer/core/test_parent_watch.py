"""A process ends with the one it is told to end with."""

import os
import signal
import subprocess

import pytest

from tests.processes import wait_for
from transfer.core import process
from transfer.core.process import PARENT, end_with_parent


def test_sigterm_comes_when_the_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen(["sleep", "60"])
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    monkeypatch.setattr(process, "SECONDS", 0.01)
    monkeypatch.setenv(PARENT, str(other.pid))
    try:
        end_with_parent()
        assert PARENT not in os.environ, "what this process starts has its own to end with"
        with pytest.raises(AssertionError):
            wait_for(lambda: got, seconds=0.3)
        other.kill()  # it has ended before its status is asked for
        wait_for(lambda: got, seconds=20)
    finally:
        other.kill()
        other.wait()
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]
