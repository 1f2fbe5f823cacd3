"""A file in COCO's format read entry by entry: its millions of objects never exist at once."""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backbones.errors import UserError

HINT = "extract the archive again, or write the file anew"
_DECODER = json.JSONDecoder()
PIECE = 2**15
"""Bytes that are parsed at once."""
_first_key = re.compile(rb'\s*\{\s*"(\w+)"\s*:\s*').match
_next_key = re.compile(rb'\s*,\s*"(\w+)"\s*:\s*').match
_ends = re.compile(rb"\s*\}\s*\Z").match
_cut = re.compile(rb"\}\s*,\s*(?=\{)").search
_list_is_empty = re.compile(rb"\s*\]").match
_list_ends = re.compile(rb"\}\s*\](?=\s*[,\}])").finditer
_skip_spaces = re.compile(r"[ \t\n\r]*").match


def read_content(file: Path) -> bytes:
    """Return the bytes of a file. Raises UserError."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; fix the file or its permissions") from None


Pieces = Iterator[list[Any]]
"""The entries of a list, some of them at a time."""


def iterate_tables(file: Path, content: bytes, *, fast: bool = False) -> Iterator[tuple[str, Pieces | None]]:
    """Yield the keys of the object that a JSON text is, each with the entries of its list, or None for another value.

    The entries of a list have to be taken before the next key. A list of a million entries costs the memory of a piece.

    Args:
        file: its name, for messages.
        content: the text.
        fast: parse many entries at once with orjson, in a fifth of the time.

    Raises:
        UserError: the text is not JSON, or a key stands twice.
        Unsure: `fast` did not get through, which says nothing about the text.
    """
    if fast:
        yield from _fast_members(content)
        return
    with _errors_name(file):
        text = content.decode(json.detect_encoding(content))
        yield from _members(file, text)


@contextmanager
def _errors_name(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); {HINT}") from None


class Unsure(Exception):
    """The fast way did not get through a text."""


def _fast_members(content: bytes) -> Iterator[tuple[str, Pieces | None]]:
    """Yield what `_members` does.

    A list of objects is cut between two of them wherever a piece between cuts is JSON of its own: a cut within an
    object or a text leaves a piece with brackets or quotes that do not match.
    """
    match, seen = _first_key(content, 0), set[bytes]()
    while match:
        key = match[1]
        if key in seen:
            raise Unsure
        seen.add(key)
        if content[match.end() : match.end() + 1] == b"[":
            entries = _FastEntries(content, match.end() + 1)
            yield key.decode(), entries
            for _ in entries:
                pass
            place = entries.place
        else:
            place = match.end() + _length_of_value(content[match.end() : match.end() + PIECE])
            yield key.decode(), None
        match = _next_key(content, place)
        if not match and not _ends(content, place):
            raise Unsure
    if not seen:
        raise Unsure


def _length_of_value(content: bytes) -> int:
    """Return the bytes of the value that a text begins with; the text may end within a letter."""
    try:
        text = getincrementaldecoder("utf-8")().decode(content)
        return len(text[: _value(text, 0)[1]].encode())
    except (ValueError, RecursionError):
        raise Unsure from None


class _FastEntries(Iterator[list[Any]]):
    """The entries of the list of objects that begins before `place`; `place` is behind it once they are exhausted."""

    def __init__(self, content: bytes, place: int) -> None:
        self.content, self.place, self.ended = content, place, False

    def __next__(self) -> list[Any]:
        """Return the next entries, and move behind them."""
        if self.ended:
            raise StopIteration
        if empty := _list_is_empty(self.content, self.place):
            self.place, self.ended = empty.end(), True
            return []
        cut = _cut(self.content, self.place + PIECE)
        entries = self._parsed(cut.start() + 1) if cut else None
        if cut and entries is not None:
            self.place = cut.end()
            return entries
        for end in _list_ends(self.content, self.place):
            entries = self._parsed(end.end() - 1)
            if entries is not None:
                self.place, self.ended = end.end(), True
                return entries
        raise Unsure

    def _parsed(self, end: int) -> list[Any] | None:
        import orjson

        try:
            entries: list[Any] = orjson.loads(b"[" + self.content[self.place : end] + b"]")
        except ValueError:
            return None
        return entries


class _Entries(Iterator[list[Any]]):
    """The entries of the list that begins at `place`; `place` is behind the list once they are exhausted."""

    def __init__(self, file: Path, text: str, place: int) -> None:
        self.file, self.text, self.place, self.ended = file, text, _after(text, place + 1), False
        if text[self.place : self.place + 1] == "]":
            self.place, self.ended = self.place + 1, True

    def __next__(self) -> list[Any]:
        if self.ended:
            raise StopIteration
        entries, limit = [], self.place + PIECE
        with _errors_name(self.file):
            while not self.ended and self.place < limit:
                entries.append(self._entry())
        return entries

    def _entry(self) -> Any:
        entry, place = _value(self.text, self.place)
        self.place = _after(self.text, place)
        separator = self.text[self.place : self.place + 1]
        if separator not in (",", "]"):
            raise json.JSONDecodeError("Expecting ',' delimiter", self.text, self.place)
        self.ended = separator == "]"
        self.place = self.place + 1 if self.ended else _after(self.text, self.place + 1)
        return entry


def _members(file: Path, text: str) -> Iterator[tuple[str, Pieces | None]]:
    place = _after(text, 0)
    if text[place : place + 1] != "{":
        _value(text, place)  # raises the error of a text that is not JSON
        return
    place = _after(text, place + 1)
    seen: set[str] = set()
    while text[place : place + 1] == '"':
        key, place = _value(text, place)
        if key in seen:
            raise ValueError(f"the key {key!r:.80} stands twice")
        seen.add(key)
        place = _after(text, place)
        if text[place : place + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, place)
        place = _after(text, place + 1)
        if text[place : place + 1] == "[":
            entries = _Entries(file, text, place)
            yield key, entries
            for _ in entries:  # a list that nobody wanted is passed over
                pass
            place = entries.place
        else:
            place = _value(text, place)[1]
            yield key, None
        place = _after(text, place)
        if text[place : place + 1] != ",":
            break
        place = _after(text, place + 1)
        if text[place : place + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, place)
    if text[place : place + 1] != "}":
        raise json.JSONDecodeError("Expecting ',' delimiter or '}'", text, place)
    if (place := _after(text, place + 1)) != len(text):
        raise json.JSONDecodeError("Extra data", text, place)


def _value(text: str, place: int) -> tuple[Any, int]:
    return _DECODER.raw_decode(text, place)


def _after(text: str, place: int) -> int:
    """Return the place of the next character that is no space."""
    spaces = _skip_spaces(text, place)
    assert spaces
    return spaces.end()
