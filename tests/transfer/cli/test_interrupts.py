"""Ctrl-C while a command is at work."""

import subprocess
import sys

COMMAND = """
import os, signal, sys, time
from transfer.cli.entry import exit_on_user_error

def main(argv):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

sys.exit(exit_on_user_error(main, ["x"]))
"""


def test_a_command_ends_by_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C\n")
