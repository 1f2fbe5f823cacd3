"""Reports and bundles for which there is no room end in one line and leave nothing; what is read-only is shown."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.backbones.runtime.test_files import files_of_at_most
from tests.processes import ENVIRONMENT, Command
from tests.support import disk_or_skip
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


@pytest.mark.nightly
def test_a_finished_run_is_shown_on_a_read_only_disk(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "disk", 10) as disk:
        words = ["knn", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--subset", "30"]
        words += ["--out", str(disk.folder / "runs"), "--features", str(disk.folder / "features")]
        first = Command("transfer.run", words, tmp_path / "first", prepare=disk.enter)
        assert first.wait() == 0, first.stderr
        disk.set("read-only")
        again = Command("transfer.run", words, tmp_path / "again", prepare=disk.enter)
        assert again.wait() == 0, again.stderr
        assert "has a record, reused" in again.stderr
        assert again.stdout == first.stdout
        other_seed = Command("transfer.run", [*words, "--seeds", "1"], tmp_path / "other", prepare=disk.enter)
        assert other_seed.wait() == 1
        assert "Read-only file system" in other_seed.stderr
