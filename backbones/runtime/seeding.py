"""Random numbers as functions of what they are for: the same key gives the same draw on any worker, rank or restart."""

import hashlib

import torch


def key_seed(*key: int) -> int:
    """Return a 63-bit seed from integers such as (seed, epoch, sample)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_torch(*key: int) -> None:
    """Seed torch's generators, CPU and GPU."""
    torch.manual_seed(key_seed(*key))
