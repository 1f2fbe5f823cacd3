"""The help of every command: the common options, or all; each line stands alone."""

import re
from collections.abc import Callable
from dataclasses import fields

import pytest

from transfer import pretrain, run
from transfer.cli.help import COLUMNS, first_sentence, meanings
from transfer.cli.options import BackboneOptions, LaunchOptions, PretrainRunOptions, RunOptions
from transfer.core.options import Common, noted
from transfer.core.settings import config_names
from transfer.doctor import __main__ as doctor
from transfer.doctor.options import BackboneCheckOptions, DataOptions, SpeedOptions
from transfer.predict import __main__ as predict
from transfer.report import __main__ as report
from transfer.sweep import __main__ as sweep
from transfer.task import load_task
from transfer.verify import __main__ as verify

SHARED = (BackboneOptions, LaunchOptions)
Main = Callable[[list[str]], int]
PAGES: dict[str, tuple[Main, list[str], tuple[type, ...]]] = {
    **{name: (run.main, [name], (RunOptions, load_task(name).options, *SHARED)) for name in config_names("tasks")},
    "deit": (pretrain.main, ["deit"], (PretrainRunOptions, load_task("pretrain-supervised").options, *SHARED)),
    "dino": (pretrain.main, ["dino"], (PretrainRunOptions, load_task("pretrain-dino").options, *SHARED)),
    **{f"report {name}": (report.main, [name], (options,)) for name, options in report.COMMAND_OPTIONS.items()},
    "verify": (verify.main, [], (verify.VerifyOptions,)),
    "predict": (predict.main, [], (predict.PredictOptions,)),
    "sweep": (sweep.main, ["demo"], (sweep.SweepOptions,)),
    "doctor data": (doctor.main, ["data"], (DataOptions,)),
    "doctor backbone": (doctor.main, ["backbone"], (BackboneCheckOptions,)),
    "doctor speed": (doctor.main, ["speed"], (SpeedOptions,)),
}


def printed(main: Main, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    for entry in re.split(r"\n(?=  \S|\n)", text)[1:]:
        assert entry.count("(") == entry.count(")"), entry
        assert not re.search(r"[┌│╭]|\{None\}", entry), entry
    return text


@pytest.mark.parametrize("name", PAGES)
def test_all_options_are_listed_once_and_common_ones_first(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, words, kinds = PAGES[name]
    options = {item.name: meanings(kind)[item.name] for kind in kinds for item in fields(kind)}
    text = printed(main, [*words, "--help-all"], capsys)
    shown = re.findall(r"^  (?:--)?([a-zA-Z0-9-]+)", text, flags=re.MULTILINE)
    assert sorted(map(str.lower, shown)) == sorted(option.replace("_", "-") for option in options)
    assert ("  --size INT INT " in text) == (name in ("detect", "reid"))
    for option, meaning in options.items():
        assert meaning.endswith("."), option
        assert re.match(r"[A-Z]|big_vision", first_sentence(meaning)), f"{option}: {meaning}"
    assert printed(main, ["--help"], capsys).startswith("usage: python -m transfer.")
    short = printed(main, [*words, "--help"], capsys)
    common = re.findall(r"^  --([a-z0-9-]+)", short, flags=re.MULTILINE)
    if len(options) > 30:
        assert 14 <= len(common) <= 26
        marked = {name for kind in kinds for name in noted(kind, Common)}
        assert {option.replace("-", "_") for option in common} == marked
        assert f"--help-all shows the other {len(options) - len(common)} options" in short
    else:
        assert short == text


def test_a_sentence_does_not_end_within_brackets() -> None:
    assert first_sentence("Epochs (1-based. Or so), of all. More.") == "Epochs (1-based. Or so), of all"
