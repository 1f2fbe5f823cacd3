"""Cards say what records say."""

import re
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from tests.runs import ended
from tests.transfer.records.recorded import made
from transfer.records.store import StoredRun
from transfer.report.card import model_card

STARTED = {"precision": "fp32", "git": 40 * "a", "dirty": False, "device": "An abacus", "versions": {"torch": "2.15.0"}}


def run(weights: str, seed: int = 0, *, task: str = "reid", **given: Any) -> StoredRun:
    """A run that started from some weights."""
    dataset = {"name": "market1501", "version": None, "counts": {"train": {"images": 9}}} | given.pop("dataset", {})
    about = {"stem": "conv", "attention": "relu", "backbone": {"name": "mine"}, "environment": STARTED} | given
    return StoredRun(Path("none"), made(task, weights_id=weights, seed=seed, dataset=dataset, **about))


PRETRAINED = run(
    "random",
    task="pretrain-dino",
    export="sha256:abc",
    scores={"knn_top1": 0.5},
    primary="knn_top1",
    dataset={"name": "imagenet1k", "counts": {"train": {"images": 1281167}}},
    options={"epochs": 100, "lr": 5e-4, "data": "/home/me/data"},
)


def test_the_card_has_the_lineage_and_the_scores_of_all_seeds() -> None:
    mine = [run("sha256:abc", seed, scores={"mAP": score}) for seed, score in ((0, 0.5), (1, 0.7))]
    broken = run("sha256:abc", 3, scores={}, outcome=ended("collapsed", 3))
    others = [run("sha256:def", scores={"mAP": 0.111}), run("sha256:abc", 2, scores={"mAP": 0.999}, smoke=True), broken]
    for card in (model_card(PRETRAINED, [*mine, *others]), model_card(mine[0], [PRETRAINED, *mine, *others])):
        front = ModelCard(card).data
        assert (front.license, front.library_name) == ("unknown", "timm")
        head, _, reid = re.findall(r"^\|.*", card.partition("## Scores")[2], re.MULTILINE)[-3:]
        row = dict(zip(re.split(r" *\| *", head), re.split(r" *\| *", reid), strict=True))
        assert (row["task"], row["mAP"], row["mAP sd"]) == ("reid", "60.00", "14.14")
        assert row["statuses"] == "2 completed, 1 collapsed"
        for part in ("| epochs | 100 |", "train 1281167", "pretrain-dino", "| attention | relu |", "An abacus"):
            assert part in card
        assert "licence of the weights is unknown" in card
        assert "terms of image-net.org" in card
        for part in ("99.90", "11.10", "/home", "> "):
            assert part not in card


def test_costs_are_those_of_the_training_of_the_weights() -> None:
    tuned = run("sha256:abc", cost={"train_seconds": 99.0, "params": 5e6})
    card = model_card(tuned, [PRETRAINED])
    assert "| params | 5e+06 |" in card.partition("## Training")[0]
    assert "| train_seconds | 1 |" in card.partition("## Training")[2]
    assert "| train_seconds | 99 |" not in card
    about = {"task": "finetune", "primary": "top1", "options": {"name": "named"}, "attention": "mine.py:Mine"}
    about |= {"details": {"preprocessing": {"size": [32, 32], "resize": 36}}, "cost": {"train_seconds": 99.0}}
    own = model_card(run("sha256:abc", export="sha256:own", **about), [PRETRAINED])
    assert ModelCard(own).data.pipeline_tag == "image-classification"
    for part in ("# named\n", "size 32 32, resize 36 |", 'attention="FOLDER/mine.py:Mine")', "run classify "):
        assert part in own
    assert own.index("| train_seconds | 99 |") < own.index("| train_seconds | 1 |"), "each with its training"


def test_what_is_unknown_is_said_and_nothing_is_invented() -> None:
    card = model_card(run("sha256:fff", dataset={"name": "my_people"}))
    assert "unknown: no record of it was found. The weights are `sha256:fff`." in card
    assert "Data `my_people`: unknown." in card
    assert "fractions in percent, other metrics in their own unit" in card
    card = model_card(run("random", dataset={"name": "a|b\n# <b>c{d}"}))
    assert "There are no weights to load." in card
    assert "a\\|b # &lt;b>c{d}" in card, "text cannot break it"
    released = run("timm:vit_small_patch16_224.dino", backbone={"name": "mine", "arch": "vit_small_patch16_224"})
    assert 'create_model("vit_small_patch16_224.dino", pretrained=True)' in model_card(released)


def test_numbers_that_are_no_results_are_marked() -> None:
    dirty = STARTED | {"dirty": True}
    broken = {"outcome": ended("diverged", 3, "loss"), "scores": {}}
    card = model_card(run("sha256:abc", smoke=True, subset=8, environment=dirty, **broken), [PRETRAINED])
    for said in ("bundled synthetic data", "subset 8", "changed after its commit", "failed training run"):
        assert said in card.partition("## Model")[0]
    assert "bundled synthetic data" in model_card(run("sha256:abc", origin={"smoke": True}))
