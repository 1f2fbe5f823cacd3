"""Reports and bundles for which there is no room end in one line and leave nothing; what is read-only is shown."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backbones.runtime.test_files import files_of_at_most
from tests.processes import ENVIRONMENT
from tests.transfer.share.test_bundle import made
from transfer.report.__main__ import main as report


def test_a_report_to_a_full_device_is_one_line(tmp_path: Path) -> None:
    made(tmp_path)
    words = [sys.executable, "-m", "transfer.report", str(tmp_path), "--smoke", "--dirty"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "cannot be written (No space left on device)" in done.stderr


def test_a_bundle_on_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, file = tmp_path / "runs", tmp_path / "shared" / "all.zip"
    for seed in range(4):
        made(runs, seed)
    words = [str(runs), "--smoke", "--dirty", "--bundle", str(file)]
    assert report(words) == 0
    size = file.stat().st_size - 1
    file.unlink()
    capsys.readouterr()
    with files_of_at_most(size):
        assert report(words) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"error: {file}: cannot be written (File too large)")
    assert [*file.parent.iterdir()] == []
