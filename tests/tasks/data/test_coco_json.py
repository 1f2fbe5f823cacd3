import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backbones.errors import UserError
from tasks.data import coco_json
from tasks.data.coco_json import Unsure, fast_tables, whole_tables

FILE = Path("some.json")
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=6) | st.sampled_from(["}, {", '"}, {"', "]}", "[", "\\", "\ud7ff"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=6)
FILES = st.dictionaries(st.text("abc", min_size=1, max_size=2), ENTRIES | VALUES, min_size=1, max_size=4)


def lists(content: str, *, fast: bool) -> dict[str, list[Any]]:
    tables = fast_tables(content.encode()) if fast else whole_tables(FILE, content.encode())
    return {key: [entry for piece in pieces for entry in piece] for key, pieces in tables}


@given(FILES, st.sampled_from([None, 1]), st.integers(1, 40), st.booleans())
def test_both_ways_give_what_json_gives(
    tables: dict[str, Any], indent: int | None, piece: int, ascii_only: bool
) -> None:
    content = json.dumps(tables, indent=indent, ensure_ascii=ascii_only)
    expected = {key: value for key, value in tables.items() if isinstance(value, list)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coco_json, "PIECE", piece)
        assert lists(content, fast=False) == expected
        try:
            assert lists(content, fast=True) == expected
        except Unsure:
            entries = [entry for value in expected.values() for entry in value]
            assert len(expected) < len(tables) or not entries or not all(isinstance(entry, dict) for entry in entries)


@pytest.mark.parametrize("piece", [1, 30, 2**15])
def test_the_fast_way_gets_through_a_file_as_cocos_are(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(coco_json, "PIECE", piece)
    objects = [{"id": number, "note": '}, {"', "parts": [{}, {"a": [[1.5, 2]]}]} for number in range(9)]
    tables = {"images": objects, "licenses": [], "annotations": objects, "categories": [{"name": "ü"}]}
    assert lists(json.dumps(tables), fast=True) == tables


@pytest.mark.parametrize("content", ["", "[", '{"a": [{}]', '{"a": [{}],}', '{"a": [{}}, {}]}', '{"a": [{}]} {}'])
def test_what_is_not_json(content: str) -> None:
    with pytest.raises(UserError, match=r"some\.json: not JSON"):
        lists(content, fast=False)
    with pytest.raises(Unsure):
        lists(content, fast=True)
