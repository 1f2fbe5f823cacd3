"""A run that cannot be read is named, and every command goes on with the other runs of its folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transfer.share.test_bundle import made
from transfer.report.__main__ import main as report

MINE = "--bounding-set=-dac_override,-dac_read_search"
"""Takes from root what lets it read everything."""
ENDING = "-0123456789ab"
"""As the names of runs end."""
COMMANDS = """
import sys
from transfer.doctor.__main__ import main as doctor
from transfer.report.__main__ import main as report
from transfer.verify.__main__ import main as verify
root, shown = sys.argv[1], ["--smoke", "--dirty"]
for main, *words in (
    (report, root, *shown, "--format", "csv", "--each"),
    (report, "--leaderboard", root, "--output", f"{root}.site", *shown),
    (report, root, *shown, "--output", f"{root}.html"),
    (report, f"{root}.other", "--import", f"{root}/pipe-0123456789ab/record.json"),
    (report, f"{root}.other", "--import", "/dev/zero"),
    (report, root, *shown, "--figures", f"{root}.figures", "--style", f"{root}/pipe-0123456789ab/record.json"),
    (report, root, *shown, "--figures", f"{root}.figures", "--style", "/dev/zero"),
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
    """Two runs, and two with pipes among their files; beside them a folder that is forbidden, a link to itself, and two
    folders with pipes.
    """
    root = tmp_path / "runs"
    for seed, name in enumerate((None, None, "outcomes.npz", "history.jsonl")):
        run = made(root, seed)
        if name:
            (run.folder / name).unlink()
            os.mkfifo(run.folder / name)
    for folder, name in (("pipe", "record.json"), ("locked", "lock"), ("failed", "error.txt")):
        (root / f"{folder}{ENDING}").mkdir()
        os.mkfifo(root / f"{folder}{ENDING}" / name)
    (root / f"forbidden{ENDING}").mkdir(mode=0)
    (root / f"loop{ENDING}").symlink_to(f"loop{ENDING}")
    yield root
    (root / f"forbidden{ENDING}").chmod(0o700)


@pytest.mark.skipif(not os.geteuid() and not shutil.which("setpriv"), reason="root reads everything")
def test_every_command_names_it_and_goes_on(root: Path) -> None:
    table, site, page, *refused, verified, listed, _ = printed(root)
    for text in (table, page, verified, listed):
        for name in ("forbidden", "loop", "pipe"):
            assert name in text
    assert all("not a regular file" in text for text in refused)
    assert (root.parent / "runs.html").exists()
    assert (root.parent / "runs.site" / "index.html").exists()
    assert "2 of 7 runs are right" in verified
    assert "4 finished runs" in listed
    assert "runs.site" in site


def test_a_bundle_is_made_of_the_runs_that_can_be_read(tmp_path: Path) -> None:
    made(tmp_path / "runs")
    (tmp_path / "runs" / "loop").symlink_to("loop")
    assert report([str(tmp_path / "runs"), "--smoke", "--dirty", "--bundle", str(tmp_path / "runs.zip")]) == 0
    assert (tmp_path / "runs.zip").exists()
