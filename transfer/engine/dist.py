"""Ranks of a `torchrun` job: who am I, features of all, batch norm over all. One process is a world of one.

And stochastic depth (arXiv 1603.09382) whose draws are a function of the sample, so that the ranks which share a batch
drop what one process would. Shapes: B samples of a micro-batch on this rank, M layers.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from timm.layers import BatchNormAct2d, DropPath, convert_sync_batchnorm
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from transfer.core.process import Ranks, usable_cores
from transfer.core.seeding import key_seed

T = TypeVar("T")
LONGEST = timedelta(days=1)
"""How long a rank waits for the others: while the first one ranks or waits for a lock, torch's ten minutes may pass."""


def start(ranks: Ranks, device: torch.device) -> None:
    """Join the distributed job: nccl between GPUs; gloo between CPUs, and for all objects."""
    if ranks.world > 1 and not dist.is_initialized():
        on_gpu = device.type == "cuda"
        backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=LONGEST, device_id=device if on_gpu else None)


def stop() -> None:
    """Leave the distributed job."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world_size() -> int:
    """Return the number of ranks; 1 outside a distributed job."""
    return dist.get_world_size() if dist.is_initialized() else 1


def broadcast_object(value: Any) -> Any:
    """Return rank 0's value, on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def by_first(compute: Callable[[], T]) -> T:
    """Return on every rank what rank 0 computes, with all cores, as one process would, while the others wait."""
    if world_size() == 1:
        return compute()
    value, threads = None, torch.get_num_threads()
    if dist.get_rank() == 0:
        torch.set_num_threads(max(threads, usable_cores()))
        value = compute()
        torch.set_num_threads(threads)
    return cast(T, broadcast_object(value))


def broadcast_tensors(tensors: Iterable[Tensor]) -> None:
    """Copy rank 0's values into the tensors of every rank."""
    if world_size() > 1:
        for tensor in tensors:
            dist.broadcast(tensor, src=0)


def gather_objects(value: Any) -> list[Any]:
    """Return the values of all ranks in their order, on every rank."""
    if world_size() == 1:
        return [value]
    box: list[Any] = [None] * world_size()
    dist.all_gather_object(box, value)
    return box


def mean_over_ranks(values: Tensor) -> Tensor:
    """Return the mean of a tensor over the ranks; nan where any rank has one."""
    if world_size() > 1:
        dist.all_reduce(values)
        values /= world_size()
    return values


def max_over_ranks(values: Tensor) -> Tensor:
    """Return the maximum of each value over the ranks."""
    if world_size() > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows [world * B, ...] of all ranks, given [B, ...] of this one; differentiable.

    Every rank computes the same loss from them, so the backward sums over ranks. With DDP's mean over ranks, such a
    loss gives each parameter the gradient one process would.
    """
    if world_size() == 1:
        return rows
    parts = [torch.zeros_like(rows)] * world_size()
    parts[dist.get_rank()] = rows
    return cast(Tensor, all_reduce(torch.cat(parts)))


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch norm over the batch of all ranks, on any device: that of the gathered rows, of which each keeps its own.

    It stands before a batch norm's own class, whose computation it keeps.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        """Take any shape."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised rows [B, C, ...] of this rank."""
        if not self.training or world_size() == 1:
            return super().forward(input)
        # no chunk, whose views may not be changed in place
        return super().forward(gather_rows(input)).narrow(0, dist.get_rank() * len(input), len(input))


def synchronise_batch_norm(module: nn.Module, device: torch.device) -> None:
    """Make every batch norm in `module` one over all ranks; parameters, buffers and names stay.

    A norm with an attribute `sees_all_ranks` gets gathered rows and is left alone. Torch's own, which communicates
    less, takes no tensors of CPUs.
    """
    for name, child in module.named_children():
        if not isinstance(child, nn.modules.batchnorm._BatchNorm):
            synchronise_batch_norm(child, device)
        elif not hasattr(child, "sees_all_ranks") and not isinstance(child, nn.SyncBatchNorm):
            kind = type(child)
            known = isinstance(child, BatchNormAct2d) or kind.forward is nn.modules.batchnorm._BatchNorm.forward
            if device.type == "cuda" and known:
                setattr(module, name, convert_sync_batchnorm(child))
            else:
                child.__class__ = type(SyncBatchNorm.__name__, (SyncBatchNorm, kind), {})


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
        self.drawn: dict[tuple[Any, ...], Tensor] = {}  # factors of all layers, by rows, dimensions, type and pass
        self.shapes: dict[tuple[int, int], dict[torch.Size, int]] = {}  # that each layer has seen, by rows

    def replace_layers(self, model: nn.Module) -> None:
        """Make every `DropPath` in a model draw from here."""
        layers = list[SampleDropPath]()
        for parent in [*model.modules()]:
            for name, child in parent.named_children():
                if type(child) in (DropPath, SampleDropPath):
                    layers.append(SampleDropPath(cast(DropPath, child), self, len(layers)))
                    setattr(parent, name, layers[-1])
        self.keys = self.keys.new_zeros(len(layers))
        # of each layer: from which number on a sample is kept, and what its values are divided by, [M, 1]
        self.least = self.keys.new_tensor([[int(layer.drop_prob * LARGEST)] for layer in layers])
        shares = [[(1 - layer.drop_prob) or 1.0 if layer.scale_by_keep else 1.0] for layer in layers]
        self.shares = self.keys.new_tensor(shares, dtype=torch.float64)

    def begin(self, samples: int, *key: int) -> None:
        """Begin a micro-batch of B samples on each rank, whose numbers depend on the key."""
        self.samples = samples
        self.drawn.clear()
        self.shapes.clear()
        chance = torch.Generator().manual_seed(key_seed(*key))
        # in place, so that compiled code sees it
        self.keys.copy_(torch.randint(LARGEST + 1, self.keys.shape, generator=chance), non_blocking=True)

    def factors(self, layer: int, x: Tensor) -> Tensor:
        """Return what the rows of a layer's input are multiplied by, [rows, 1, ...] in its type: 0, or 1 / share kept.

        There are B rows, or B for each crop. All layers are drawn at once: few operations in a step. Inputs of another
        shape are those of another pass, as of local crops after global ones, which draws its own.
        """
        shapes = self.shapes.setdefault((layer, rows := len(x)), {})
        number = shapes.setdefault(x.shape, len(shapes))
        form = rows, x.ndim, x.dtype, number
        if form not in self.drawn:
            place = torch.arange(rows, device=self.keys.device)
            crop = place // self.samples
            # in the batch of all ranks
            place = place + (crop * (self.ranks.world - 1) + self.ranks.rank) * self.samples
            # the number of crops has a part in it, and of as many crops the pass
            keys = self.keys[:, None] + (rows // self.samples + (number << 16)) * 0x9E3779B9 & LARGEST
            wide = torch.promote_types(x.dtype, torch.float32)
            factors = (_hash(place ^ keys) >= self.least).to(wide) / self.shares.to(wide)
            self.drawn[form] = factors.to(x.dtype).view(-1, rows, *[1] * (x.ndim - 1))
        return self.drawn[form][layer]


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
        return x * self.draws.factors(self.number, x) if self.training and self.drop_prob else x
