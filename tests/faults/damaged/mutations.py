"""Changes of a file's bytes as disks, networks and editors make them, and of one value in the JSON of a record."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from backbones.settings import read_yaml
from transfer.records.checksums import with_checksum


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
    *(b"NaN", b"Infinity", b"1e308", b"-1", b"null", b"true", b"0x10", b"9" * 400, b"0x" + b"f" * 5000),
    *(b"\x00", b"\xff\xfe", b"\xc3", b"\x1b[2J", b"[" * 500, b"[" * 100_000),
    *(b'"', b"{", b"}", b"\n", b",", b": ", b"<<: ", b"&a [*a]", b"!!python/object:os.system", b"!!bool x"),
)
"""Values that readers stumble over: numbers without limit, brackets, broken UTF-8, an alias of itself, an escape."""

RAW = {
    "<nan>": "NaN",
    "<infinity>": "-Infinity",
    "<surrogate>": '"a\\ud800"',
    "<deep>": "[" * 900 + "]" * 900,
    "<very deep>": "[" * 100_000 + "]" * 100_000,
    "<digits>": "9" * 5000,
    "<hexadecimal digits>": "0x" + "f" * 5000,
    "<bool>": "!!bool maybe",
    "<no character>": '"\\U00110000"',
    "<digits of a float>": "1" + "0" * 400 + ".5",
}
"""Stand-ins of values that JSON or YAML can say but `with_checksum` cannot: text -> what stands in the file instead."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 5, 10**30, 2**63, 1e308, -1e308, 5e-324, 0.5, -0.0),
    *(
        "",
        "x",
        "NaN",
        "\x1b[31m\x07",
        "\u202egnp",
        "a\r\nb",
        "\x00",
        "<b>&",
        "=1+1",
        "../../x",
        "x" * 100_000,
        "|" * 50,
    ),
    *(
        [],
        {},
        [1],
        ["x"],
        {"a": 1},
        {"": ""},
        [[[[["x"]]]]],
        {"a": {"b": {"c": {"d": [None]}}}},
        [None] * 3,
        [{}],
        [[{"a": 1}]],
    ),
    *RAW,
)
"""What may stand in place of a value: other types, numbers without limit, empty and deep ones, long and odd texts."""


def change_file(path: Path, rng: random.Random) -> None:
    """Change the bytes of a file, or in half of all cases one value of it, where it is JSON, lines of JSON, or YAML."""
    raw = path.read_bytes()
    if path.suffix == ".jsonl" and rng.random() < 0.5:
        lines = raw.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = _with_raw_values(json.dumps(changed_once(json.loads(lines[place]), rng)[0]).encode())
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif path.suffix in (".json", ".yaml") and rng.random() < 0.5:
        content = read_yaml(path) if path.suffix == ".yaml" else json.loads(raw)
        text = json.dumps(changed_once(content, rng)[0], indent=1)
        path.write_bytes(_with_raw_values(text.encode()))
    else:
        path.write_bytes(mutated(raw, rng))


def changed_once(content: Any, rng: random.Random) -> tuple[Any, str]:
    """Return a copy with one change at a random place, and a text that says which."""
    path = _place(content, rng)
    old = _at(content, path)
    how = rng.choice(("value", "value", "value", "number", "missing", "added", "wrapped"))
    if how == "missing" and path:
        return _with(content, path, _MISSING), f"{_text(path)} is missing"
    if how == "added" and isinstance(old, dict | list):
        new = rng.choice(VALUES)
        name = rng.choice(("x", "", "name", "\x1b[31m", "x" * 300, "a/b", "0"))
        more = {**old, name: new} if isinstance(old, dict) else [*old, new]
        return _with(content, path, more), f"{_text(path)} has {new!r:.60} more"
    if how == "number" and type(old) in (int, float):
        new = rng.choice((-old, old * 1e6, old + 1, 10**40, float(old), -1, 0))
    else:
        new = {"a": old} if how == "wrapped" and rng.random() < 0.5 else [old] if how == "wrapped" else None
        new = rng.choice(VALUES) if new is None else new
    return _with(content, path, new), f"{_text(path)} is {new!r:.60}"


def sealed(content: dict[str, Any]) -> bytes:
    """Return a record's bytes with their own digest, and with the values that `RAW` stands for."""
    raw = with_checksum(content)
    body, entry, _ = raw.rpartition(b',\n "digest": "')
    body = _with_raw_values(body)
    return body + entry + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def _with_raw_values(text: bytes) -> bytes:
    for name, value in RAW.items():
        text = text.replace(f'"{name}"'.encode(), value.encode())
    return text


_MISSING = object()


def _place(content: Any, rng: random.Random) -> tuple[Any, ...]:
    """Walk down from the top, so that a long table is not drawn more often than a single entry."""
    path: tuple[Any, ...] = ()
    while isinstance(content, dict | list) and content and (not path or rng.random() < 0.75):
        key = rng.choice([*content]) if isinstance(content, dict) else rng.randrange(len(content))
        path, content = (*path, key), content[key]
    return path


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def _with(content: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = {**content} if isinstance(content, dict) else [*content]
    if len(path) == 1 and new is _MISSING:
        del copy[path[0]]
    else:
        copy[path[0]] = _with(content[path[0]], path[1:], new)
    return copy


def _text(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
