"""`transfer.new`: files that are the guide's examples under another name, with tests that pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT
from transfer.new import NEXT_COMMAND, main

Captured = pytest.CaptureFixture[str]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", sorted(NEXT_COMMAND))
def test_what_is_written_passes_its_test_from_any_folder(kind: str, here: Path) -> None:
    assert main([kind, "ours"]) == 0
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(here / "test_ours.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=here.parent, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert "failed" not in ended.stdout
    assert " passed" in ended.stdout


WRONG = [
    (("stem", "ours"), "ours.py exists"),
    (("stem", "3d"), "'3d' cannot be the name"),
    (("stem", "class"), "'class' cannot be the name"),
    (("task", "_mine"), "'_mine' cannot be the name"),
    (("task", "knn"), "a task of the suite is named 'knn'"),
    (("stem", "numpy"), "a module or folder is named 'numpy'"),
    (("stm", "mine"), "unknown kind of part 'stm'; did you mean 'stem'?"),
    (("stem",), "an argument is missing"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_a_wrong_name_writes_nothing(words: tuple[str, ...], said: str, here: Path, capsys: Captured) -> None:
    Path("ours.py").write_text("mine")
    assert main([*words]) == 2
    assert said in capsys.readouterr().err
    assert [path.read_text() for path in here.glob("*.py")] == ["mine"]
