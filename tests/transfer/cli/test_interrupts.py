"""Ctrl-C while the modules of a command load, and afterwards."""

import subprocess
import sys

import pytest

PRESS = "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"


def interrupted(program: str, then: str) -> tuple[int, str]:
    code = f"import os, signal, sys, time\nsys.argv[0] = {program!r}\nimport transfer\n{then}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.nightly
def test_a_command_that_loads_ends_by_one_line() -> None:
    assert interrupted("/usr/bin/transfer-run", PRESS) == (130, "stopped by Ctrl-C\n")


def test_a_command_that_has_begun_ends_by_one_line() -> None:
    body = f"def main(argv):\n    {PRESS}\nfrom transfer.cli.entry import exit_on_user_error\n"
    assert interrupted("-m", f"{body}sys.exit(exit_on_user_error(main, ['x']))") == (130, "stopped by Ctrl-C\n")


@pytest.mark.nightly
def test_a_program_that_imports_the_suite_keeps_its_own_way() -> None:
    status, said = interrupted("study.py", f"try:\n    {PRESS}\nexcept KeyboardInterrupt:\n    sys.exit(7)")
    assert (status, said) == (7, "")
