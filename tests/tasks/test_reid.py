"""What a ReID run keeps besides its scores: the first gallery images of every query, and pictures of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backbones.spec import resolve
from tasks.reid.pictures import PLACES
from tasks.reid.task import TASK
from tasks.reid.training import _rank
from tests.support import context
from tests.tasks.support import smoke_options
from transfer.core.pictures import RANKED, RankedLists
from transfer.data.reid.dataset import open_reid
from transfer.data.reid.market1501 import Sample
from transfer.data.spec import resolve_dataset
from transfer.engine.extract import NotFinite
from transfer.run import main

WORDS = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--epochs", "1"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("runs")
    assert main([*WORDS, "--warmup-epochs", "0", "--out", str(folder)]) == 0
    return folder


def run_folder(out: Path) -> Path:
    (found,) = out.glob("*/record.json")
    return found.parent


def test_the_lists_kept_are_those_that_were_scored(out: Path) -> None:
    folder = run_folder(out)
    lists = RankedLists.load(folder / RANKED)
    data = open_reid(resolve_dataset("toy_market"), None)
    with np.load(folder / "outcomes.npz") as file:
        outcomes = dict(file)
    assert lists.query.tolist() == outcomes["sample"].tolist()
    assert lists.query_identity.tolist() == outcomes["cluster"].tolist()
    assert lists.places.shape == (len(data.query), PLACES)
    shown = {data.name_of(sample): (sample.identity, sample.camera) for sample in data.gallery}
    for place, name in enumerate(lists.gallery):
        assert shown[str(name)] == (lists.gallery_identity[place], lists.gallery_camera[place])
    same_camera = lists.gallery_camera[lists.places] == lists.query_camera[:, None]
    assert not (lists.right & same_camera).any(), "junk has no place in a list"
    # without ties the first match stands where the outcomes count it
    hits = outcomes["hits"] > 0
    single = hits & (outcomes["tied"] == 1) & (outcomes["before"] < PLACES)
    assert single.any()
    assert (lists.right[single].argmax(1) == outcomes["before"][single]).all()
    assert not lists.right[hits & (outcomes["before"] >= PLACES)].any()


def test_a_feature_that_is_not_finite_is_named_and_never_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_reid(resolve_dataset("toy_market"), None)
    options = smoke_options("reid")

    def features(learner: object, samples: list[Sample], *rest: object) -> torch.Tensor:
        found = torch.nn.functional.normalize(torch.rand(len(samples), 4), dim=1)
        if len(samples) == len(data.gallery):
            found[5] = torch.nan
        return found

    monkeypatch.setattr("tasks.reid.training.features", features)
    with pytest.raises(NotFinite) as error:
        _rank(None, data, options, context())  # type: ignore[arg-type]
    assert str(error.value) == f"features of the gallery split: not finite for {data.name_of(data.gallery[5])}"


def test_pictures_are_drawn_of_a_finished_run_and_change_nothing(out: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(out)
    assert not (folder / "pictures").exists()
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    words = [*WORDS, "--warmup-epochs", "0", "--out", str(out), "--save-pictures", "3"]
    assert main(words) == 0
    assert "has a record, reused" in capfd.readouterr().err
    pictures = sorted(path.name for path in (folder / "pictures").glob("*.jpg"))
    assert pictures == ["query-00000.jpg", "query-00024.jpg", "query-00047.jpg"]
    with Image.open(folder / "pictures" / pictures[0]) as image:
        assert image.width > 8 * image.height / 2
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_queries_without_a_match_are_counted(tmp_path: Path) -> None:
    data = open_reid(resolve_dataset("toy_market"), None)
    person = data.query[0].identity
    alone = replace(data, gallery=[sample for sample in data.gallery if sample.identity == person])
    options, here = smoke_options("reid", "--epochs", "0"), context(tmp_path)
    scores, _ = TASK.run(resolve("tiny"), alone, options, here)
    others = sum(sample.identity != person for sample in data.query)
    assert scores["mAP"] == 1
    assert here.notes[-1].startswith(f"{others} of {len(data.query)} queries have no match in the gallery")
