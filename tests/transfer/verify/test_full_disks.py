"""A report for which there is no room ends in one line."""

import subprocess
import sys
from pathlib import Path

from tests.processes import ENVIRONMENT
from tests.transfer.verify.test_bundle import made


def test_a_report_to_a_full_device_is_one_line(tmp_path: Path) -> None:
    made(tmp_path)
    words = [sys.executable, "-m", "transfer.report", str(tmp_path), "--smoke", "--dirty"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["report", "error"]
    assert "cannot be written (No space left on device)" in done.stderr
