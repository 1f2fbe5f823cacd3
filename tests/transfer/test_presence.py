"""What an export says about the trainings behind it."""

from pathlib import Path
from typing import Any

import pytest

from backbones.backbone import create
from backbones.errors import UserError
from backbones.exports import export, pretraining
from transfer.presence import origin_of
from transfer.run import main

CLEAN = {"smoke": False, "dirty": False, "subset": None}


@pytest.mark.parametrize(
    ("about", "origin"),
    [
        ({}, {}),
        (CLEAN | {"origin": {}, "run": "a"}, CLEAN),
        ({"smoke": True, "subset": 8}, {"smoke": True, "dirty": None, "subset": 8}),
        (CLEAN | {"origin": {"smoke": True, "dirty": None, "subset": 8}}, {"smoke": True, "dirty": False, "subset": 8}),
        (CLEAN | {"dirty": True, "origin": CLEAN}, CLEAN | {"dirty": True}),
    ],
)
def test_marks_go_on_from_one_export_to_the_next(about: dict[str, Any], origin: dict[str, Any]) -> None:
    assert origin_of(about) == origin
    assert origin_of(CLEAN | {"origin": origin}) == CLEAN | {name: mark for name, mark in origin.items() if mark}


def test_an_origin_of_another_form_is_damage(tmp_path: Path) -> None:
    (tmp_path / "pretrain.json").write_text('{"run": "a", "origin": ["smoke"]}')
    with pytest.raises(UserError, match=r"pretrain\.json: damaged"):
        pretraining(tmp_path)


def test_weights_of_a_smoke_run_that_are_passed_over_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    backbone = create("tiny", img_size=32, weights="random")
    export(backbone, Path("weights/tiny"), {"pretrain.json": {"run": "a", "smoke": True}})
    words = ["knn", "--backbone", "tiny", "--smoke", "--size", "32", "--resize", "32", "--threads", "1"]
    assert main(words) == 0
    assert "weights/tiny holds weights of a smoke run that are not taken by name" in capsys.readouterr().err
    assert main([*words, "--weights", "weights/tiny"]) == 0
    assert "not taken by name" not in capsys.readouterr().err
