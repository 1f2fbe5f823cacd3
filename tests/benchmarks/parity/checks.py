"""What parity scripts share: their checkouts, the line for each compared quantity, and stochastic depth as in peers."""

import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from timm.layers import DropPath
from torch import Tensor

from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from transfer.core.errors import UserError
from transfer.data.loading.images import to_floats
from transfer.engine.dist import SampleDropPath


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


def report(checks: Sequence[Check]) -> int:
    """Prints the table; the exit status, 1 if any check fails."""
    width = max(len(check.what) for check in checks)
    print(f"{'compared':{width}}  {'difference':>10}  {'limit':>7}")
    for check in checks:
        numbers = f"{check.difference:10.2e}  {check.limit:7.0e}"
        print(f"{check.what:{width}}  {numbers}  {'ok' if check.holds else 'FAILS':5}  {check.note}".rstrip())
    return int(not all(check.holds for check in checks))


@contextmanager
def draws_of_torch(*, floored: bool = False) -> Iterator[None]:
    """Let stochastic depth draw from torch's generator within, as timm does, and not by sample.

    Args:
        floored: let it be the floor of a uniform number, as in older code.
    """

    def drawn(x: Tensor, share: float) -> Tensor:
        return x.copy_((share + torch.rand(x.shape)).floor_())

    with (
        mock.patch.object(SampleDropPath, "forward", DropPath.forward),
        mock.patch.object(Tensor, "bernoulli_", drawn if floored else Tensor.bernoulli_),
    ):
        yield


class Batches:
    """Batches for a peer's loop; `before` is called with the number of each step when its batch is asked for."""

    def __init__(self, batches: Sequence[Any], before: Callable[[int], object], first: int = 1) -> None:
        self.batches, self.before, self.first = batches, before, first

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches, self.first):
            self.before(number)
            yield batch


def normalised(images: Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> Tensor:
    """Images, as bytes or in [0, 1], as a peer's model gets them; our backbone normalises inside."""
    return (to_floats(images) - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


def furthest(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The largest difference of numbers or tensors; infinite if names differ."""
    if ours.keys() != theirs.keys():
        return math.inf
    return max(float(torch.as_tensor(ours[name] - theirs[name]).abs().max()) for name in ours)


@contextmanager
def importing(
    checkout: Path, file: str, repository: str, rooms: Collection[str], stand_ins: Mapping[str, ModuleType]
) -> Iterator[None]:
    """A peer's modules can be imported within. Their names, which others bear too, are free again afterwards.

    Args:
        file: what tells a checkout of the repository, on github.com.
        rooms: the names at the top of the peer's modules.
        stand_ins: for what they import and do not use here, or what is there no more.

    Raises:
        UserError: this is no such checkout, or a package that the peer imports is missing.
    """
    if not (checkout / file).is_file():
        raise UserError(f"{checkout}: no {file} there; give a checkout of github.com/{repository}")

    def take() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] in rooms}

    before = take()
    sys.modules.update(stand_ins)
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
