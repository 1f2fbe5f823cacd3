import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("words", "seen"), [([], ""), (["--gpu"], "0,1")])
def test_torch_finds_gpus_hidden_unless_they_are_asked_for(tmp_path: Path, words: list[str], seen: str) -> None:
    torch = "import os, types\nprint(os.environ['CUDA_VISIBLE_DEVICES'])\n"
    torch += "cuda = types.SimpleNamespace(is_available=lambda: False)\n"
    (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "TRANSFER_TESTS_ON_GPU"}
    environment |= {"CUDA_VISIBLE_DEVICES": "0,1", "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))}
    command = [sys.executable, "-c", "import tests.conftest", *words]
    assert subprocess.check_output(command, text=True, env=environment).strip() == seen
