"""What the README tells people to type is understood."""

import re
import shlex
from pathlib import Path

import pytest

from transfer import pretrain, run
from transfer.doctor import __main__ as doctor
from transfer.report import __main__ as report
from transfer.sweep import __main__ as sweep
from transfer.verify import __main__ as verify

README = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
MAINS = {
    "run": run.main,
    "pretrain": pretrain.main,
    "doctor": doctor.main,
    "sweep": sweep.main,
    "report": report.main,
    "verify": verify.main,
}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", README, re.MULTILINE | re.DOTALL)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


COMMANDS = [
    (module, shlex.split(words, comments=True))
    for block in blocks("sh")
    for module, words in re.findall(r"python -m transfer\.(run|pretrain|sweep) (.*)", block)
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize(
    ("module", "words"), COMMANDS, ids=lambda part: part if isinstance(part, str) else " ".join(part)
)
def test_a_command_is_understood(
    module: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_stem.py").write_text(next(block for block in blocks("python") if "class Stem" in block))
    assert MAINS[module]([*words, "--dry-run"]) == 0, capfd.readouterr().err


def test_flags_in_the_text_exist(capfd: pytest.CaptureFixture[str]) -> None:
    texts = [text for text in re.findall(r"`([^`\n]*)`", README) if "tests.benchmarks" not in text]
    words = {word for text in texts for word in re.findall(r"--[a-z][a-z-]+", text)}
    helps = ""
    commands = [
        ("run", "reid"),
        ("run", "fewshot"),
        ("run", "detect"),
        ("pretrain", "deit"),
        ("pretrain", "dino"),
        ("doctor", "data"),
        ("sweep", "demo"),
        ("report", "runs"),
        ("verify", "runs"),
    ]
    assert sweep.main(["--help"]) == 0
    helps += capfd.readouterr().out
    for module, name in commands:
        assert MAINS[module]([name, "--help"]) == 0
        helps += capfd.readouterr().out
    assert not {word for word in words if not re.search(rf"{word}\b", helps)}
