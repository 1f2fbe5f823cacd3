"""Cards say what records say, and the hub's layout loads in timm and here."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import ModelCard

import backbones.vit  # noqa: F401  (registers the architecture)
from backbones import create, resolve
from backbones.checkpoints.exports import export
from backbones.errors import UserError
from backbones.weights import sha256
from tests.transfer.records.test_store import CONTENT, record
from transfer.records.record import RunKey
from transfer.records.store import Run
from transfer.share.model_card import hub_layout, model_card

STARTED = {"precision": "fp32", "git": 40 * "a", "dirty": False, "device": "An abacus", "versions": {"torch": "2.15.0"}}


def run(weights: str, seed: int = 0, *, task: str = "reid", folder: Path = Path("none"), **given: Any) -> Run:
    """A run that started from some weights; of another task or data set it has an identity of its own."""
    dataset = {"name": "market1501", "version": None, "counts": {"train": {"images": 9}}, "digest": "0" * 64}
    dataset |= given.pop("dataset", {})
    run_key = RunKey(CONTENT | {"seed": seed, "weights_id": weights, "task": task, "dataset": dataset})
    values: dict[str, Any] = {
        "task": task,
        "weights_id": weights,
        "seed": seed,
        "dataset": dataset,
        "environment": STARTED,
        "run_id": run_key.run_id(task, dataset["name"], "mine"),
        "backbone": {"name": "mine", "arch": "vit_tiny", "stem": "conv", "attention": "relu", "files": {}},
    }
    return Run(folder, record(run_key, **(values | given)))


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
    others = [run("sha256:def", scores={"mAP": 0.111}), run("sha256:abc", 2, scores={"mAP": 0.999}, smoke=True)]
    for card in (model_card(PRETRAINED, [*mine, *others]), model_card(mine[0], [PRETRAINED, *mine, *others])):
        front = ModelCard(card).data
        assert (front.license, front.library_name) == ("unknown", "timm")
        (reid,) = (result for result in front.eval_results if result.task_name == "reid")
        assert (reid.dataset_name, reid.metric_type) == ("market1501", "mAP")
        assert reid.metric_value == pytest.approx(0.6)
        assert "0, 1" in reid.metric_name
        assert "| reid | market1501 | mAP | 60.00 ± 14.14 | 0, 1 | 2 completed |" in card
        for part in ("| epochs | 100 |", "train 1281167", "pretrain-dino", "| attention | relu |", "An abacus"):
            assert part in card
        assert "licence of the weights is unknown" in card
        assert "terms of image-net.org" in card
        for part in ("99.90", "11.10", "/home", "> "):
            assert part not in card


def test_a_score_that_a_seed_lacks_has_no_mean() -> None:
    first, second = run("sha256:abc", 0, scores={"mAP": 0.5, "rank1": 0.75}), run("sha256:abc", 1, scores={"mAP": 0.7})
    card = model_card(first, [first, second])
    assert "60.00" in card
    assert "mAP" in card
    assert "rank1" not in card


def test_what_is_unknown_is_said_and_nothing_is_invented() -> None:
    card = model_card(run("sha256:fff", dataset={"name": "my_people"}))
    assert "Unknown: no record of it is at hand. The weights are `sha256:fff`." in card
    assert "Data `my_people`: unknown." in card
    assert "There are no weights to load." in model_card(run("random"))
    released = run("timm:vit_small_patch16_224.dino", backbone={"name": "mine", "arch": "vit_small_patch16_224"})
    assert 'create_model("vit_small_patch16_224.dino", pretrained=True)' in model_card(released)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"smoke": True}, "embedded toy data"),
        ({"subset": 8}, "from a subset"),
        ({"environment": STARTED | {"dirty": True}}, "changed after its commit"),
        ({"outcome": {"status": "diverged", "reason": "loss", "step": 3}, "scores": {}}, "training broke down"),
    ],
)
def test_numbers_that_are_no_results_are_marked_and_kept_from_the_hub(given: dict[str, Any], said: str) -> None:
    card = model_card(run("sha256:abc", **given), [PRETRAINED])
    assert said in card.partition("## Model")[0]
    assert "model-index" not in card


def test_a_pretraining_on_toy_data_marks_what_started_from_it() -> None:
    toy = run("random", task="pretrain-dino", export="sha256:abc", smoke=True)
    card = model_card(run("sha256:abc"), [toy])
    assert "embedded toy data" in card
    assert "model-index" not in card


@pytest.mark.parametrize(
    ("origin", "said"),
    [({"smoke": True}, "toy data"), ({"subset": 8}, "a subset"), ({"dirty": True}, "changed after its commit")],
)
def test_what_a_record_says_of_weights_whose_training_is_not_at_hand(origin: dict[str, Any], said: str) -> None:
    card = model_card(run("sha256:abc", origin=origin))
    assert said in card.partition("## Model")[0]
    assert "model-index" not in card
    assert "> " not in model_card(run("sha256:abc", origin={"smoke": False, "dirty": None, "subset": None}))


def test_seeds_that_broke_down_are_counted() -> None:
    broken = run("sha256:abc", 1, scores={}, outcome={"status": "collapsed", "reason": "", "step": 3})
    card = model_card(run("sha256:abc", scores={"mAP": 0.5}), [broken, PRETRAINED])
    assert "| mAP | 50.00 | 0, 1 | 1 completed, 1 broke down |" in card


def test_text_cannot_break_the_tables() -> None:
    card = model_card(run("random", dataset={"name": "a|b\n# c"}))
    assert "a\\|b # c" in card


@pytest.fixture
def exported(tmp_path: Path) -> Run:
    """A pretraining run with an export that says where it was made."""
    torch.manual_seed(0)
    about = {"run": "pretrain-x", "identity": "0", "options": {"lr": 0.1, "weights_to": "/home/me/weights"}}
    backbone = create(resolve("tiny", weights="random", attention="relu"), img_size=64)
    folder = export(backbone, tmp_path / "run" / "export", {"pretrain.json": about})
    weights = f"sha256:{sha256(folder / 'model.safetensors')}"
    return run("random", task="pretrain-dino", folder=tmp_path / "run", export=weights)


def test_the_hubs_layout_gives_equal_features_in_timm_and_here(exported: Run, tmp_path: Path) -> None:
    folder = hub_layout(exported, None, tmp_path / "hub" / "mine")
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "pretrain.json",
    ]
    assert "import backbones.vit" in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["requires_import"] == "backbones.vit"
    assert "/home" not in "".join(path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".md"))
    assert json.loads((folder / "pretrain.json").read_text())["options"] == {"lr": 0.1}
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ours, before = (create(resolve(str(place)), img_size=64).eval() for place in (folder, exported.folder / "export"))
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    mean, std = (torch.tensor(getattr(ours.spec, name)).view(3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        expected = before.pooled(images)
        assert torch.equal(ours.pooled(images), expected)
        assert torch.allclose(theirs.forward_head(theirs.forward_features((images - mean) / std)), expected, atol=1e-6)
    assert expected.std() > 0


def test_weights_that_are_not_those_of_the_record_are_refused(exported: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no model\.safetensors"):
        hub_layout(exported, tmp_path, tmp_path / "hub")
    with pytest.raises(UserError, match="is about sha256:abc"):
        hub_layout(PRETRAINED, exported.folder / "export", tmp_path / "hub")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").touch()
    with pytest.raises(UserError, match="choose a folder that does not exist"):
        hub_layout(exported, None, tmp_path / "there")
    assert not (tmp_path / "hub").exists()


def test_a_users_stem_keeps_its_name_and_loses_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my parts").mkdir()
    (tmp_path / "my parts" / "my_stem.py").write_text(
        "from torch import nn\n\ndef Mine(dim, patch):\n    return nn.Conv2d(3, dim, patch, patch)\n"
    )
    stem = f"{tmp_path}/my parts/my_stem.py:Mine"
    backbone = create(resolve("tiny", weights="random", stem=stem), img_size=32)
    folder = export(backbone, tmp_path / "run" / "export")
    made = run(
        "random",
        task="pretrain-dino",
        folder=tmp_path / "run",
        export=f"sha256:{sha256(folder / 'model.safetensors')}",
        backbone=backbone.spec.as_dict(),
    )
    hub = hub_layout(made, None, tmp_path / "hub")
    assert json.loads((hub / "config.json").read_text())["model_args"]["stem"] == "my_stem.py:Mine"
    card = (hub / "README.md").read_text()
    assert "| stem | my_stem.py:Mine |" in card
    assert backbone.spec.files["stem"] in card
    monkeypatch.chdir(tmp_path / "my parts")
    images = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(create(resolve(str(hub)), img_size=32).eval().pooled(images), backbone.eval().pooled(images))
