"""DINO: its crops, what cannot work, and whole runs."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageFilter, ImageOps
from torchvision import transforms as T

from backbones import create, resolve
from backbones.pretrain.dino.method import METHOD
from backbones.pretrain.dino.multicrop import MultiCrop
from tests.backbones.pretrain.dino_support import dino_options, feed, make
from tests.backbones.pretrain.test_augment import picture
from tests.processes import spawn_ranks, start_rank
from tests.support import context
from transfer.core.errors import UsageError, UserError
from transfer.core.exports import EXPORT, PRETRAIN
from transfer.core.process import Ranks
from transfer.core.seeding import seeded
from transfer.data.classification import ClassificationData, open_classification
from transfer.data.loading.images import to_floats
from transfer.data.spec import resolve_dataset
from transfer.engine import dist
from transfer.engine.loop import fit

SMALL: dict[str, Any] = {"patch": 8, "stem": "conv", "weights": "random"}


@pytest.fixture(scope="module")
def digits() -> ClassificationData:
    return open_classification(resolve_dataset("toy_digits"), None, subset=8)


@pytest.mark.parametrize(
    ("given", "spec", "error", "named"),
    [
        ({"teacher_temp": 0.0}, {}, UsageError, "--teacher-temp 0.0"),
        ({"global_area": (0.8, 0.4)}, {}, UsageError, "--global-area"),
        ({"teacher_momentum": 1.5}, {}, UsageError, "--teacher-momentum"),
        ({"out_dim": 1}, {}, UsageError, "--out-dim"),
        ({"local_size": 32, "local_bn": False}, {}, UsageError, "--no-local-bn"),
        ({"size": 36, "resize": None}, {}, UsageError, "size 36 x 36 .* multiples of 8"),
        ({"local_size": 20}, {}, UsageError, "--local-size 20: .* 8"),
        ({"drop_path": 0.2}, {"drop_path": 0.1}, UsageError, "--drop-path 0.1"),
        ({"batch_size": 81}, {}, UserError, "--batch-size 81 is too large for 80 training images"),
        ({"knn_k": 200}, {}, UserError, "fewer than --knn-k 200"),
    ],
)
def test_what_cannot_work_is_known_before_training(digits, given, spec, error, named) -> None:
    backbone = resolve("tiny", **SMALL, **spec)
    with pytest.raises(error, match=named):
        METHOD.check(backbone, digits, dino_options(**given), context())


@pytest.mark.parametrize(("kept", "rate"), [("teacher", 1e-9), ("student", 1e-16)])
def test_a_network_that_never_moved_is_not_judged(tmp_path: Path, digits: Any, kept: str, rate: float) -> None:
    """At a rate of 1e-9 weights change in their last digits, the stem's batch statistics all the same.

    The gain over the start is said, and decides nothing.
    """
    still, moving = (context(tmp_path / name) for name in ("still", "moving"))
    given = {"epochs": 5, "batch_size": 16, "local_crops": 0, "export": kept, "blur": None}
    for here, lr in ((still, rate), (moving, 1e-3)):
        here.folder.mkdir()
        METHOD.run(resolve("tiny", **SMALL), digits, dino_options(lr=lr, **given), here)
    assert (still.outcome.status, still.outcome.rule) == ("not_judged", 3)
    assert "nothing moved" in still.outcome.reason
    assert still.outcome.change < 1e-5 < 0.01 < moving.outcome.change
    assert moving.outcome.status == "completed"
    assert still.details["before_training"] == moving.details["before_training"]
    assert any("before training, so that training changed it by" in note for note in still.notes)


@pytest.mark.parametrize("kept", ["teacher", "student"])
def test_a_run_scores_and_exports_the_chosen_backbone(tmp_path: Path, digits: ClassificationData, kept: str) -> None:
    options = dino_options(export=kept, epochs=2, batch_size=40, validate_at=(1,), teacher_momentum=0.5)
    spec, here = resolve("tiny", **SMALL), context(tmp_path)
    METHOD.check(spec, digits, options, here)
    scores, outcomes = METHOD.run(spec, digits, options, here)
    assert here.outcome.status == "not_judged"  # few steps
    assert METHOD.rescore(outcomes) == scores
    assert set(scores) == set(METHOD.metrics)
    assert list(outcomes["sample"]) == list(digits.val.names)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "knn_top1" in line] == [2]
    assert {"loss", "teacher_entropy", "kl", "spread", "teacher_momentum", "teacher_temp"} <= set(lines[0])

    about = json.loads((tmp_path / EXPORT / PRETRAIN).read_text())
    assert (about["network"], about["scores"]) == (kept, scores)
    state = torch.load(tmp_path / "state.pt")["stepper"]["learner"]
    ours = create("tiny", **{**SMALL, "weights": str(tmp_path / EXPORT)}, img_size=32).eval()
    for name, value in ours.model.state_dict().items():
        assert torch.equal(value, state[f"{kept}.backbone.model.{name}"]), name


def test_a_breakdown_leaves_no_export(tmp_path: Path, digits: ClassificationData) -> None:
    options, here = dino_options(epochs=2, batch_size=40, lr=1e30), context(tmp_path)
    assert METHOD.run(resolve("tiny", **SMALL), digits, options, here) == ({}, {})
    assert here.outcome.status == "nonfinite"
    assert not (tmp_path / EXPORT).exists()


def train(folder: Path, ranks: Ranks) -> dict[str, torch.Tensor]:
    options = dino_options(epochs=2, sync_bn=True, grad_accum_steps=2, freeze_last_layer=1, drop_path=0.5)
    learner = make(options, stem="conv")
    fit(learner, feed(parts=2, ranks=ranks), options, context(folder, ranks=ranks))
    return learner.state_dict()


def work(rank: int, port: int, folder: str) -> None:
    ranks = start_rank(rank, port)
    torch.save(train(Path(folder), ranks), Path(folder) / f"{rank}.pt")
    dist.stop()


@pytest.mark.nightly
def test_two_ranks_train_as_one_process(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    spawn_ranks(work, str(tmp_path))
    alone = train(tmp_path / "alone", Ranks())
    folders = (tmp_path, tmp_path / "alone")
    losses = [[json.loads(line)["loss"] for line in (folder / "history.jsonl").open()] for folder in folders]
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, value in alone.items():
            # AdamW turns the rounding of a gradient near zero into a whole step of single weights.
            off = (value.float() - found[name].float()).norm()
            assert off <= 1e-2 * value.float().norm() + 1e-5, name
    assert len(losses[0]) == 8


def published(image, size, area, radii, blur, solarize=0.0):
    """One crop as the paper's code draws it."""
    bicubic = T.InterpolationMode.BICUBIC
    image = T.RandomResizedCrop(size, area, interpolation=bicubic)(image)
    image = T.RandomHorizontalFlip(0.5)(image)
    image = T.RandomApply([T.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8)(image)
    image = T.RandomGrayscale(p=0.2)(image)
    if radii and random.random() <= blur:
        image = image.filter(ImageFilter.GaussianBlur(radius=random.uniform(*radii)))
    if solarize and random.random() < solarize:
        image = ImageOps.solarize(image)
    return T.ToTensor()(image)


@pytest.mark.parametrize(("local_crops", "radii"), [(0, (0.1, 2.0)), (3, (0.1, 0.5)), (3, None)])
def test_equals_the_published_augmentation(local_crops, radii):
    image = picture(120, 90)
    crops = MultiCrop(dino_options(size=56, resize=None, local_size=24, local_crops=local_crops, blur=radii))
    for key in range(12):
        with seeded(key):
            expected = [published(image, 56, (0.4, 1.0), radii, *shares) for shares in ((1.0,), (0.1, 0.2))]
            expected += [published(image, 24, (0.05, 0.4), radii, 0.5) for _ in range(local_crops)]
        with seeded(key):
            got = crops(image)
        assert [view.shape for view in got] == [(3, 56, 56)] * 2 + [(3, 24, 24)] * local_crops
        assert all(torch.equal(to_floats(a), b) for a, b in zip(got, expected, strict=True))
