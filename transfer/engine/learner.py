"""What `fit` trains: a method is one `forward` that returns its loss; the loop knows nothing else."""

from typing import Any

import torch
from torch import Tensor, nn

from transfer.core.errors import UsageError
from transfer.data.loading.images import Boxed, erased, to_floats
from transfer.engine.optim import parameter_groups
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Signs

Batch = Any


class Learner(nn.Module):
    """Base of training methods. Subclasses give `forward(batch, step) -> {"loss": [], ...}`.

    `forward` is a pure function of (batch, step, random numbers) but for buffers, so that an optimizer may call it
    twice; buffers keep what the first call left. Further entries of its result are scalars for the history; `spread`
    (see `feature_spread`) lets a collapse be seen.

    Attributes:
        one_size: whether the images of all batches have the same few sizes.
        layered: the name of the backbone within whose layers layer decay counts; empty: it is an error.
    """

    one_size = True
    layered = ""

    def prepare(self, batch: Batch, device: torch.device) -> Batch:
        """Return a batch of the loader (tensors, or tuples of them) on `device`, with images as floats in [0, 1]."""
        if isinstance(batch, Tensor):
            return to_floats(batch.to(device, non_blocking=True))
        if isinstance(batch, Boxed):
            pixels, noise = (part.to(device, non_blocking=True) for part in (batch.pixels, batch.noise))
            return erased(to_floats(pixels), batch.boxes, noise)
        return type(batch)(Learner.prepare(self, part, device) for part in batch)

    def split(self, batch: Batch, parts: int) -> list[Batch]:
        """Return a batch as `parts` micro-batches, cut along the first dimension."""
        if isinstance(batch, Tensor):
            return list(batch.chunk(parts))
        split = [self.split(part, parts) for part in batch]
        return [type(batch)(pieces) for pieces in zip(*split)]

    def batch_size(self, batch: Batch) -> int:
        """Return the number of samples in a batch."""
        return len(batch) if isinstance(batch, Tensor) else self.batch_size(batch[0])

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return groups for the optimizer, with layer decay over the backbone that `layered` names."""
        backbone = self.get_submodule(self.layered) if self.layered else None
        return parameter_groups(self, options, backbone, f"{self.layered}.")

    def averages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return pairs: a part that does not train but averages another, and that other part, of the same structure."""
        return []

    @property
    def scored_backbone(self) -> nn.Module | None:
        """The backbone that is evaluated and exported, where it is not the one that trains."""
        return None

    def share_tokens(self, ranks: int) -> None:
        """Make each group of `ranks` ranks share the tokens of the same images.

        Raises:
            UsageError: this method, or its model, cannot.
        """
        raise UsageError(f"--sequence-parallel {ranks} is not supported by {type(self).__name__}")

    def signs(self) -> Signs:
        """Return what in the statistics tells whether the training lives; by default that the loss falls."""
        return Signs()

    def after_backward(self, step: int) -> None:
        """Act on the step's gradients before they are clipped, and on those that SAM moves along."""

    def after_step(self, step: int) -> None:
        """Act after the optimizer's step. What it does to buffers and untrained parameters is undone if the step is
        left out, which a GPU's host does not know yet.
        """


def feature_spread(features: Tensor) -> Tensor:
    """Return the spread of features [B, D] on the unit sphere, 1 - |mean direction|^2: 0 if all are equal, 1 at most.

    Of a single image, which has none, it is 1. As the mean squared distance from the mean direction, which it equals: a
    difference from 1 has no digits left where features are nearly parallel.
    """
    if len(features) == 1:
        return torch.ones((), device=features.device)
    directions = nn.functional.normalize(features.detach().float(), dim=1)
    return (directions - directions.mean(0)).square().sum(1).mean()
