"""TransReID (He et al. 2021, github.com/damo-cv/TransReID) from a checkout of its repository, run on a CPU in fp32.

Its own code makes the model, the data, the losses, the optimizer and the schedule, and its own loop trains; nothing of
it is kept here. What its code needs from old versions of torch or from a GPU is stood in for at run time.
"""

import collections.abc
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from tests.benchmarks.parity.checks import importing, normalised

ROOMS = ("config", "datasets", "loss", "model", "processor", "solver", "utils")
CONFIG = "configs/Market/vit_base.yml"
"""The baseline: no side information, no jigsaw branch, stride 16. Its DeiT-S has a file for MSMT17 only."""
ARCHITECTURE = "deit_small_patch16_224_TransReID"

PIXELS = 0.5
"""Mean and standard deviation of its normalisation, in all channels."""

Batch = tuple[Tensor, Tensor]
Values = dict[str, float]


class Peer:
    """The peer's modules, configured as its baseline, with DeiT-S in place of ViT-B and the market data in `market`.

    Attributes:
        cfg: its configuration.
        train_set, test_set: its datasets, with transforms; the test set is the query images, then the gallery's.
        queries, classes: numbers of query images and of training identities.

    Raises:
        UserError: `checkout` is not the peer's repository, or a package that it imports is missing.
    """

    def __init__(self, checkout: Path, market: Path) -> None:
        self.modules = _import(checkout)
        self.cfg = self.modules["config"].cfg
        self.cfg.merge_from_file(str(checkout / CONFIG))
        self.cfg.merge_from_list(["MODEL.TRANSFORMER_TYPE", ARCHITECTURE, "MODEL.PRETRAIN_CHOICE", "none"])
        self.cfg.merge_from_list(["DATALOADER.NUM_WORKERS", 0, "DATASETS.ROOT_DIR", str(market.parent)])
        # The peer's name of the folder below ROOT_DIR is fixed.
        self.modules["datasets.market1501"].Market1501.dataset_dir = market.name
        with redirect_stdout(io.StringIO()):
            loaders = self.modules["datasets.make_dataloader"].make_dataloader(self.cfg)
        train, _, test, self.queries, self.classes, _, _ = loaders
        self.train_set, self.test_set = train.dataset, test.dataset

    def model(self, drop_path: float) -> nn.Module:
        """Backbone, neck and classifier, initialised at random."""
        cfg = self.cfg.clone()
        cfg.merge_from_list(["MODEL.DROP_PATH", drop_path])
        with redirect_stdout(io.StringIO()):
            return self.modules["model.make_model"].make_model(cfg, self.classes, camera_num=0, view_num=0)

    def positions(self, table: Tensor, wanted: Tensor, grid: tuple[int, int]) -> Tensor:
        """A position table [1, 1 + N, D] on a grid (h, w), whose table has the form of `wanted`."""
        with redirect_stdout(io.StringIO()):
            return self.modules["model.backbones.vit_pytorch"].resize_pos_embed(table, wanted, *grid)

    def schedule(self) -> list[Values]:
        """The rates of a weight and of a bias in every epoch of the recipe, as its loop sets them."""
        model = nn.Linear(1, 1)
        optimizer = self._optimizer(model)[0]
        scheduler = self.modules["solver.scheduler_factory"].create_scheduler(self.cfg, optimizer)
        epochs = []
        for epoch in range(1, self.cfg.SOLVER.MAX_EPOCHS + 1):
            scheduler.step(epoch)
            epochs.append(_by_name(model, optimizer, "lr"))
        return epochs

    def decays(self, model: nn.Module) -> Values:
        """The weight decay of every parameter that is trained."""
        return _by_name(model, self._optimizer(model)[0], "weight_decay")

    def train(self, model: nn.Module, epochs: Sequence[Sequence[Batch]], before_step: Callable[[int], None]) -> Any:
        """Trains in place with the peer's own loop, the schedule being that of the whole recipe.

        Args:
            epochs: the batches of each epoch: images in [0, 1], identities.
            before_step: called with the number of each step, from 1, when its batch is asked for.
        """
        with redirect_stdout(io.StringIO()):
            loss_function, center = self.modules["loss.make_loss"].make_loss(self.cfg, self.classes)
        optimizer, optimizer_center = self._optimizer(model, center)
        scheduler = self.modules["solver.scheduler_factory"].create_scheduler(self.cfg, optimizer)
        trace = SimpleNamespace(losses=[], rates=[])  # rates in force, by the peer's names of parameters

        def loss_noted(score: Tensor, feature: Tensor, identities: Tensor, cameras: Tensor) -> Tensor:
            loss = loss_function(score, feature, identities, cameras)
            trace.losses.append(loss.item())
            trace.rates.append(_by_name(model, optimizer, "lr"))
            return loss

        cfg = self.cfg.clone()
        cfg.merge_from_list(["SOLVER.MAX_EPOCHS", len(epochs)])
        loop = self.modules["processor.processor"]
        with mock.patch.object(torch.cuda, "synchronize"):
            loop.do_train(
                cfg, model, center, _Loader(epochs, before_step), [], optimizer, optimizer_center, scheduler,
                loss_noted, self.queries, "cpu",
            )  # fmt: skip
        return trace

    def rank(self, features: Tensor, identities: np.ndarray, cameras: np.ndarray) -> tuple[np.ndarray, float, Tensor]:
        """CMC, mAP and the features as ranked, of features [M, D] of the query images, then the gallery's."""
        evaluator = self.modules["utils.metrics"].R1_mAP_eval(self.queries, 50, self.cfg.TEST.FEAT_NORM)
        evaluator.reset()
        evaluator.update((features, identities, cameras))
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            cmc, mean_ap, _, _, _, query, gallery = evaluator.compute()
        return cmc, float(mean_ap), torch.cat([query, gallery])

    def batches(self, identities: Sequence[int], p: int, k: int) -> list[list[int]]:
        """The batches of one epoch, as indices, drawn from the global generators of `random` and numpy."""
        source = [("", identity, 0, 0) for identity in identities]
        indices = list(self.modules["datasets.sampler"].RandomIdentitySampler(source, p * k, k))
        return [indices[start : start + p * k] for start in range(0, len(indices), p * k)]

    def _optimizer(self, model: nn.Module, center: nn.Module | None = None) -> Any:
        return self.modules["solver.make_optimizer"].make_optimizer(self.cfg, model, center or nn.Linear(1, 1))


