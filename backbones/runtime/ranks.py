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
_FIX = "for one process `unset WORLD_SIZE RANK LOCAL_RANK`, for several start with torchrun"


def ranks_from_environment(token_ranks: int = 1) -> Ranks:
    """Return what `torchrun` sets in RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.

    Without WORLD_SIZE, or with 1, this is a world of one, whatever else a cluster has left in the environment. Empty
    variables count as unset.

    Raises:
        UsageError: variables that describe no job, or groups of `token_ranks` ranks that would leave some over.
    """
    world = _number("WORLD_SIZE", 1)
    if world % token_ranks:
        raise UsageError(
            f"--sequence-parallel {token_ranks}: {world} ranks do not make groups of {token_ranks}; start a "
            f"multiple of it with torchrun --nproc-per-node {token_ranks} -m transfer..."
        )
    if world == 1:
        return Ranks()
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UsageError(f"WORLD_SIZE={world}, but not {', '.join(missing)}, is set; {_FIX}")
    rank = _number("RANK", 0, below=world)
    return Ranks(rank, world, _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1), token_ranks)


def _number(name: str, default: int, below: int | None = None) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or (below is not None and int(text) >= below) or (name.endswith("SIZE") and not int(text)):
        raise UsageError(f"the environment variable {name}={text} describes no distributed job; {_FIX}")
    return int(text)


def part_of_rank(items: list[Any], ranks: Ranks) -> list[Any]:
    """Return the contiguous part of a global list that belongs to this rank; parts differ by one at most."""
    bounds = [len(items) * r // ranks.world for r in (ranks.rank, ranks.rank + 1)]
    return items[bounds[0] : bounds[1]]
