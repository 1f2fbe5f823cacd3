"""For kind `kill`: commands that write other files than runs, jobs of two ranks, and sweeps."""

import hashlib
import os
import random
import signal
import time
from pathlib import Path

from backbones.runtime.files import scraps_in
from backbones.runtime.scratch import LEFT_SECONDS
from tests.faults.killed_checks import check_no_scraps, check_status
from tests.faults.trial import NotHeldError
from tests.processes import Command, free_port, wait_for
from tests.runs import steps

SMOKE = ("--smoke", "--threads", "1", "--workers", "0")
DEIT = ("deit", "--backbone", "tiny", "--epochs", "2", *SMOKE, "--checkpoint-seconds", "0")
REPORT = "transfer.report.__main__"
NO_ORPHANS_SECONDS, AGE_SECONDS = 60, 2 * LEFT_SECONDS


def made_run(work: Path) -> Path:
    """Return a folder of runs with one finished run, and its bundle beside it."""
    argv = ["knn", "--backbone", "tiny", *SMOKE, "--out", str(work / "made" / "runs")]
    work.mkdir(parents=True, exist_ok=True)
    (work / "made").mkdir()
    _ended("knn", Command("transfer.run", argv, work / "log-run"))
    bundle = [str(work / "made" / "runs"), "--smoke", "--dirty", "--bundle", str(work / "made" / "all.zip")]
    _ended("bundle", Command(REPORT, bundle, work / "log-bundle"))
    return work / "made"


def writers(made: Path, folder: Path) -> dict[str, tuple[str, list[str]]]:
    """Return the program and arguments of each command that writes files into `folder / "out"`."""
    out, runs = str(folder / "out"), str(made / "runs")
    return {
        "pack": ("transfer.doctor.__main__", ["pack", "toy_digits", "--to", out, "--shard-mib", "1"]),
        "report": (REPORT, [runs, "--smoke", "--dirty", "--output", f"{out}/page.html"]),
        "bundle": (REPORT, [runs, "--smoke", "--dirty", "--bundle", f"{out}/all.zip"]),
        "import": (REPORT, [out, "--import", str(made / "all.zip")]),
        "leaderboard": (REPORT, ["--leaderboard", runs, "--output", f"{out}/site", "--smoke", "--dirty"]),
    }


def kill_writer(name: str, made: Path, whole: list[str], rng: random.Random, folder: Path, seconds: float) -> str:
    """Kill a command that writes files; given again, it leaves what the undisturbed one left."""
    program, argv = writers(made, folder)[name]
    (folder / "out").mkdir()
    first = Command(program, argv, folder / "log-0")
    time.sleep(rng.uniform(0, seconds))
    if rng.random() < 0.2 and first.send(signal.SIGSTOP):
        time.sleep(0.3)
        first.send(signal.SIGCONT)
    kind = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    first.kill(kind)
    check_status(f"{name}, interrupted", kind, first)
    for path in (folder / "out").rglob(".*.tmp"):
        os.utime(path, (time.time() - AGE_SECONDS,) * 2)
    _ended(f"{name}, given again,", Command(program, argv, folder / "log-1"))
    if contents(folder / "out") != whole:
        raise NotHeldError(f"{name}: other files after a kill")
    check_no_scraps(f"{name}, given again after {kind.name},", folder / "out")
    return f"{name}: the same files"


def contents(folder: Path) -> list[str]:
    """Return the names and digests of all files that are no scraps."""
    scraps = {path for place in (folder, *folder.rglob("*")) if place.is_dir() for path in scraps_in(place)}
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and not {file, *file.parents} & scraps)
    return [f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]


def start_ranks(folder: Path, log: str) -> list[Command]:
    """Start a training by two ranks."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    argv = [*DEIT, "--out", str(folder / "runs"), "--weights-to", str(folder / "weights")]
    return [
        Command("transfer.pretrain", argv, folder / f"log-{log}-{rank}", common | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]


def kill_a_rank(rng: random.Random, folder: Path, seconds: float) -> None:
    """End one of two ranks that train: the other ends too; the job, started again, ends well.

    Before they have met, it is torchrun or Slurm that ends the others.
    """
    ranks = start_ranks(folder, "0")
    wait_for(lambda: steps(folder / "runs") >= 1 or ranks[0].poll() is not None)
    time.sleep(rng.uniform(0, seconds / 3))
    killed = rng.randrange(2)
    ranks[killed].kill(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)))
    try:
        ranks[1 - killed].wait(NO_ORPHANS_SECONDS)
    except AssertionError:
        ranks[1 - killed].kill(signal.SIGKILL)
        raise NotHeldError(f"rank {killed} of two killed: the other did not end in {NO_ORPHANS_SECONDS} s") from None
    for rank in start_ranks(folder, "1"):
        _ended(f"two ranks, after rank {killed} was killed,", rank)


def _ended(what: str, command: Command) -> None:
    if command.wait() != 0:
        raise NotHeldError(f"{what}: exit status {command.poll()}: {command.stderr[-500:]}")
