"""Four real gloo processes, two to an image, against one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from backbones.backbone import Backbone, create
from backbones.token_shards import Shards
from backbones.vit import share_tokens
from tests.processes import spawn_ranks, start_rank
from tests.support import context, fit_options
from tests.transfer.testing import faulty
from transfer.core.errors import UsageError
from transfer.core.process import Ranks
from transfer.engine import dist

SIZE = (32, 48)  # 6 patches and the class token: the ranks of a group have 3 and 4 tokens
MODELS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax", "stem": "conv"},
    "relu": {"attention": "relu", "alpha": "learned", "gate": "sigmoid"},
    "gelu": {"attention": "gelu", "alpha": 0.5, "length": "image"},
    "identity": {"attention": "identity", "pool": "gap"},
    "relu_sum": {"attention": "relu_sum"},
    "own core": {"attention": f"{faulty.__file__}:SoundCore", "qk_norm": True},
}
IMAGES = torch.rand(4, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def backbone(name: str) -> Backbone:
    torch.manual_seed(0)
    return create("tiny", img_size=SIZE, **MODELS[name])


def loss_of(features: Tensor) -> Tensor:
    """One that tells channels, images and signs apart."""
    return (features * torch.linspace(-1, 2, features.shape[1])).tanh().square().mean()


def work(rank: int, port: int, folder: str) -> None:
    ranks = start_rank(rank, port, count=4, token_ranks=2)
    shards, results = Shards(2), {}
    mine = IMAGES[2 * ranks.data.rank :][:2]
    for name in MODELS:
        model = backbone(name).train()
        share_tokens(model.model, shards)
        wrapped = DistributedDataParallel(model)
        features = wrapped(mine)
        loss_of(features).backward()
        gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.requires_grad}
        alone = model.eval()(mine)
        results[name] = {"features": features.detach(), "gradients": gradients, "alone": alone.detach()}
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.stop()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shards")
    spawn_ranks(work, str(folder), count=4)
    return [torch.load(folder / f"{rank}.pt") for rank in range(4)]


@pytest.mark.parametrize("name", MODELS)
def test_features_and_gradients_are_those_of_one_process(results: list[dict[str, Any]], name: str) -> None:
    model = backbone(name).train()
    losses = []
    for group in (0, 1):
        features = model(IMAGES[2 * group :][:2])
        losses.append(loss_of(features))
        for rank in (2 * group, 2 * group + 1):
            torch.testing.assert_close(results[rank][name]["features"], features.detach(), atol=1e-5, rtol=1e-4)
    torch.stack(losses).mean().backward()
    for key, parameter in model.named_parameters():
        for result in results:
            if parameter.requires_grad:
                torch.testing.assert_close(result[name]["gradients"][key], parameter.grad, atol=1e-6, rtol=1e-3)


class OneRank(Shards):
    """A group without a process group, for what is found out before any collective."""

    def __init__(self, size: int) -> None:
        self.size, self.tokens, self.rank = size, None, 0


@pytest.mark.parametrize(
    ("name", "given", "match"),
    [
        ("volo_d1", {"weights": "random"}, "only plain ViTs"),
        ("vit_tiny_patch16_224", {"weights": "random"}, "only plain ViTs whose attention is of this suite"),
        ("tiny", {"ffn": "conv1d_bn"}, "batch norm within the blocks"),
        ("tiny", {"attention": "mine.py:first"}, "depends on other queries"),
    ],
)
def test_models_that_cannot_share(name: str, given: dict[str, Any], match: str, here: Path) -> None:
    Path("mine.py").write_text("def first(q, k, v):\n    return v\n")
    with pytest.raises(UsageError, match=match):
        share_tokens(create(name, **given).model, OneRank(2))


def test_more_ranks_than_tokens() -> None:
    with pytest.raises(UsageError, match="only 7 tokens"):
        OneRank(8).split(torch.zeros(1, 7, 4))


@pytest.mark.parametrize(("given", "match"), [({"compile": True}, "--no-compile"), ({"sam": "sam"}, "--sam-sync")])
def test_options_that_do_not_fit(given: dict[str, Any], match: str) -> None:
    from tests.support import Classifier
    from transfer.engine.step import Stepper

    with pytest.raises(UsageError, match=match):
        Stepper(Classifier(), fit_options(**given), context(ranks=Ranks(0, 2, 0, 2, token_ranks=2)))
