import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tasks.linear.training
from backbones.backbone import create
from backbones.spec import resolve
from backbones.trained_weights import read_head
from tasks.linear.training import LinearLearner, held_out, make_encoder
from tests.processes import run_by_ranks
from tests.runs import record
from tests.support import context
from tests.tasks.support import digits, run_task, smoke_options
from transfer.core.errors import UsageError, UserError
from transfer.core.seeding import seed_torch
from transfer.run import main

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
QUICK = ["--epochs", "4"]


def learner(labels: list[int] | None = None) -> LinearLearner:
    return LinearLearner(lambda images: images.flatten(1), 4, np.array(labels or [0, 1, 2]), 3)


def ranks(*places: int) -> Tensor:
    return torch.tensor([[place, 0] for place in places])


def test_features_are_the_class_tokens_of_the_last_blocks_behind_the_final_norm() -> None:
    backbone = create("tiny", img_size=32).eval()
    entries = backbone.tokens(IMAGES)
    norm = backbone.model.norm
    plain = [nn.functional.layer_norm(x, (64,), norm.weight, norm.bias, 1e-6) for x in entries]
    of_two = [x[:, 0] for x in plain[-2:]]
    pooled = [plain[-1][:, 0], plain[-1][:, 1:].mean(1)]
    for blocks, wanted in ((2, of_two), (1, pooled)):
        encode, dim = make_encoder(backbone, blocks, blocks == 1, context())
        assert torch.allclose(encode(IMAGES), torch.cat(wanted, dim=1), atol=1e-6)
        assert dim == 128


def test_the_best_validation_is_kept_beside_the_last_and_in_the_state() -> None:
    kept = learner()
    first, best, last = ranks(0, 1, 2, 3), ranks(0, 0, 9, 1), ranks(0, 7, 0, 8)
    assert [kept.keep(each)["top1"] for each in (first, best, last)] == [0.25, 0.5, 0.5]
    assert torch.equal(kept.best, best), "the first one of equals"
    assert torch.equal(kept.last, last)
    other = learner()
    other.load_state_dict(kept.state_dict())
    assert torch.equal(other.best, best)
    assert torch.equal(other.last, last)
    assert kept.keep(torch.full((4, 2), -1)) == {}, "logits that are not finite have no score"
    assert torch.equal(kept.best, best)


def test_it_learns_and_leaves_the_backbone_alone(tmp_path: Path) -> None:
    scores, outcomes, _ = run_task("linear", digits(60), "--epochs", "8", "--lr", "0.1", folder=tmp_path)
    assert scores["top1"] > 0.5
    assert scores["best_top1"] >= scores["top1"]
    assert set(outcomes) == {"sample", "cluster", "label", "rank", "ties", "best_rank", "best_ties"}
    kept = create(resolve("tiny", weights=str(tmp_path / "export")), img_size=32).model.state_dict()
    seed_torch(0)
    assert all(torch.equal(kept[name], value) for name, value in create("tiny", img_size=32).model.state_dict().items())
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    validations = [line["top1"] for line in history if "top1" in line]
    assert len(validations) == 8
    assert (validations[-1], max(validations)) == (scores["top1"], scores["best_top1"])
    for line in history:
        if "lr" in line:
            epoch = math.ceil(line["epoch"] - 1e-6) - 1
            assert line["lr"] == pytest.approx(0.1 * (1 + math.cos(math.pi * epoch / 8)) / 2)