def peer_name(name: str) -> str:
    """The peer's name of a parameter or buffer of our learner."""
    for ours, theirs in (("backbone.model.", "base."), ("neck.norm.", "bottleneck."), ("neck.", "")):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def _by_name(model: nn.Module, optimizer: torch.optim.Optimizer, key: str) -> Values:
    """`key` of each trained parameter; the peer makes a group of each."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {name: group[key] for name, group in zip(names, optimizer.param_groups, strict=True)}


class _Stays:
    """A tensor that is on the CPU and stays there: the peer's loop moves its batches to "cuda"."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def to(self, device: str) -> Tensor:
        return self.tensor


class _Loader:
    """Images, identities, cameras and views, as the peer's loop wants them; the baseline ignores the last two."""

    def __init__(self, epochs: Sequence[Sequence[Batch]], before_step: Callable[[int], None]) -> None:
        self.epochs, self.before_step, self.step = iter(epochs), before_step, 0
        self.batch_size = len(epochs[0][0][1])

    def __iter__(self) -> Iterator[tuple[_Stays, ...]]:
        for images, identities in next(self.epochs):
            self.step += 1
            self.before_step(self.step)
            none = torch.zeros_like(identities)
            yield tuple(_Stays(tensor) for tensor in (normalised(images, [PIXELS], [PIXELS]), identities, none, none))


def _import(checkout: Path) -> dict[str, Any]:
    """The peer's modules by name, with stand-ins where its code asks for a GPU."""
    names = (
        "config", "datasets.make_dataloader", "datasets.market1501", "datasets.sampler", "loss.make_loss",
        "model.make_model", "model.backbones.vit_pytorch", "processor.processor",
        "solver.make_optimizer", "solver.scheduler_factory", "utils.metrics",
    )  # fmt: skip
    # torch had this module up to 1.12.
    six = ModuleType("torch._six")
    six.container_abcs = collections.abc  # type: ignore[attr-defined]
    with importing(checkout, CONFIG, "damo-cv/TransReID", ROOMS, {"torch._six": six}):
        modules: dict[str, Any] = {name: importlib.import_module(name) for name in names}
    # The center loss, which the baseline makes and does not use, goes to the GPU unless told otherwise.
    center = modules["loss.make_loss"].CenterLoss
    modules["loss.make_loss"].CenterLoss = lambda **options: center(**{**options, "use_gpu": False})
    # fp16 on a GPU becomes fp32 on a CPU.
    modules["processor.processor"].amp = SimpleNamespace(
        autocast=lambda enabled: nullcontext(), GradScaler=lambda: torch.amp.GradScaler("cpu", enabled=False)
    )
    return modules
