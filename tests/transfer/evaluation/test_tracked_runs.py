"""Whole commands with `--tracker`: each step and the record reach it, and verification finds the run as recorded."""

from pathlib import Path

import pytest

from tests.runs import history
from tests.transfer.engine.test_trackers import INSTALLED, _nothing_leaves_this_folder  # noqa: F401
from tests.transfer.engine.tracker_readers import read
from transfer.records.record import Record
from transfer.run import main
from transfer.verify.__main__ import main as verify

TINY = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]
RUN = ["reid", *TINY, "--lr", "3e-2", "--epochs", "2", "--warmup-epochs", "0", "--num-identities", "4"]


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.nightly
def test_steps_and_record_reach_the_tracker(name: str, tmp_path: Path) -> None:
    assert main([*RUN, "--tracker", name, "--out", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("reid-*/record.json")
    record, kept = Record.read(file), read(name, file.parent)
    assert kept.record == file.read_bytes()
    assert kept.scores == pytest.approx(record.scores, rel=1e-6)
    assert kept.outcome == record.outcome["status"]
    steps = [line for line in history(tmp_path) if "loss" in line]
    for key in ("loss", "grad_norm", "lr"):
        assert [step for step, _ in kept.series[key]] == [line["step"] for line in steps]
        assert [value for _, value in kept.series[key]] == pytest.approx([line[key] for line in steps], rel=1e-6)
    assert verify([str(tmp_path)]) == 0
