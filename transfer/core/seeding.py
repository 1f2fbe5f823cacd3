"""Random numbers as functions of what they are for: the same key gives the same draw on any worker, rank or restart."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

_restored_outside = False
"""Whether the innermost block open is one of `restored_generators`."""


def key_seed(*key: int) -> int:
    """Return a 63-bit seed from integers such as (seed, epoch, sample)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_torch(*key: int) -> None:
    """Seed torch's generators, CPU and GPU.

    `torch.manual_seed` writes down the stack for each kind of device that is not in use: a millisecond.
    """
    seed = key_seed(*key)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed `random`, numpy's global generator and torch's CPU generator from the integers, and restore them on exit.

    Library transforms draw from these three; inside, what they draw depends on `key` alone, in a worker or not.
    Directly within a block of `restored_generators` nothing is restored: that takes as long as a small image itself.
    """
    global _restored_outside
    with nullcontext() if _restored_outside else restored_generators():
        outside, _restored_outside = _restored_outside, False
        seed = key_seed(*key)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            _restored_outside = outside


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore on exit the generators that `seeded` seeds, once for all its blocks within this one."""
    global _restored_outside
    outside, _restored_outside = _restored_outside, True
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        _restored_outside = outside
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(cpu)
