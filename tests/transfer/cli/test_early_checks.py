"""Wrong names are answered before torch is imported, and right ones pass; Ctrl-C while a command is at work."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import files_in
from transfer.core.settings import config_names

WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name != "torch", "torch is imported"

sys.meta_path.insert(0, Refuse())
from transfer.__main__ import main
status = main(sys.argv[1:])
"""
LIGHT = f"""{WITHOUT_TORCH}
assert not {{"timm", "pandas", "datasets", "torchvision", "safetensors", "sklearn", "scipy"}} & {{*sys.modules}}
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run reid --backbone dino_s17", "unknown backbone 'dino_s17'; did you mean 'dino_s16'"),
        ("run reid --backbone dino_s16 --lrr 1 --epocs 3", "--epocs; did you mean '--epochs'?"),
        ("run my_task.py:TASK --backbone tinny", "--dataset is missing"),
        ("run red --backbone dino_s16", "unknown task 'red'; did you mean 'reid'"),
        ("pretrain deit --backbone tiny --epoch=1", "unknown option --epoch; did you mean '--epochs'"),
    ],
)
def test_wrong_names_are_answered_without_torch(command: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(files_in("docs/adding-a-part.md")["my_task.py"])
    program = [sys.executable, "-c", LIGHT, *command.split()]
    result = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert message in result.stderr
    assert result.stderr.startswith(("run reid: c", "run my_task.py:TASK: c", "pretrain deit: c", "error: unknown"))


HELP = ("run", *(f"run {name}" for name in config_names("tasks")), "pretrain deit", "pretrain dino", "predict")


@pytest.mark.parametrize("command", ["run --list", "pretrain --list", *(f"{words} --help" for words in HELP)])
def test_help_and_lists_import_nothing_heavy(command: str) -> None:
    subprocess.run([sys.executable, "-c", LIGHT, *command.split()], check=True)


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
