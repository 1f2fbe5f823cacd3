"""What several test files need: options, contexts, a small learner, signals in its training."""

import contextlib
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from transfer.cli.command import Command, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe import method_of, pretraining_recipe, task_recipe
from transfer.core.settings import config_names
from transfer.data.loading.loader import RunLoader, shuffled_batches
from transfer.engine.context import Context
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.options import FitOptions
from transfer.engine.step import Stepper
from transfer.task import load_task

PLAIN = {
    "epochs": 3, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "bias_lr_factor": 1.0,
    "no_decay": (), "layer_decay": 1.0, "schedule": "step", "schedule_offset": 0, "warmup_epochs": 0.0,
    "warmup_prefix": False, "warmup_lr": None, "warmup_lr_factor": 0.0, "min_lr": None, "min_lr_factor": 0.0,
    "cooldown_epochs": 0.0, "milestones": None,
    "clip_grad": None, "grad_accum_steps": 1, "precision": "fp32", "eval_precision": "fp32", "sync_bn": False,
    "stop_early": False,
    "trainable": ("*",), "decay_norm": False, "decay_scale": "rate", "weight_decay_end": None,
    "warmup_inclusive": False, "clip_grad_per_param": False, "sam": "none", "sam_rho": 0.05,
    "sam_sync": False, "compile": False,
}  # fmt: skip


def fit_options(**given: Any) -> FitOptions:
    """Options of a short plain SGD run, with some replaced."""
    return FitOptions(**{**PLAIN, **given})


def command(name: str, *words: str) -> Command:
    """A command of a shipped task or recipe, with what its words say."""
    if name in config_names("tasks"):
        return read_command(task_recipe(name), load_task(name).options, [*words])
    recipe = pretraining_recipe(name)
    return read_command(recipe, load_task(method_of(recipe)).options, [*words], PretrainRunOptions)


def context(folder: Path | None = None, **given: Any) -> Context:
    """A run on the CPU in fp32."""
    return Context(**{"device": torch.device("cpu"), "precision": "fp32", "folder": folder, "run_key": "run", **given})


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Two noisy classes in the plane; the noise is a function of the key, as augmentation is."""

    def __init__(self, size: int = 24):
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        label = key[1] % 2
        noise = torch.Generator().manual_seed(hash(key) % 2**31)
        return torch.randn(2, generator=noise) + 4 * label - 2, torch.tensor(label)


class Classifier(Learner):
    """A small net with batch norm and dropout, so that buffers and random numbers count."""

    def __init__(self, dropout: float = 0.2):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(8, 2)

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        points, labels = batch
        features = self.body(points)
        loss = nn.functional.cross_entropy(self.head(features).float(), labels)
        return {"loss": loss, "spread": feature_spread(features)}


def loader(size: int = 24, batch: int = 8, **given: Any) -> RunLoader:
    """Shuffled batches of `Points`."""
    order = partial(shuffled_batches, size, batch, seed=0, drop_last=True)
    return RunLoader(Points(size), lambda epoch: order(epoch=epoch), **given)


@contextlib.contextmanager
def stopped_after(step: int) -> Iterator[None]:
    """Within it, a signal reaches every training in its step of this number."""
    real = Stepper.step

    def stopping(self: Stepper, number: int, *given: Any, **named: Any) -> Any:
        if number == step:
            self.context.stop_signal = signal.SIGTERM
        return real(self, number, *given, **named)

    Stepper.step = stopping  # type: ignore[method-assign]
    try:
        yield
    finally:
        Stepper.step = real  # type: ignore[method-assign]


def tensors(state: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors(value)