def test_balanced_weights_help_rare_classes() -> None:
    data = digits(60)
    labels = data.training.labels
    rare = [row for row, label in enumerate(labels) if label < 5 or (labels[:row] == label).sum() < 6]
    data = replace(data, train=data.training.select(np.array(rare)))
    words = ["--epochs", "6", "--lr", "0.05", "--batch-size", "32"]
    plain, _, _ = run_task("linear", data, *words)
    scores, _, here = run_task("linear", data, *words, "--class-weights", "balanced")
    assert scores["macro_top1"] > plain["macro_top1"] + 0.05
    assert here.outcome.signs["chance"] == pytest.approx(math.log(10), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "heads"),
    [(QUICK, 1), ([*QUICK, "--lrs", "0.01", "0.1"], 2), ([*QUICK, "--lrs", "0.01", "1e30"], 1)],
)
def test_a_run_that_was_killed_ends_as_an_undisturbed_one(words, heads, tmp_path, monkeypatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    whole, undisturbed, other = run_task("linear", digits(20), *words, folder=tmp_path / "a")
    options, here = smoke_options("linear", *words), context(tmp_path / "b", checkpoint_seconds=0)
    validate, calls = LinearLearner.validate, []

    def killed(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 3 * heads:
            raise KeyboardInterrupt
        return validate(*given)

    monkeypatch.setattr(LinearLearner, "validate", killed)
    with pytest.raises(KeyboardInterrupt):
        tasks.linear.training.run(resolve("tiny"), digits(20), options, here)
    resumed, outcomes, here = run_task("linear", digits(20), *words, folder=tmp_path / "b")
    assert len(calls) == 5 * heads, "two validations before, and epochs 3 and 4 after"
    assert here.details.get("lrs") == other.details.get("lrs")
    assert resumed == whole
    assert all(np.array_equal(outcomes[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.parametrize(
    ("words", "backbone", "error", "said"),
    [
        (["--n-last-blocks", "3"], "tiny", UsageError, "--n-last-blocks 3.*has 2"),
        (["--avgpool", "--size", "64", "--resize", "64"], "resnet10t", UsageError, "--avgpool"),
        (["--batch-size", "512"], "tiny", UserError, "200 training images.*--batch-size 512"),
        (["--lrs", "0.1", "0.2", "--sam", "sam"], "tiny", UsageError, "--sam, --clip-grad"),
        (["--lrs", "0.1", "0.2", "--lr", "0.1"], "tiny", UsageError, "--lr has no effect"),
    ],
)
def test_what_cannot_work_is_said_before_training(words: list[str], backbone: str, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        run_task("linear", digits(20), *words, spec=resolve(backbone, weights="random"))


def test_a_rate_among_several_trains_as_it_does_alone(tmp_path: Path) -> None:
    data, rates, heads, scores = digits(20), [0.001, 0.01, 0.1], {}, {}
    chosen_by = held_out(data.training.labels, 0.1, 0)
    rest = data.training.select(np.setdiff1d(np.arange(len(data.training)), chosen_by))
    runs = {"alone": ["--lr", "0.01"], "grid": ["--lrs", *map(str, rates)]}
    for name, words in runs.items():
        (tmp_path / name).mkdir()
        trained_on = replace(data, train=rest) if name == "alone" else data
        given = [*QUICK, "--class-weights", "balanced", "--batch-size", "32"]
        scores[name], _, here = run_task("linear", trained_on, *given, *words, folder=tmp_path / name)
        heads[name] = read_head(str(tmp_path / name / "export"))
    assert scores["alone"] == scores["grid"]
    assert all(torch.allclose(heads["alone"][key], heads["grid"][key], atol=1e-6) for key in heads["grid"])
    told = here.details["lrs"]
    assert told["chosen"] == max(told["rates"], key=lambda row: row["selection_top1"])["lr"] == 0.01
    assert [row["lr"] for row in told["rates"]] == rates
    assert scores["grid"]["top1"] == told["rates"][1]["top1"] > 0.2
    exported = resolve("tiny", weights=str(tmp_path / "grid" / "export"))
    again, _, _ = run_task("linear", replace(data, val=data.training.select(chosen_by)), "--epochs", "0", spec=exported)
    assert again["top1"] == told["rates"][1]["selection_top1"], "the validation split chooses nothing"


def test_a_rate_that_overflows_takes_no_other_with_it() -> None:
    words = [*QUICK, "--batch-size", "32", "--lrs"]
    alone, _, one = run_task("linear", digits(20), *words, "0.01")
    scores, _, here = run_task("linear", digits(20), *words, "1e30", "0.01")
    assert scores == alone
    rows = [{"lr": 1e30, "status": "nonfinite"}, *one.details["lrs"]["rates"]]
    assert here.details["lrs"] == {"chosen": 0.01, "rates": rows}
    assert "1 of 2 learning rates failed (nonfinite): 1e+30" in here.notes
    scores, _, here = run_task("linear", digits(20), *words, "1e30", "1e31")
    assert (scores, here.outcome.status) == ({}, "nonfinite"), "all are lost"


def test_the_images_that_choose_are_a_share_of_each_class_by_the_seed() -> None:
    labels = np.repeat([0, 1, 2], [50, 7, 1])
    held = held_out(labels, 0.1, 0)
    assert np.bincount(labels[held], minlength=3).tolist() == [5, 1, 0], "a class keeps its only image"
    assert (held == held_out(labels, 0.1, 0)).all()
    assert (held != held_out(labels, 0.1, 1)).any()


@pytest.mark.nightly
def test_two_ranks_train_all_rates_as_one_process(tmp_path: Path) -> None:
    words = ["linear", "--backbone", "tiny", "--smoke", "--subset", "20", "--threads", "1", "--workers", "0", *QUICK]
    words += ["--lrs", "0.01", "0.1", "1e30", "--class-weights", "balanced"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    run_by_ranks("transfer.run", [*words, "--out", str(tmp_path / "two")], tmp_path / "log")
    assert record(tmp_path / "one").details["lrs"] == record(tmp_path / "two").details["lrs"]
    heads = [read_head(str(next((tmp_path / name).glob("*/export")))) for name in ("one", "two")]
    assert all(torch.allclose(heads[0][key], heads[1][key], atol=1e-5) for key in heads[0])
