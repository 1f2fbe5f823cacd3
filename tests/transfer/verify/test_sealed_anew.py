"""A run whose files are damaged though its record was sealed again: recomputation says so in words."""

import json
from pathlib import Path

import pytest

from transfer.records.checksums import size_and_sha256, with_checksum
from transfer.run import main as run
from transfer.verify.__main__ import main


def test_an_archive_that_was_cut_is_not_computed_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["knn", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--subset", "20"]
    assert run([*words, "--out", str(tmp_path / "runs"), "--features", str(tmp_path / "features")]) == 0
    (path,) = tmp_path.glob("runs/*/record.json")
    outcomes, record = path.with_name("outcomes.npz"), json.loads(path.read_bytes())
    outcomes.write_bytes(outcomes.read_bytes()[:-9])
    del record["digest"]
    record["files"]["outcomes.npz"] = size_and_sha256(outcomes)
    path.write_bytes(with_checksum(record))
    assert main([str(path.parent), "--recompute", "--subset", "3"]) == 1
    assert "not computed anew: outcomes.npz: not readable (BadZipFile: " in capsys.readouterr().out
