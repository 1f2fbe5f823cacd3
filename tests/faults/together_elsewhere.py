"""For kind `together`: two sweeps on one folder, several pretrainings to one name, and folders that keep no locks."""

import errno
import fcntl
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from backbones.checkpoints.exports import WEIGHTS, pretraining_facts
from backbones.runtime.files import file_sha256
from tests.faults.killed_runs import SHORT, difference, scraps
from tests.faults.trial import NotHeldError
from tests.processes import Command
from transfer.records.store import Store

DEIT = ("deit", "--backbone", "tiny", "--epochs", "1", *SHORT)
SWEEP = """
steps:
  probe:
    run: knn
    backbone: tiny
    dataset: toy_digits
    options: {{smoke: true, workers: 0}}
    grid: {{k: [{ks}]}}
"""
REFUSED = "another process runs this sweep"
WAYS = {"feature store": "--features", "runs": "--out", "weights": "", "bundle": ""}
"""Folders that may keep no locks: the option that a refusal names where there is one."""


class Sweeps:
    """Two sweeps at once on one folder, of the same cells or of some; the undisturbed ones are run once."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.alone: dict[str, str] = {}

    def trial(self, rng: random.Random, folder: Path) -> str:
        """One of both is refused, or comes when the other is done; given again, each cell has one record."""
        cells = ("3, 4", rng.choice(("3, 4", "4, 5")))
        what = f"two sweeps of k {' and '.join(cells)} on one folder"
        first = _sweep(cells[0], folder, "first")
        time.sleep(rng.uniform(0, 3))
        second = _sweep(cells[1], folder, "second")
        statuses = [first.wait(300), second.wait(300)]
        if sorted(statuses) not in ([0, 0], [0, 1]) or (1 in statuses and REFUSED not in first.stderr + second.stderr):
            raise NotHeldError(f"{what}: exit status {statuses}: {first.stderr[-300:]} {second.stderr[-300:]}")
        for number, ks in enumerate(cells):
            again = _sweep(ks, folder, f"again-{number}")
            if again.wait(300) != 0:
                raise NotHeldError(f"{what}: given again, exit status {again.poll()}: {again.stderr[-500:]}")
        known = self._known()
        found = _scores(folder)
        if len(found) != len({*", ".join(cells).split(", ")}) or any(known.get(run) != found[run] for run in found):
            raise NotHeldError(f"{what}: records {found}, alone {known}")
        if left := scraps(folder / "out"):
            raise NotHeldError(f"{what}: left {', '.join(left)}")
        return f"two sweeps: {'one refused' if 1 in statuses else 'one after the other'}, each cell once"

    def _known(self) -> dict[str, str]:
        if not self.alone:
            folder = self.work / "sweep"
            folder.mkdir()
            alone = _sweep("3, 4, 5", folder, "alone")
            if alone.wait(300) != 0:
                raise RuntimeError(alone.stderr)
            self.alone = _scores(folder)
        return self.alone


def _sweep(ks: str, folder: Path, log: str) -> Command:
    (folder / f"{log}.yaml").write_text(SWEEP.format(ks=ks), encoding="utf-8")
    words = [f"{log}.yaml", "--workers", "2", "--out", "out", "--device", "cpu"]
    one_thread = {"OMP_NUM_THREADS": "1"}
    return Command("transfer.sweep.__main__", words, folder / f"log-{log}", one_thread, partial(os.chdir, folder))


def _scores(folder: Path) -> dict[str, str]:
    runs, problems = Store(folder / "out" / "runs").runs()
    if problems:
        raise NotHeldError(f"records that cannot be read: {problems}")
    return {run.record.run_id: repr(sorted(run.record.scores.items())) for run in runs}


def many_weights(rng: random.Random, folder: Path) -> str:
    """Eight pretrainings of four seeds to one name: those of one seed have their weights there, others are refused."""
    seeds, what = [*"00112233"], "eight pretrainings to one name"
    rng.shuffle(seeds)
    commands = []
    for number, seed in enumerate(seeds):
        words = [*DEIT, "--seeds", seed, "--out", str(folder / "runs"), "--weights-to", str(folder / "weights")]
        commands.append(Command("transfer.pretrain", words, folder / f"log-{number}"))
    ended = {seed: [command.wait(300) for command, its in zip(commands, seeds) if its == seed] for seed in "0123"}
    said = "".join(command.stderr for command in commands)
    kept = pretraining_facts(folder / "weights" / "tiny")
    if "Traceback" in said or not {status for both in ended.values() for status in both} <= {0, 1}:
        raise NotHeldError(f"{what}: exit status {ended}: {said[-500:]}")
    if [seed for seed, both in ended.items() if 0 in both] != [str(kept.get("seed"))]:
        raise NotHeldError(f"{what}: the weights are of seed {kept.get('seed')}, and {ended}: {said[-500:]}")
    exports = {file_sha256(file) for file in (folder / "runs").glob(f"*-{kept['identity'][:12]}/export/{WEIGHTS}")}
    if {file_sha256(folder / "weights" / "tiny" / WEIGHTS)} != exports:
        raise NotHeldError(f"{what}: other weights than those of the run that they name")
    if left := [name for name in scraps(folder) if name.endswith(".tmp")]:
        raise NotHeldError(f"{what}: left {', '.join(left)}")
    return "eight pretrainings: one seed has its weights there"


def no_locks_below(folder: Path) -> None:
    """Let locks fail on files below a folder, as on a disk of its own whose server keeps none."""

    def refusing(plain: Callable[..., None]) -> Callable[..., None]:
        def refused(file: Any, *arguments: Any) -> None:
            number = file if isinstance(file, int) else file.fileno()
            if Path(f"/proc/self/fd/{number}").readlink().is_relative_to(folder):
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            plain(file, *arguments)

        return refused

    fcntl.lockf, fcntl.flock = refusing(fcntl.lockf), refusing(fcntl.flock)


def unlocked_folder(rng: random.Random, folder: Path, alone: Callable[[str], tuple[Path, str, tuple[str, ...]]]) -> str:
    """One folder keeps no locks: the command ends as elsewhere, or says which option names another folder.

    Args:
        alone: by the name of a command, the undisturbed runs, the program, and its arguments.
    """
    where = rng.choice([*WAYS])
    if where == "bundle":
        return _unlocked_bundle(folder, alone("reid")[0])
    whole, program, words = alone("deit" if where == "weights" else "fewshot")
    place = folder / {"feature store": "features"}.get(where, where)
    argv = [*words, "--out", str(folder / "runs"), "--features", str(folder / "features")]
    argv += ["--weights-to", str(folder / "weights")] if program == "transfer.pretrain" else []
    what = f"{where} without locks"
    command = Command(program, argv, folder / "log-first", prepare=partial(no_locks_below, place))
    if command.wait(300) == 1 and "keeps no locks" in command.stderr and f"with {WAYS[where]}" in command.stderr:
        again = Command(program, argv, folder / "log-second")
        if again.wait(300) != 0:
            raise NotHeldError(f"{what}: refused, and where there are locks: {again.stderr[-500:]}")
    elif command.poll() != 0:
        raise NotHeldError(f"{what}: exit status {command.poll()}: {command.stderr[-500:]}")
    if harm := difference(whole, folder / "runs"):
        raise NotHeldError(f"{what}: {harm}")
    if left := scraps(folder):
        raise NotHeldError(f"{what}: left {', '.join(left)}")
    return f"{what}: {'refused, then ' if command.poll() else ''}the same result"


def _unlocked_bundle(folder: Path, whole: Path) -> str:
    """Write a bundle and import it where nothing can be locked."""
    file, report = folder / "all.zip", "transfer.report.__main__"
    for argv in (
        [str(whole), "--smoke", "--dirty", "--bundle", str(file)],
        [str(folder / "runs"), "--import", str(file)],
    ):
        command = Command(report, argv, folder / f"log-{len(argv)}", prepare=partial(no_locks_below, Path("/")))
        if command.wait(300) != 0:
            raise NotHeldError(f"bundle without locks: exit status {command.poll()}: {command.stderr[-500:]}")
    (imported,) = (folder / "runs").glob("*/record.json")
    verdict = Command("transfer.verify.__main__", [str(imported.parent)], folder / "log-verify")
    if verdict.wait(300) != 0 or scraps(folder):
        raise NotHeldError(f"bundle without locks: {verdict.stdout[-300:]} {scraps(folder)}")
    return "bundle without locks: whole, imported"
