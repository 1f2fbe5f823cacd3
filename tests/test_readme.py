"""What the README and the guide tell people to type is understood."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.documents import DOCUMENTS, ROOT, commands, files_in, prose
from transfer import new, pretrain, run
from transfer.core.settings import parse_flags
from transfer.data.spec import resolve_dataset
from transfer.doctor import __main__ as doctor
from transfer.doctor.options import BackboneCheckOptions, GpuOptions
from transfer.doctor.speed import SpeedOptions
from transfer.predict import __main__ as predict
from transfer.report import __main__ as report
from transfer.sweep import __main__ as sweep
from transfer.verify import __main__ as verify

MAINS: dict[str, Callable[[list[str]], int]] = {
    "run": run.main,
    "pretrain": pretrain.main,
    "doctor": doctor.main,
    "sweep": sweep.main,
    "report": report.main,
    "verify": verify.main,
    "predict": predict.main,
    "new": new.main,
}
OPTIONS = {
    "report": None,
    "verify": verify.VerifyOptions,
    "predict": predict.PredictOptions,
    "new": new.NewOptions,
    "doctor": doctor.DataOptions,
}
DOCTOR = {"backbone": BackboneCheckOptions, "speed": SpeedOptions, "gpu": GpuOptions}
GUIDE = [name for name in DOCUMENTS if name not in ("CHANGELOG.md", "CONTRIBUTING.md")]
TRIED = "docs/guide/afternoon.md"  # by tests/journey
COMMANDS = sorted({command for name in GUIDE if name != TRIED for command in commands(name)})
PLANNED = [command for command in COMMANDS if command[0] not in OPTIONS and "--dry-run" not in command[1]]
PARSED = [command for command in COMMANDS if command[0] in OPTIONS and "--help" not in command[1]]
USERS_FILES = files_in("docs/adding-a-part.md")
DATASETS = files_in("docs/guide/dataset-yaml.md")


def as_id(part: object) -> str:
    """Return a command or its arguments as one word for pytest."""
    return part if isinstance(part, str) else " ".join(map(str, part)) if isinstance(part, tuple) else ""


def test_there_are_commands() -> None:
    assert {module for module, _ in COMMANDS} == {*MAINS}
    assert len(commands("README.md")) >= 5


@pytest.mark.parametrize(("module", "arguments"), PLANNED, ids=as_id)
def test_a_command_is_understood(module: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in USERS_FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "mine.yaml").write_text((ROOT / "configs" / "datasets" / "coco2017.yaml").read_text())
    dry = [] if "--list" in arguments else ["--dry-run", *(("--speed", "1") if module == "sweep" else ())]
    status, said = MAINS[module]([*arguments, *dry]), capfd.readouterr().err
    missing = module in ("run", "pretrain", "sweep") and re.search(
        r"not found|there are no weights|is not in|not on this", said
    )
    assert status == 0 or (status == 1 and missing) or "with torchrun" in said, said


@pytest.mark.parametrize(("module", "arguments"), PARSED, ids=as_id)
def test_a_command_is_parsed(module: str, arguments: tuple[str, ...]) -> None:
    words, options = list(arguments), OPTIONS[module]
    if module == "report":
        name, words = report.named_command(words)
        options = report.COMMAND_OPTIONS[name]
    elif module == "doctor":
        name = words.pop(0)
        options = DOCTOR[name] if name != "data" else options
    parse_flags(options, words, prog=f"python -m transfer.{module}")


def test_flags_in_the_text_exist(capfd: pytest.CaptureFixture[str]) -> None:
    texts = [text for name in GUIDE for text in re.findall(r"`([^`\n]*)`", prose(name))]
    texts = [text for text in texts if not re.search(r" -m tests\.|pip ", text)]
    flags = {flag for text in texts for flag in re.findall(r"(?<!\w)--[a-z][a-z0-9-]+", text)}
    asked = {"run": ("reid", "fewshot", "detect", "finetune", "linear", "knn", "tokens"), "pretrain": ("deit", "dino"),
             "doctor": ("data", "backbone", "speed"), "report": (*report.COMMAND_OPTIONS,), "verify": ("runs",),
             "predict": ("run",)}  # fmt: skip
    words = [(module, [name, "--help-all"]) for module, names in asked.items() for name in names]
    for module, arguments in (*words, ("sweep", ["--help"]), ("sweep", ["demo", "--help-all"])):
        assert MAINS[module](arguments) == 0
    helps = capfd.readouterr().out
    assert not {flag for flag in flags if not re.search(rf"{flag}\b", helps)}


@pytest.mark.parametrize("name", DATASETS)
def test_an_example_of_a_dataset_is_understood(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(DATASETS[name])  # unknown keys are errors
    assert resolve_dataset(str(tmp_path / name)).name == name.removesuffix(".yaml")
