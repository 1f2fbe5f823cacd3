"""Options put together in every task and recipe, judged by what must hold for all of them."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.interactions.__main__ import WIDTH, tried
from tests.interactions.commands import Bench, Ran
from tests.interactions.generator import base_words, choices, rows, works
from tests.interactions.invariants import broken, of_run
from tests.interactions.places import Places
from tests.interactions.relations import RELATIONS
from transfer.records.record import with_checksum


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("interactions")
    return Bench(root / "runs", Places(root / "places"))


@pytest.mark.nightly
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("work", works())
def test_options_put_together(work: str, relation: str, bench: Bench) -> None:
    rng = random.Random(f"{work} {relation}")
    assert tried(bench, work, next(rows(sorted(choices(work)), WIDTH, rng)), rng, relation)[0] == []


def history(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    path = folder / "history.jsonl"
    path.write_text("".join(f"{line}\n" for line in change(path.read_text().splitlines())))


def scored(folder: Path, **scores: float) -> None:
    content = json.loads((folder / "record.json").read_text())
    content["scores"].update(scores)
    del content["digest"]
    (folder / "record.json").write_bytes(with_checksum(content))


PLANTED: dict[str, Callable[[Path], object]] = {
    "top1 = 2.0": lambda folder: scored(folder, top1=2.0),
    "transfer.verify": lambda folder: np.savez(folder / "outcomes.npz", sample=["a"], cluster=["a"], rank=[0]),
    "1, 2, 3": lambda folder: history(folder, lambda lines: lines[1:]),
    "not with the training": lambda folder: history(folder, lambda lines: lines[:4]),
    "left state.pt": lambda folder: (folder / "state.pt").touch(),
}


def test_what_is_planted_is_found(bench: Bench, tmp_path: Path) -> None:
    sound = bench.run(base_words("linear", bench.places))
    assert broken(sound) == []
    for number, (said, plant) in enumerate(PLANTED.items()):
        folder = shutil.copytree(sound.runs[0], tmp_path / f"{number}")
        plant(folder)
        assert said in str(of_run(folder, 0))
    for change in ({"stderr": "Traceback (most recent call last)"}, {"status": 3}, {"status": 2}):
        assert broken(Ran(**{**vars(sound), **change})), change
