"""What parity scripts share: their checkouts, the line for each compared quantity, and stochastic depth as in peers."""

import io
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from timm.layers import DropPath
from torch import Tensor, nn

from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.support import context
from transfer.core.errors import UserError
from transfer.core.seeding import key_seed, seed_torch, seeded
from transfer.data.loading.images import to_floats
from transfer.engine.dist import SampleDropPath
from transfer.engine.learner import Learner
from transfer.engine.options import FitOptions
from transfer.engine.schedule import Schedule
from transfer.engine.step import Stepper

Pixels = Sequence[float]
"""Of each channel."""
View = Callable[[Any], Any]


@dataclass(frozen=True)
class Check:
    """One compared quantity: the largest difference found, and the largest one allowed."""

    what: str
    difference: float
    limit: float
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the difference is within its limit; nan is not."""
        return self.difference <= self.limit


def report(made: Iterable[Check]) -> int:
    """Makes the checks, during which peers may print nothing, and prints the table; the exit status, 1 if one fails."""
    with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
        checks = [*made]
    width = max(len(check.what) for check in checks)
    print(f"{'compared':{width}}  {'difference':>10}  {'limit':>7}")
    for check in checks:
        numbers = f"{check.difference:10.2e}  {check.limit:7.0e}"
        print(f"{check.what:{width}}  {numbers}  {'ok' if check.holds else 'FAILS':5}  {check.note}".rstrip())
    return int(not all(check.holds for check in checks))


def compared_views(
    what: str, images: Iterable[Any], ours: View, theirs: View, mean: Pixels = IMAGENET_MEAN, std: Pixels = IMAGENET_STD
) -> Check:
    """Views of images, or lists of crops, made from equal seeds, as a peer's model gets them."""
    largest, number = 0.0, 0
    for number, image in enumerate(images, start=1):
        sides = []
        for view in (ours, theirs):
            with seeded(number):
                made = view(image)
            sides.append(made if isinstance(made, list) else [made])
        pairs = zip(*sides, strict=True)
        largest = max(largest, *(float((normalised(mine, mean, std) - other).abs().max()) for mine, other in pairs))
    return Check(f"images: {what}", largest, 1e-5, f"{number} draws")


def compared_rates(what: str, options: FitOptions, peak: float, theirs: Sequence[float]) -> Check:
    """The learning rates of all epochs of a recipe; infinitely far apart if there are more or fewer."""
    schedule = Schedule(options)
    ours = [schedule.rate(schedule.clock(epoch, 0, 1), peak) for epoch in range(options.epochs)]
    note = f"{len(ours)} epochs, peak {max(ours):.6f}"
    return Check(f"schedule: {what}", furthest(dict(enumerate(ours)), dict(enumerate(theirs))), 1e-7, note)


def trained(
    learner: Learner, options: FitOptions, epochs: Sequence[Sequence[Any]], *, floored: bool = False
) -> list[dict[str, float]]:
    """The statistics of our steps on the batches of each epoch, by names.

    Args:
        floored: stochastic depth, which draws from torch's generator as in timm and not by sample, takes the floor of a
            uniform number, as in older code.
    """
    stepper, found = Stepper(learner, options, context()), list[dict[str, float]]()

    def drawn(x: Tensor, share: float) -> Tensor:
        return x.copy_((share + torch.rand(x.shape)).floor_())

    with (
        mock.patch.object(SampleDropPath, "forward", DropPath.forward),
        mock.patch.object(Tensor, "bernoulli_", drawn if floored else Tensor.bernoulli_),
    ):
        for epoch, batches in enumerate(epochs):
            for index, batch in enumerate(batches):
                stepper.model.train()
                moment = stepper.schedule.clock(epoch, index, len(batches))
                stats, _, _ = stepper.step(len(found) + 1, moment, batch, len(batches)).read()
                decay = max(group["weight_decay"] for group in stepper.optimizer.param_groups)
                found.append({**stats, "decay": decay})
    return found


