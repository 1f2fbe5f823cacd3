"""A run that cannot be read is named, and every command goes on with the other runs of its folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transfer.share.test_bundle import made

MINE = "--bounding-set=-dac_override,-dac_read_search"
"""Takes from root what lets it read everything."""
COMMANDS = """
import sys
from transfer.doctor.__main__ import main as doctor
from transfer.report.__main__ import main as report
from transfer.verify.__main__ import main as verify
root, shown = sys.argv[1], ["--smoke", "--dirty"]
for main, *words in (
    (report, root, *shown, "--format", "csv", "--each"),
    (report, root, *shown, "--bundle", f"{root}.zip"),
    (report, "--leaderboard", root, "--output", f"{root}.site", *shown),
    (verify, root),
    (doctor, "store", root),
):
    print(f"== {main(words)}", flush=True)
"""


def printed(root: Path) -> list[str]:
    """What each command prints, with what its main returned at the end."""
    user = [] if os.geteuid() else ["setpriv", MINE]
    command = [*user, sys.executable, "-c", COMMANDS, str(root)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode == 0, done.stdout
    return done.stdout.split("== ")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Two runs, and beside them one folder that is forbidden and one that is a link to itself."""
    root = tmp_path / "runs"
    for seed in (0, 1):
        made(root, seed)
    (root / "forbidden").mkdir(mode=0)
    (root / "loop").symlink_to("loop")
    yield root
    (root / "forbidden").chmod(0o700)


@pytest.mark.skipif(not os.geteuid() and not shutil.which("setpriv"), reason="root reads everything")
def test_every_command_names_it_and_goes_on(root: Path) -> None:
    table, bundled, _site, verified, listed, _ = printed(root)
    for text in (table, bundled, verified, listed):
        assert "forbidden" in text
        assert "loop" in text
    assert (root.parent / "runs.zip").exists()
    assert (root.parent / "runs.site" / "index.html").exists()
    assert "2 of 4 runs are right" in verified
    assert "2 finished runs" in listed
