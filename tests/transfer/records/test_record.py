"""A record shows when it, or a file of its run, was changed; a file that holds no record is refused by name."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.transfer.records.recorded import made
from tests.transfer.records.test_store import CONTENT, record, written
from transfer.core.errors import UserError
from transfer.records.record import Record, RunKey, with_checksum
from transfer.records.store import Store


def test_the_record_lists_the_files_of_the_run_and_no_others(tmp_path: Path) -> None:
    mine = record(RunKey(CONTENT), export="sha256:" + 64 * "0")
    folder = Store(tmp_path).folder(mine.run_id)
    for name in ("export", "pictures"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a file").write_text(name)
    for name in ("history.jsonl", "support.csv", "state.pt", "lock", "error.txt", ".x.1.tmp", "events.out.tfevents.1"):
        (folder / name).write_text(name)
    told = Store(tmp_path).write(mine, "lr: 0.05\n", {"ap": np.array([0.1])}).files
    assert list(told) == ["export/a file", "history.jsonl", "options.yaml", "outcomes.npz", "support.csv"]
    for name, entry in told.items():
        content = (folder / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def test_an_edited_record_is_refused_and_named(tmp_path: Path) -> None:
    path = written(tmp_path).folder / "record.json"
    content = json.loads(path.read_text())
    without = json.dumps({key: value for key, value in content.items() if key != "digest"}, indent=1)
    for edited in (path.read_text() + "\n", without):
        path.write_text(edited)
        runs, (problem,) = Store(tmp_path).runs()
        assert not runs
        assert f"{path}: edited" in problem
        assert Record.read(path, edited=True).task == "reid"


ENTRIES = asdict(made())


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b'{"schema": 1, "run_', "not a readable record"),
        (b"[1]", "not a readable record"),
        (b'{"schema": 99}', "schema 99, but this version reads 1; update the suite"),
        (with_checksum(ENTRIES | {"surprise": 1}), "unexpected keyword argument 'surprise'"),
        (with_checksum({name: ENTRIES[name] for name in ENTRIES if name != "scores"}), "missing .* 'scores'"),
    ],
)
def test_a_file_that_holds_no_record_is_named(raw: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(raw)
    with pytest.raises(UserError, match=rf"record\.json: .*{says}"):
        Record.read(tmp_path / "record.json")
