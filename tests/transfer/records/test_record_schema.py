"""Records of others: one that reports cannot read is refused by the name of its entry."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from backbones.errors import UserError
from tests.transfer.records.recorded import made
from transfer.records.checksums import with_checksum
from transfer.records.record import Record

CONTENT: dict[str, Any] = json.loads(json.dumps(asdict(made())))


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("export", {"a": 1}),
        ("subset", "8"),
        ("seed", True),
        ("run_id", "../outside"),
        ("notes", [{}]),
        ("dataset", {"name": ["toy"]}),
        ("backbone", {}),
        ("files", {"x": 1}),
        ("metrics", {"mAP": 3}),
        ("scores", {"mAP": "high"}),
        ("scores", {"mAP": None}),
        ("outcome", {"status": "fine"}),
        ("outcome", None),
        ("surprise", 1),
    ],
)
def test_an_entry_of_another_type_is_named(entry: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^record\.json: not a readable record \({entry}"):
        Record.parse(with_checksum(CONTENT | {entry: value}), Path("record.json"))


def test_a_missing_entry_is_named_and_a_training_that_broke_down_has_no_scores() -> None:
    with pytest.raises(UserError, match=r"not a readable record \(scores\)"):
        Record.parse(with_checksum({name: CONTENT[name] for name in CONTENT if name != "scores"}), Path("r"))
    content = CONTENT | {"scores": {"mAP": 0.5}, "outcome": {"status": "diverged"}}
    with pytest.raises(UserError, match="scores of a training that broke down"):
        Record.parse(with_checksum(content), Path("r"))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"schema": 1, "run_', "not a readable record"),
        (b"[1]", "not a readable record"),
        (b'{"schema": 1, "seed": NaN}', "NaN is no number"),
        (b'{"schema": 99}', "schema 99, but this version reads 1; update the suite"),
        (b"\xed\xa0\x80", "not a readable record"),
    ],
)
def test_a_file_that_holds_no_record_is_named(raw: bytes, says: str) -> None:
    with pytest.raises(UserError, match=rf"record\.json: .*{says}"):
        Record.parse(raw, Path("record.json"))
