"""The help of every task and recipe: grouped, complete, one line an option."""

import re
from dataclasses import fields

import pytest

from backbones.pretrain.method import load_method
from tasks.task import load_task
from transfer.cli.command import task_names
from transfer.cli.help import COLUMNS, first_sentence, meanings
from transfer.cli.options import BackboneOptions, LaunchOptions, PretrainRunOptions, RunOptions
from transfer.pretrain import main as pretrain
from transfer.run import main as run

KINDS = {name: (RunOptions, load_task(name).options) for name in task_names()}
KINDS |= {recipe: (PretrainRunOptions, load_method(method).options) for recipe, method in
          {"deit": "supervised", "dino": "dino"}.items()}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_option_is_listed_once_and_fits(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = run if name in task_names() else pretrain
    assert program([name, "--help"]) == 0
    text = capsys.readouterr().out
    shown = re.findall(r"^  --([a-z0-9-]+)", text, flags=re.MULTILINE)
    options = [
        option
        for kind in (*KINDS[name], BackboneOptions, LaunchOptions)
        for option in (item.name for item in fields(kind))
    ]
    assert sorted(shown) == sorted(option.replace("_", "-") for option in options)
    assert len(re.findall(r"^[A-Z].*:$", text, flags=re.MULTILINE)) >= 5
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    for kind in (*KINDS[name], BackboneOptions, LaunchOptions):
        texts = meanings(kind)
        for option in (item.name for item in fields(kind)):
            meaning = texts.get(option, "")
            assert meaning.endswith("."), option
            assert re.match(r"[A-Z]|big_vision", first_sentence(meaning)), f"{option}: {meaning}"
