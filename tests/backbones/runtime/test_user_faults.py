"""Errors of a user's file in one line: the file, its line, and the first line of the reason."""

from pathlib import Path

import pytest

from backbones.runtime.user_faults import user_fault
from backbones.user_code import load

CODE = "def broken():\n    raise ValueError('my own bug\\nsecond line')\n"


def test_the_reason_is_the_first_line_of_the_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    with pytest.raises(ValueError, match="my own bug") as caught:
        load(f"{file}:broken")()
    assert str(user_fault(caught.value)) == f"{file} at line 2: ValueError: my own bug"


def test_of_an_error_of_a_loader_process_it_is_that_behind_the_traceback(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    load(f"{file}:broken")
    text = (
        f"Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{file}", line 2, in broken\n    raise\nValueError: my own bug\n'
    )
    assert str(user_fault(ValueError(text))) == f"{file} at line 2: ValueError: my own bug"
