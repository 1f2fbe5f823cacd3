"""What is imported of a user's file is what its digest was taken of: not earlier bytecode, not a module of before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backbones import user_code
from backbones.errors import UserError

MAIN = "import my_helper\n\n\ndef f():\n    return my_helper.VALUE\n"
CALL = "import sys; from backbones.user_code import load; sys.path.insert(0, sys.argv[1]); "
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
@pytest.mark.parametrize(
    ("name", "content"), [("my_helper.py", "VALUE = 2\n"), ("mine.py", MAIN.replace("f()", "g()"))]
)
def test_bytecode_of_an_earlier_file_is_not_taken(folder: Path, name: str, content: str) -> None:
    def told() -> str:
        ended = subprocess.run([sys.executable, "-c", CALL, folder], capture_output=True, text=True, check=False)
        return ended.stdout.strip() or ended.stderr.splitlines()[-1].rpartition(": ")[2]

    subprocess.run([sys.executable, "-m", "compileall", "-q", folder], check=True)
    assert told() == "1"
    replace(folder / name, content)
    assert told() == ("2" if name == "my_helper.py" else "there is no 'f' in this file")


def test_a_helper_that_was_edited_is_imported_anew(folder: Path) -> None:
    before = user_code.load(f"{folder}/mine.py:f")
    replace(folder / "my_helper.py", "VALUE = 2\n")
    after = user_code.load(f"{folder}/mine.py:f")
    assert (before(), after()) == (1, 2)
    assert user_code.load(f"{folder}/mine.py:f") is after
    assert user_code.loaded_digest(f"{folder}/mine.py:f") == user_code.digest(f"{folder}/mine.py:f")


def test_a_file_replaced_while_it_is_imported(folder: Path) -> None:
    change = "from pathlib import Path\nPath(__file__).with_name('my_helper.py').write_text('VALUE = 3\\n')\n"
    (folder / "mine.py").write_text(change + MAIN)
    with pytest.raises(UserError, match="replaced while this command was at work"):
        user_code.load(f"{folder}/mine.py:f")
