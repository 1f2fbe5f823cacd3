"""Two real gloo processes against one."""

import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d

from backbones.token_shards import Shards
from tests.processes import spawn_ranks, start_rank
from tests.support import Classifier, context, fit_options, loader
from tests.transfer.engine.test_sam import Linear, climbed, gradients, parameters, points
from transfer.core.process import Ranks, usable_cores
from transfer.engine import dist
from transfer.engine.learner import Batch
from transfer.engine.loop import fit
from transfer.engine.step import Stepper

ADAMW: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-2, "grad_accum_steps": 2}
SHARP_OPTIONS: dict[str, Any] = {"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "sam_rho": 0.5}
SHARP: dict[str, dict[str, Any]] = {
    "own of two parts": {"sam": "asam", "grad_accum_steps": 2},
    "of all and two parts": {"sam": "sam", "sam_sync": True, "grad_accum_steps": 2},
}


class GatheredClassifier(Classifier):
    """Features of all ranks meet before the loss, as in re-identification."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        # Before a batch norm a bias has no gradient but rounding, which AdamW would blow up.
        self.body[0].bias = None

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        points, labels = batch
        features = dist.gather_rows(self.body(points))
        loss = nn.functional.cross_entropy(self.head(features), dist.gather_rows(labels))
        return {"loss": loss + features.square().mean().sqrt()}


def sharp_steps(ranks: Ranks) -> dict[str, Any]:
    """What one step of SAM leaves, for perturbations of each rank and of all; and one that overflows on one rank."""
    found: dict[str, Any] = {}
    for kind in SHARP:
        model = Classifier()
        stepper = Stepper(model.train(), fit_options(**SHARP_OPTIONS, **SHARP[kind]), context(ranks=ranks))
        mine = tuple(part[8 * ranks.rank : 8 * ranks.rank + 8] for part in points(16))
        stats, _, _ = stepper.step(7, 0.0, mine).read()
        found[kind] = {"weights": dict(model.named_parameters()), "norm": stats["sam_norm"]}
    broken = Linear([1.0, 1.0, math.inf if ranks.rank else 1.0, 1.0])
    options = fit_options(precision="fp16", sam="sam", weight_decay=0.0)
    stepper = Stepper(broken, options, context(ranks=ranks, precision="fp16"))
    found["skipped"] = [stepper.step(step, 0.0, torch.ones(2)).read()[1] for step in (1, 2)]
    found["weight"], found["scale"] = broken.weight, stepper.scaler.get_scale()
    return found


def work(rank: int, port: int, folder: str) -> None:
    ranks = start_rank(rank, port)
    results: dict[str, Any] = {}
    results["largest"] = dist.max_over_ranks(torch.tensor([rank, -rank]))
    model, here = GatheredClassifier(), context(ranks=ranks)
    fit(model, loader(ranks=ranks, parts=2), fit_options(sync_bn=True, **ADAMW), here)
    results["trained"], results["images"] = model.state_dict(), here.cost.images
    results["sharp"] = sharp_steps(ranks)
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.stop()


def wait_long(rank: int, port: int, folder: str) -> None:
    distributed_c10d.default_pg_timeout = timedelta(seconds=10)
    ranks = start_rank(rank, port, token_ranks=2)
    group = Shards(2).group._get_backend(torch.device("cpu"))
    threads = dist.by_first(lambda: time.sleep(25) or torch.get_num_threads())
    results = {"threads": threads, "after": torch.get_num_threads(), "seconds": group.options._timeout.total_seconds()}
    torch.save(results, Path(folder) / f"{ranks.rank}.pt")
    dist.stop()


@pytest.mark.nightly
def test_ranks_wait_beyond_torchs_timeout_while_the_first_computes_on_all_cores(tmp_path: Path) -> None:
    spawn_ranks(wait_long, str(tmp_path))
    expected = {"threads": usable_cores(), "after": 1, "seconds": 86400.0}
    assert [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)] == [expected] * 2


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    spawn_ranks(work, str(folder))
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def test_two_ranks_train_as_one_process(results: list[dict[str, Any]]) -> None:
    alone, here = GatheredClassifier(), context()
    fit(alone, loader(), fit_options(**ADAMW), here)
    for rank in (0, 1):
        for name, value in alone.state_dict().items():
            assert torch.allclose(value, results[rank]["trained"][name], atol=2e-5), name
        assert results[rank]["images"] == here.cost.images


@pytest.mark.parametrize("kind", [*SHARP])
def test_the_perturbation_is_each_ranks_own_or_that_of_all(results: list[dict[str, Any]], kind: str) -> None:
    options = {"grad_accum_steps": 1, "sam_sync": False, **SHARP[kind]}
    model, rho = Classifier().train(), SHARP_OPTIONS["sam_rho"]
    start, inputs = parameters(model), points(16)
    shares = [[(x, y) for x, y in zip(*(part[rows].chunk(options["grad_accum_steps"]) for part in inputs))]
              for rows in (slice(0, 8), slice(8, 16))]  # fmt: skip
    slopes = [gradients(model, start, share, rank=rank) for rank, share in enumerate(shares)]
    if options["sam_sync"]:
        slopes = [{name: (slopes[0][name] + slopes[1][name]) / 2 for name in start}] * 2
    tops, norms = zip(*(climbed(start, slope, rho, options["sam"]) for slope in slopes))
    seconds = [gradients(model, top, share, rank=rank) for rank, (top, share) in enumerate(zip(tops, shares))]
    for rank in (0, 1):
        found = results[rank]["sharp"][kind]
        assert found["norm"] == pytest.approx(sum(norms) / 2, rel=1e-5)
        for name, weight in start.items():
            expected = weight - (seconds[0][name] + seconds[1][name]) / 2
            assert torch.allclose(found["weights"][name], expected, atol=1e-5), name
            assert torch.equal(found["weights"][name], results[0]["sharp"][kind]["weights"][name])


def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["sharp"]["skipped"] == [False, True]
        assert torch.allclose(result["sharp"]["weight"], torch.tensor([0.9, 1.9]))
        assert result["sharp"]["scale"] == 2.0**15


def test_the_largest_of_all_ranks(results: list[dict[str, Any]]) -> None:
    assert [result["largest"].tolist() for result in results] == [[1, 0]] * 2


def test_activations_within_a_norm_stay() -> None:
    """timm's BatchNormAct2d ends in an activation and a drop layer."""
    model = timm.create_model("mobilenetv3_small_050", num_classes=3).eval()
    names, images = [*model.state_dict()], torch.randn(2, 3, 64, 64)
    expected = model(images)
    dist.synchronise_batch_norm(model, torch.device("cpu"))
    assert isinstance(model.bn1, dist.SyncBatchNorm)
    assert [*model.state_dict()] == names
    assert torch.equal(model(images), expected)


def test_a_norm_that_sees_all_ranks_already_stays() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm2d(3))
    model[0].sees_all_ranks = True
    dist.synchronise_batch_norm(model, torch.device("cpu"))
    assert type(model[0]) is nn.BatchNorm1d
    assert isinstance(model[1], dist.SyncBatchNorm)
