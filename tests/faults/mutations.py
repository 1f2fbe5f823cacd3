"""Changes of a file's bytes as disks, networks and editors make them."""

import random


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one to three changes, each drawn; it differs from what it was, unless it is empty."""
    changed = content
    while changed == content and content:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = rng.choice(CHANGES)(changed, rng)
    return changed


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return content
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _without_a_piece(content: bytes, rng: random.Random) -> bytes:
    first, last = _piece(content, rng)
    return content[:first] + content[last:]


def _piece_twice(content: bytes, rng: random.Random) -> bytes:
    first, last = _piece(content, rng)
    return content[:last] + content[first:]


def _zeros(content: bytes, rng: random.Random) -> bytes:
    first, last = _piece(content, rng)
    return content[:first] + bytes(last - first) + content[last:]


def _garbage(content: bytes, rng: random.Random) -> bytes:
    first, last = _piece(content, rng)
    return content[:first] + rng.randbytes(last - first) + content[last:]


def _word(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(WORDS) + content[place:]


def _piece(content: bytes, rng: random.Random) -> tuple[int, int]:
    first = rng.randrange(len(content) + 1)
    return first, min(len(content), first + rng.choice((1, 2, 8, 64, 512, 4096)))


CHANGES = (_flip, _flip, _cut, _without_a_piece, _piece_twice, _zeros, _garbage, _word)
WORDS = (
    *(b"NaN", b"Infinity", b"1e308", b"-1", b"null", b"true", b"9" * 400, b"0x10", b"\x00", b"\xff\xfe", b"\xc3"),
    *(b'"', b"{", b"[" * 500, b"}", b"\n", b",", b": ", b"&a [*a]", b"!!python/object:os.system", b"<<: ", b"\x1b[2J"),
)
"""Values that readers stumble over: numbers without limit, brackets, broken UTF-8, an alias of itself, an escape."""
