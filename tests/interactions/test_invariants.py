"""The invariants find what is planted: a check that finds nothing proves nothing."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interactions.bench import Bench, differing
from tests.interactions.changes import Change
from tests.interactions.commands import Ran, command_of, run
from tests.interactions.differences import Differences
from tests.interactions.equalities import grouped
from tests.interactions.invariants import broken, of_run
from tests.interactions.options import USUAL
from tests.interactions.places import Places
from transfer.records.checksums import with_checksum

ROW = USUAL | {"work": "linear"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("planted")
    with Bench(root / "runs", Places(root / "places")) as made:
        yield made


@pytest.fixture(scope="module")
def sound(bench: Bench) -> Ran:
    ran = run(command_of(ROW, bench.places), bench.root / "sound")
    assert broken(ran) == []
    return ran


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the record, its seal and all."""
    path = folder / "record.json"
    content = json.loads(path.read_text())
    change(content)
    content.pop("digest")
    path.write_bytes(with_checksum(content))


def history(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    path = folder / "history.jsonl"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))


def outcomes(folder: Path, **change: Any) -> None:
    with np.load(folder / "outcomes.npz") as file:
        np.savez(folder / "outcomes.npz", **{**file, **change})


PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "score": (lambda folder: edited(folder, lambda record: record["scores"].update(top1=2.0)), "top1 = 2.0"),
    "order": (lambda folder: edited(folder, lambda record: record["scores"].update(top1=0.9, top5=0.1)), "<="),
    "primary": (lambda folder: edited(folder, lambda record: record["scores"].pop("top1")), "no top1"),
    "cost": (lambda folder: edited(folder, lambda record: record["cost"].update(params=0)), "cost params"),
    "bits": (lambda folder: outcomes(folder, rank=np.full(12, 7)), "transfer.verify"),
    "length": (lambda folder: outcomes(folder, ties=np.zeros(3)), "lengths"),
    "twice": (lambda folder: outcomes(folder, sample=np.full(12, "a")), "twice"),
    "step": (lambda folder: history(folder, lambda lines: lines[1:]), "1, 2, 3"),
    "end": (lambda folder: history(folder, lambda lines: lines[:4]), "not with the training"),
    "nan": (lambda folder: history(folder, lambda lines: [lines[0].replace('"loss": ', '"loss": NaN, "x": ')]), "nan"),
    "scrap": (lambda folder: (folder / "state.pt").touch(), "left state.pt"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, sound: Ran, bench: Bench, tmp_path: Path) -> None:
    plant, said = PLANTED[name]
    folder = Path(shutil.copytree(sound.runs[0], tmp_path / sound.runs[0].name))
    plant(folder)
    found = of_run(folder, 0)
    assert any(said in text for text in found), found


def test_a_wrong_status_a_warning_and_a_traceback_are_found(sound: Ran) -> None:
    for change, said in (
        ({"status": 1, "stderr": "error: no"}, "exit status 1"),
        ({"stderr": "Traceback (most recent call last)"}, "a traceback"),
        ({"warned": ["UserWarning: so so"]}, "so so"),
        ({"status": 3}, "exit status 3 with outcome completed"),
    ):
        found = broken(Ran(**{**vars(sound), **change}))
        assert any(said in text for text in found), found


def test_a_refusal_that_does_not_say_why_is_found(sound: Ran) -> None:
    refused = Ran(sound.command, sound.out / "none", 2, "", "error: --k 0: must be at least 1\n")
    assert broken(refused, "--k 0") == []
    assert broken(refused, "--l2") != []
    assert broken(Ran(**{**vars(refused), "stderr": refused.stderr * 2}), "--k 0") != []
    assert broken(sound, "--k 0") != []


def test_results_that_differ_are_told_apart(sound: Ran, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(sound.runs[0], tmp_path / "two"))
    assert differing(sound.runs[0], folder) == []
    outcomes(folder, rank=np.full(12, 7))
    assert differing(sound.runs[0], folder) == ["outcomes"]
    assert differing(sound.runs[0], folder, besides=("rank",)) == []


def test_a_change_that_does_nothing_is_found(bench: Bench) -> None:
    (found,) = Differences(bench).tried(Change("knn", "workers", "--checkpoint-seconds 7", shows="identity"))
    assert "the identity stays" in found.what
    (found,) = Differences(bench).idled(Change("tokens", "size", "--size 48 --resize 48", shows="outcomes"))
    assert "other outcomes" in found.what


def test_words_are_grouped_by_flag() -> None:
    assert grouped(("--a", "1", "2", "--b", "--c", "x")) == [("--a", "1", "2"), ("--b",), ("--c", "x")]
