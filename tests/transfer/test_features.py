"""`transfer.run fewshot` and the store it leaves, through the commands."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs import record
from transfer import features
from transfer.run import main

FEWSHOT = ["fewshot", "--backbone", "tiny", "--smoke", "--workers", "0", "--dataset", "toy_digits", "--subset", "30"]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("out", "feature-cache")}
    assert main(FEWSHOT + words_of(found)) == 0
    return found


def words_of(folders: dict[str, Path]) -> list[str]:
    return [word for name, path in folders.items() for word in (f"--{name}", str(path))]


def entries(folders: dict[str, Path]) -> list[Path]:
    return sorted(path.parent for path in folders["feature-cache"].glob("*/entry.json"))


def test_the_record_says_what_was_drawn_and_how_it_spreads(folders) -> None:
    found = record(folders["out"])
    assert found.primary == "accuracy_10shot"
    assert found.subset == 30
    details = found.details
    for name in ("accuracy_1shot", "accuracy_5shot", "accuracy_10shot"):
        assert found.scores[name] == pytest.approx(details[name]["mean"])
        assert len(details[name]["draws"]) == 3
        assert found.metrics[name]["averaged"]
    with np.load(next(folders["out"].glob("*/outcomes.npz"))) as outcomes:
        assert outcomes["correct_10shot"].shape == (300, 3)
        assert outcomes["correct_10shot"].mean(0).tolist() == details["accuracy_10shot"]["draws"]


def test_entries_are_listed(folders, capsys) -> None:
    assert features.main(["list", "--feature-cache", str(folders["feature-cache"])]) == 0
    text = capsys.readouterr().out
    assert "toy_digits train" in text
    assert "300 of 300" in text
    assert features.main(["list", "--feature-cache", str(folders["feature-cache"]), "--stale"]) == 0
    assert capsys.readouterr().out == "no entries\n"


def test_damaged_features_are_computed_again(folders, capsys) -> None:
    path = sorted(folders["feature-cache"].glob("*/*.safetensors"))[0]
    content = path.read_bytes()
    path.write_bytes(content[:-5] + bytes([content[-5] ^ 16]) + content[-4:])
    scores = record(folders["out"]).scores
    again = {**folders, "out": folders["out"].parent / "again"}
    assert main(FEWSHOT + words_of(again)) == 0
    assert record(again["out"]).scores == scores
    assert f"{path}: damaged; its features are computed again" in capsys.readouterr().err


def test_entries_are_freed_by_name_and_by_age(folders, capsys) -> None:
    words = ["free", "--feature-cache", str(folders["feature-cache"])]
    assert features.main(words) == 2
    first, second = entries(folders)
    about: dict[str, Any] = json.loads((second / "entry.json").read_text())
    about["key"]["code"] = "an older one"
    (second / "entry.json").write_text(json.dumps(about))
    assert features.main([*words, "--stale"]) == 0
    assert entries(folders) == [first]
    assert features.main([*words, "nothing"]) == 1
    assert features.main([*words, first.name[:6]]) == 0
    assert entries(folders) == []
