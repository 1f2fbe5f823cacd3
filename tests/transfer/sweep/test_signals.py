"""A closed terminal ends a sweep as SIGTERM does, with the state of its cell saved; under nohup the sweep goes on."""

import signal
from pathlib import Path

import pytest

from backbones.settings import write_yaml
from tests.processes import Command, in_a_terminal, under_nohup, wait_for
from tests.runs import steps
from tests.transfer.sweep.test_runner import PRETRAIN, QUICK
from transfer.records.store import is_locked


@pytest.mark.nightly
def test_a_terminal_that_is_closed(tmp_path: Path) -> None:
    long = {**QUICK, "epochs": 300, "checkpoint_seconds": 0}
    (tmp_path / "mine.yaml").write_text(write_yaml({"steps": {"pretrain": PRETRAIN | {"options": long}}}))
    words, out = [str(tmp_path / "mine.yaml"), "--workers", "1", "--out", str(tmp_path / "out")], tmp_path / "out"
    first = Command("transfer.sweep.__main__", words, tmp_path / "first", prepare=under_nohup)
    wait_for(lambda: steps(out / "runs"))
    before = steps(out / "runs")
    assert first.send(signal.SIGHUP)
    wait_for(lambda: steps(out / "runs") > before + 20, seconds=30)  # a cell that is stopped makes one more at most
    first.kill(signal.SIGTERM)
    assert first.poll() == 143, first.stderr

    second = Command("transfer.sweep.__main__", words, tmp_path / "second", prepare=in_a_terminal)
    wait_for(lambda: "resuming after step" in next(out.glob("cells/*.log")).read_text())
    second.kill(signal.SIGHUP)
    assert second.poll() == 143, second.stderr
    assert f"stopped; the same command goes on from {out}" in second.stderr
    (folder,) = out.glob("runs/*")
    assert not is_locked(folder / "lock")
    assert next(out.glob("cells/*.log")).read_text().count("stopped by a signal after step") == 2
