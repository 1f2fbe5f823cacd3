"""Stochastic depth (arXiv 1603.09382) whose draws are a function of the sample, so that the ranks which share a batch
drop what one process would.

Shapes: B samples of a micro-batch on this rank, M layers.
"""

import torch
from timm.layers import DropPath
from torch import Tensor, nn

from transfer.core.process import Ranks
from transfer.core.seeding import key_seed

LARGEST = 2**32 - 1


class Draws:
    """The random numbers of all layers of a model: hashes of a layer's key in a micro-batch and a sample's place.

    No generator moves, so a pass that is repeated (SAM, a recomputed block, a resumed run) draws the same again.

    Args:
        ranks: those that see different images.
        device: of the model.
    """

    def __init__(self, ranks: Ranks, device: torch.device):
        self.ranks, self.samples = ranks, 1
        self.keys = torch.zeros(0, dtype=torch.int64, device=device)

    def replace_layers(self, model: nn.Module) -> None:
        """Make every `DropPath` in a model draw from here."""
        places = [
            (parent, name)
            for parent in model.modules()
            for name, child in parent.named_children()
            if type(child) in (DropPath, SampleDropPath)
        ]
        for number, (parent, name) in enumerate(places):
            setattr(parent, name, SampleDropPath(getattr(parent, name), self, number))
        self.keys = self.keys.new_zeros(len(places))

    def begin(self, samples: int, *key: int) -> None:
        """Begin a micro-batch of B samples on each rank, whose numbers depend on the key."""
        self.samples = samples
        generator = torch.Generator().manual_seed(key_seed(*key))
        keys = torch.randint(LARGEST + 1, self.keys.shape, generator=generator)
        self.keys.copy_(keys, non_blocking=True)  # in place, so that compiled code sees it

    def integers(self, layer: int, rows: int) -> Tensor:
        """Return uniform integers [rows] from 0 to `LARGEST` for the rows of a layer's input: B, or B for each crop."""
        place = torch.arange(rows, device=self.keys.device)
        crop = place // self.samples
        place = place + (crop * (self.ranks.world - 1) + self.ranks.rank) * self.samples  # in the batch of all ranks
        # the key and the number of crops, as local and global ones pass one after the other
        return _hash(place ^ (self.keys[layer] + rows // self.samples * 0x9E3779B9 & LARGEST))


def _hash(x: Tensor) -> Tensor:
    """Return a 32-bit hash of 32-bit integers, all as int64 ("lowbias32" of github.com/skeeto/hash-prospector)."""
    x = (x ^ x >> 16) * 0x7FEB352D & LARGEST
    x = (x ^ x >> 15) * 0x846CA68B & LARGEST
    return x ^ x >> 16


class SampleDropPath(DropPath):
    """timm's layer, with the numbers of `Draws`."""

    def __init__(self, layer: DropPath, draws: Draws, number: int):
        super().__init__(layer.drop_prob, layer.scale_by_keep)
        self.draws, self.number = draws, number

    def forward(self, x: Tensor) -> Tensor:
        """Set the rows [B, ...] of a share `drop_prob` of the samples to 0, and scale the others up."""
        if not self.training or not self.drop_prob:
            return x
        kept = (self.draws.integers(self.number, len(x)) >= int(self.drop_prob * LARGEST)).to(x.dtype)
        if self.scale_by_keep and self.drop_prob < 1:
            kept = kept / (1 - self.drop_prob)
        return x * kept.view(-1, *[1] * (x.ndim - 1))
