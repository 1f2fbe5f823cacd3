"""What is imported of a user's file is what its digest was taken of: not earlier bytecode, not a module of before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transfer.core import user_code

MAIN = "import my_helper\n\n\ndef f():\n    return my_helper.VALUE\n"
CALL = "import sys; from transfer.core.user_code import load; sys.path.insert(0, sys.argv[1]); "
CALL += "print(load(sys.argv[1] + '/mine.py:f')())"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_helper", raising=False)
    (tmp_path / "mine.py").write_text(MAIN)
    (tmp_path / "my_helper.py").write_text("VALUE = 1\n")
    return tmp_path


def replace(path: Path, content: str) -> None:
    """Write as many other bytes, with the same time."""
    state = path.stat()
    assert state.st_size == len(content)
    path.write_text(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.nightly
def test_bytecode_of_an_earlier_file_is_not_taken(folder: Path) -> None:
    def told() -> str:
        return subprocess.run([sys.executable, "-c", CALL, folder], capture_output=True, text=True).stdout.strip()

    subprocess.run([sys.executable, "-m", "compileall", "-q", folder], check=True)
    assert told() == "1"
    replace(folder / "my_helper.py", "VALUE = 2\n")
    assert told() == "2"


def test_a_helper_that_was_edited_is_imported_anew(folder: Path) -> None:
    before = user_code.load(f"{folder}/mine.py:f")
    replace(folder / "my_helper.py", "VALUE = 2\n")
    after = user_code.load(f"{folder}/mine.py:f")
    assert (before(), after()) == (1, 2)
    assert user_code.load(f"{folder}/mine.py:f") is after
    assert user_code.loaded_digest(f"{folder}/mine.py:f") == user_code.digest(f"{folder}/mine.py:f")