class Noted:
    """A peer's loss, which notes its value, and the rate and weight decay of the first group, at each call."""

    def __init__(self, criterion: Callable[..., Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.criterion, self.optimizer, self.steps = criterion, optimizer, list[dict[str, float]]()

    def __call__(self, *given: Any) -> Tensor:
        loss, group = self.criterion(*given), self.optimizer.param_groups[0]
        self.steps.append({"loss": loss.item(), "lr": float(group["lr"]), "decay": group["weight_decay"]})
        return loss

    def compared(self, title: str, ours: Sequence[Mapping[str, float]], *names: str) -> Iterator[Check]:
        """The largest differences from our steps, of all of them or of some."""
        pairs = [*zip(self.steps, ours, strict=True)]
        for name in names or self.steps[0]:
            difference, (first, last) = max(abs(a[name] - b[name]) for a, b in pairs), (ours[0][name], ours[-1][name])
            limit = 1e-4 if name == "loss" else 1e-7
            yield Check(f"{title}: {name} of {len(pairs)} steps", difference, limit, f"{first:.4g} to {last:.4g}")


class Batches:
    """Batches for a peer's loop, of one epoch after the other; each step is seeded as ours when its batch is asked for.

    Args:
        epochs: batches of each.
    """

    def __init__(self, epochs: Sequence[Sequence[Any]]) -> None:
        self.epochs, self.step, self.length = iter(epochs), 0, len(epochs[0])
        self.batch_size = len(epochs[0][0][1])

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for batch in next(self.epochs):
            self.step += 1
            seed_torch(0, self.step, 0, 0)  # seed, step, micro-batch, rank
            np.random.seed(key_seed(torch.initial_seed()) % 2**32)  # noqa: NPY002 (timm's mixup draws from it)
            yield batch


def by_parameter(model: nn.Module, groups: Iterable[dict[str, Any]], key: str) -> dict[str, float]:
    """What an optimizer's groups say of every parameter."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[parameter]: group[key] for group in groups for parameter in group["params"]}


def normalised(images: Tensor, mean: Pixels = IMAGENET_MEAN, std: Pixels = IMAGENET_STD) -> Tensor:
    """Images, as bytes or in [0, 1], as a peer's model gets them; our backbone normalises inside."""
    return (to_floats(images) - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


def furthest(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The largest difference of numbers or tensors; infinite if names differ."""
    if ours.keys() != theirs.keys():
        return math.inf
    return max(float(torch.as_tensor(ours[name] - theirs[name]).abs().max()) for name in ours)


@contextmanager
def importing(
    checkout: Path, file: str, repository: str, rooms: Collection[str], stand_ins: Mapping[str, Mapping[str, Any]]
) -> Iterator[None]:
    """A peer's modules can be imported within. Their names, which others bear too, are free again afterwards.

    Args:
        file: what tells a checkout of the repository, on github.com.
        rooms: the names at the top of the peer's modules.
        stand_ins: modules with their content for what they import and do not use here, or what is there no more.

    Raises:
        UserError: this is no such checkout, or a package that the peer imports is missing.
    """
    if not (checkout / file).is_file():
        raise UserError(f"{checkout}: no {file} there; give a checkout of github.com/{repository}")

    def take() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in rooms}

    before = take()
    for name, content in stand_ins.items():
        parent, _, child = name.rpartition(".")
        vars(module := ModuleType(name)).update(content)
        sys.modules[name] = module
        if parent in stand_ins:
            setattr(sys.modules[parent], child, module)
    sys.path.insert(0, folder := str(checkout.resolve()))
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except ModuleNotFoundError as error:
        raise UserError(f"{checkout} imports {error.name}: pip install {error.name}") from None
    finally:
        sys.path.remove(folder)
        for name in stand_ins:
            del sys.modules[name]
        take()
        sys.modules.update(before)
