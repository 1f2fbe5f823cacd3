"""Changes of a file's bytes as disks, networks and editors make them."""

import random


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content cut, or with one to three changes; it differs from what it was, unless it is empty."""
    changed = content
    while changed == content and content:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = rng.choice(CHANGES)(changed, rng)
    return changed


def _flipped(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _with_a_piece(content: bytes, rng: random.Random) -> bytes:
    """Return the content with a piece that is missing, stands there twice, is zero, or garbage."""
    first = rng.randrange(len(content) + 1)
    last = min(len(content), first + rng.choice((1, 2, 8, 64, 512, 4096)))
    piece = content[first:last]
    new = rng.choice((b"", 2 * piece, bytes(len(piece)), rng.randbytes(len(piece)), rng.choice(WORDS) + piece))
    return content[:first] + new + content[last:]


CHANGES = (_flipped, _flipped, _cut, _cut, _with_a_piece, _with_a_piece)
WORDS = (b"NaN", b"Infinity", b"-1", b"null", b"true", b"\x00", b"\xff\xfe", b'"', b"{", b"}", b"\n", b",", b": ")
"""What editors leave, and values that readers stumble over."""
