import shutil
import subprocess
from pathlib import Path

import pytest

from transfer.doctor.__main__ import main

COMPLETE = """source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completions(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words, which may be quoted empty."""
    program = COMPLETE.format(script=script, words=" ".join(words), last=len(words) - 1, program=words[0])
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_tasks_recipes_options_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert completions(script, "transfer-run", "re") == ["reid"]
    assert completions(script, "transfer-run", "reid", "--num-id") == ["--num-identities"]
    assert completions(script, "transfer-run", "detect", "--num-id") == []
    assert "slurm" in completions(script, "transfer-run", "reid", "--launcher", "''")
    assert completions(script, "transfer-run", "reid", "--backbone", "dino_s16_convstem_") == ["dino_s16_convstem_relu"]
    assert completions(script, "transfer-run", "reid", "--dataset", "market") == ["market1501"]
    assert completions(script, "transfer-pretrain", "dino", "--teacher-m") == ["--teacher-momentum"]


def test_a_shell_that_is_not_supported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "fish" in capsys.readouterr().err
    assert main(["complete", "bash"]) == 2
    assert "did you mean 'completion'?" in capsys.readouterr().err
