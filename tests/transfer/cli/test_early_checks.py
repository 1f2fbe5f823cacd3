"""Wrong names are answered before torch is imported, and right ones pass."""

import subprocess
import sys
from dataclasses import fields

import pytest

from backbones.errors import UsageError
from backbones.pretrain.method import load_method
from tasks.task import load_task
from transfer.cli.command import pretraining_names, pretraining_recipe, task_names, task_recipe
from transfer.cli.early_checks import check_names_in
from transfer.cli.options import PretrainRunOptions

WITHOUT_TORCH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name != "torch", "torch is imported"

sys.meta_path.insert(0, Refuse())
from transfer import pretrain, run
status = {"run": run, "pretrain": pretrain}[sys.argv[1]].main(sys.argv[2:])
"""
LIGHT = f"""{WITHOUT_TORCH}
assert not {{"timm", "pandas", "numpy", "datasets"}} & {{*sys.modules}}
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run reid --backbone dino_s17", "unknown backbone 'dino_s17'; did you mean 'dino_s16'"),
        ("run reid --backbone dino_s16 --dataset toy_markt", "unknown dataset 'toy_markt'; did you mean 'toy_market'"),
        ("run reid --backbone dino_s16 --lrr 1", "unknown option --lrr; did you mean '--lr'"),
        ("run red --backbone dino_s16", "unknown task 'red'; did you mean 'reid'"),
        ("pretrain deit --backbone tiny --epoch=1", "unknown option --epoch; did you mean '--epochs'"),
    ],
)
def test_wrong_names_are_answered_without_torch(command: str, message: str) -> None:
    program = [sys.executable, "-c", LIGHT, *command.split()]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2  # a dataset's message lists the known ones


@pytest.mark.parametrize("command", ["run --help", "run --list", "pretrain --list"])
def test_help_and_lists_import_nothing_heavy(command: str) -> None:
    subprocess.run([sys.executable, "-c", LIGHT, *command.split()], check=True)


def test_every_option_passes() -> None:
    for task in task_names():
        names = [item.name.replace("_", "-") for item in fields(load_task(task).options)]
        flags = [f"--{prefix}{name}" for name in names for prefix in ("", "no-")]
        check_names_in([*flags, "--nodes=1", "--stem", "conv", "--seeds", "0"], task_recipe(task))
    for recipe in map(pretraining_recipe, pretraining_names()):
        names = [item.name.replace("_", "-") for item in fields(load_method(str(recipe.values()["method"])).options)]
        check_names_in([f"--{name}" for name in (*names, "export-dir")], recipe, PretrainRunOptions)
    with pytest.raises(UsageError, match="unknown option --export-dir"):
        check_names_in(["--export-dir", "a"], task_recipe("reid"))
