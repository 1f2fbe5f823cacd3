"""A file that holds no record is refused by name."""

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.transfer.records.recorded import made
from transfer.core.errors import UserError
from transfer.records.record import Record, with_checksum

CONTENT = asdict(made())


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"schema": 1, "run_', "not a readable record"),
        (b"[1]", "not a readable record"),
        (b'{"schema": 1, "seed": NaN}', "NaN is not a number"),
        (b'{"schema": 99}', "schema 99, but this version reads 1; update the suite"),
        (with_checksum(CONTENT | {"surprise": 1}), "unexpected keyword argument 'surprise'"),
        (with_checksum({name: CONTENT[name] for name in CONTENT if name != "scores"}), "missing .* 'scores'"),
    ],
)
def test_a_file_that_holds_no_record_is_named(raw: bytes, says: str) -> None:
    with pytest.raises(UserError, match=rf"record\.json: .*{says}"):
        Record.parse(raw, Path("record.json"))
