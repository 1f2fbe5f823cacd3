"""Wrong names are answered before torch is imported, and right ones pass."""

import json
import subprocess
import sys
from pathlib import Path

from tests.documents import files_in
from transfer.core.settings import config_names

WITHOUT_TORCH = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout

class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name != "torch", "torch is imported"

sys.meta_path.insert(0, Refuse())
import transfer
transfer.load, transfer.UsageError, transfer.testing.CheckFailed
from transfer.__main__ import main
ended = []
for line in json.load(sys.stdin):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as said:
        status = main(line.split())
    ended.append((status, out.getvalue(), said.getvalue()))
assert not {"timm", "pandas", "datasets", "torchvision", "safetensors", "sklearn", "scipy"} & {*sys.modules}
print(json.dumps(ended))
"""
WRONG = {
    "run reid --backbone dino_s17": "unknown backbone 'dino_s17'; did you mean 'dino_s16'",
    "run reid --backbone dino_s16 --lrr 1 --epocs 3": "--epocs; did you mean '--epochs'?",
    "run my_task.py:TASK --backbone tinny": "--dataset is missing",
    "run red --backbone dino_s16": "unknown task 'red'; did you mean 'reid'",
    "pretrain deit --backbone tiny --epoch=1": "unknown option --epoch; did you mean '--epochs'",
}
HELP = ("run", *(f"run {name}" for name in config_names("tasks")), "pretrain deit", "pretrain dino", "predict")
RIGHT = ("run --list", "pretrain --list", *(f"{words} --help" for words in HELP))


def test_the_interface_wrong_names_help_and_lists_import_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text(files_in("docs/adding-a-part.md")["my_task.py"])
    program, commands = [sys.executable, "-c", WITHOUT_TORCH], json.dumps([*WRONG, *RIGHT])
    done = subprocess.run(program, input=commands, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    wrong, right = ended[: len(WRONG)], ended[len(WRONG) :]
    for message, (status, out, said) in zip(WRONG.values(), wrong, strict=True):
        assert (status, out) == (2, ""), said
        assert message in said
        assert said.startswith(("run reid: c", "run my_task.py:TASK: c", "pretrain deit: c", "error: unknown"))
    assert [(words, said) for words, (status, _, said) in zip(RIGHT, right, strict=True) if status] == []
