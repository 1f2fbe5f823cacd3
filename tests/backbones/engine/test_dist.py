"""Two real gloo processes against one."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.engine import dist
from backbones.engine.dist import Ranks
from backbones.engine.learner import Batch
from backbones.engine.loop import fit
from tests.support import Classifier, context, fit_options, loader

ROWS = torch.randn(8, 3, 4, 5, generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.randn(8, 3, 4, 5, generator=torch.Generator().manual_seed(2))


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


def batch_norm_step(norm: nn.Module, rows: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Output, gradients and running statistics after one training step on `rows`."""
    rows = rows.clone().requires_grad_()
    out = norm(rows)
    (out * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in norm.named_parameters()}
    return {"out": out.detach(), "rows": rows.grad, **gradients, **dict(norm.named_buffers())}


def work(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    ranks, cpu = Ranks(rank, 2, rank, 2), torch.device("cpu")
    dist.start(ranks, cpu)
    results: dict[str, Any] = {}
    module = dist.synchronise_batch_norm(nn.Sequential(nn.BatchNorm2d(3)), cpu)
    mine = slice(4 * rank, 4 * rank + 4)
    results["norm"] = batch_norm_step(module[0], ROWS[mine], WEIGHTS[mine])
    results["share"] = dist.share(list(range(7)), ranks)
    results["gathered"] = dist.gather_objects(rank)
    results["broadcast"] = dist.broadcast_object(f"from {rank}")
    for kind, options in {"plain": {}, "adamw": {"optimizer": "adamw", "lr": 1e-2, "accumulate": 2}}.items():
        model, here = GatheredClassifier(), context(ranks=ranks)
        feed = loader(ranks=ranks, parts=options.get("accumulate", 1))
        fit(model, feed, fit_options(sync_bn=True, **options), here)
        results[kind] = model.state_dict()
        results[kind + " images"] = here.cost.images
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.stop()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(work, (str(folder), port), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


def test_synchronised_batch_norm_is_that_of_the_whole_batch(results: list[dict[str, Any]]) -> None:
    whole = batch_norm_step(nn.BatchNorm2d(3), ROWS, WEIGHTS)
    for name in ("out", "rows"):
        assert torch.allclose(torch.cat([result["norm"][name] for result in results]), whole[name], atol=1e-6)
    for name in ("weight", "bias"):
        assert torch.allclose(sum(result["norm"][name] for result in results), whole[name], atol=1e-5)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert all(torch.allclose(result["norm"][name], whole[name], atol=1e-6) for result in results)


@pytest.mark.parametrize(
    ("kind", "options"), [("plain", {}), ("adamw", {"optimizer": "adamw", "lr": 1e-2, "accumulate": 2})]
)
def test_two_ranks_train_as_one_process(results: list[dict[str, Any]], kind: str, options: dict[str, Any]) -> None:
    alone, here = GatheredClassifier(), context()
    fit(alone, loader(), fit_options(**options), here)
    for rank in (0, 1):
        for name, value in alone.state_dict().items():
            assert torch.allclose(value, results[rank][kind][name], atol=2e-5), name
        assert results[rank][kind + " images"] == here.cost.images


def test_objects_and_shares_keep_their_order(results: list[dict[str, Any]]) -> None:
    assert results[0]["share"] + results[1]["share"] == list(range(7))
    assert [result["gathered"] for result in results] == [[0, 1], [0, 1]]
    assert [result["broadcast"] for result in results] == ["from 0", "from 0"]


def test_a_world_of_one_needs_no_job() -> None:
    rows = torch.ones(2, 2, requires_grad=True)
    assert dist.gather_rows(rows) is rows
    assert dist.broadcast_object("x") == "x"
    assert dist.gather_objects(3) == [3]


def test_a_norm_that_sees_all_ranks_already_stays() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm2d(3)))
    model[0].sees_all_ranks = True
    model[1][0].weight.requires_grad_(False)
    dist.synchronise_batch_norm(model, torch.device("cpu"))
    assert type(model[0]) is nn.BatchNorm1d
    assert isinstance(model[1][0], dist.SyncBatchNorm)
    assert not model[1][0].weight.requires_grad
    rows = torch.randn(4, 3, 2, 2)
    assert torch.equal(model[1](rows), nn.BatchNorm2d(3)(rows))
