"""Which rank of a `torchrun` job this process is. One process is a world of one."""

import os
from dataclasses import dataclass
from typing import Any

from backbones.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """This process's rank in a distributed job, and the sizes of the job and its groups."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    token_ranks: int = 1
    """How many neighbouring ranks share the tokens of the same images (`--sequence-parallel`)."""

    @property
    def data(self) -> "Ranks":
        """The ranks with those that see the same images counted as one."""
        return Ranks(self.rank // self.token_ranks, self.world // self.token_ranks)

    @property
    def first(self) -> bool:
        """Whether this rank writes files and tables."""
        return self.rank == 0


ALONE = Ranks()


def ranks_from_environment(token_ranks: int = 1) -> Ranks:
    """Return what `torchrun` sets in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; a world of one without it.

    Raises:
        UsageError: groups of `token_ranks` ranks would leave some over.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [int(os.environ.get(name, default)) for name, default in zip(names, ("0", "1", "0", "1"))]
    if values[1] % token_ranks:
        raise UsageError(
            f"--sequence-parallel {token_ranks}: {values[1]} ranks do not make groups of {token_ranks}; start a "
            f"multiple of it with torchrun --nproc-per-node {token_ranks} -m transfer..."
        )
    rank, world, local_rank, local_world = values
    return Ranks(rank, world, local_rank, local_world, token_ranks)


def part_of_rank(items: list[Any], ranks: Ranks) -> list[Any]:
    """Return the contiguous part of a global list that belongs to this rank; parts differ by one at most."""
    bounds = [len(items) * r // ranks.world for r in (ranks.rank, ranks.rank + 1)]
    return items[bounds[0] : bounds[1]]
