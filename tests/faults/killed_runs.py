"""Kind `kill`: a run gets signals at random moments, then its command is given again.

It must end with the record, the history and the results of the run that was left alone, and leave nothing behind.
"""

import random
import signal
import time
from dataclasses import replace
from pathlib import Path

from backbones.runtime.files import file_sha256, scraps_in
from tests.faults.killed_checks import Progress, check_no_orphans, check_status
from tests.faults.killed_writers import contents, kill_a_rank, kill_writer, made_run, start_ranks, writers
from tests.faults.trial import NotHeldError
from tests.processes import Command
from tests.runs import differences, outcomes, record
from transfer.records.record import Record

SHORT = ("--smoke", "--threads", "1", "--workers", "0", "--checkpoint-seconds", "0")
RUNS = {
    "reid": ("transfer.run", ("reid", "--backbone", "tiny", "--epochs", "3", *SHORT)),
    "fewshot": ("transfer.run", ("fewshot", "--backbone", "tiny", "--dataset", "toy_dtd", *SHORT)),
    "dino": ("transfer.pretrain", ("dino", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "linear": ("transfer.run", ("linear", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "detect": ("transfer.run", ("detect", "--backbone", "tiny", "--epochs", "1", *SHORT)),
    "deit": ("transfer.pretrain", ("deit", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "volo": ("transfer.pretrain", ("volo", "--backbone", "volo_tiny", "--epochs", "1", *SHORT)),
    "finetune": ("transfer.run", ("finetune", "--backbone", "tiny", "--epochs", "2", *SHORT)),
    "knn": ("transfer.run", ("knn", "--backbone", "tiny", *SHORT)),
    "tokens": ("transfer.run", ("tokens", "--backbone", "tiny", *SHORT)),
    "classify": ("transfer.run", ("classify", "--backbone", "tiny", *SHORT)),
}
ENDING = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PAUSED_SECONDS = 0.3


class KilledRuns:
    """Each command's run that was left alone, with its duration."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.alone: dict[str, tuple[Path, float]] = {}
        self.made: list[Path] = []
        self.written: dict[str, tuple[list[str], float]] = {}

    def trial(self, rng: random.Random, folder: Path) -> str:
        """Interrupt one run one to three times; see `Kind`."""
        if rng.random() < 0.3:
            return self._writer(rng, folder)
        if rng.random() < 0.15:
            return self._rank(rng, folder)
        name = rng.choice([*RUNS])
        whole, seconds = self._alone(name)
        alone = rng.random() < 0.25  # the processes that load images have to end by themselves then
        workers, progress, sent = "2" if alone else "0", Progress(folder / "runs"), list[str]()
        for number in range(rng.choice((1, 1, 2, 3))):
            command = self._start(name, folder, f"{number}", workers)
            time.sleep(rng.uniform(0, seconds))
            sent += _interrupt(name, rng, command, progress, alone=alone)
        what = f"{name} after {', '.join(sent) or 'nothing'}"
        command = self._start(name, folder, "last", workers)
        if command.wait() != 0:
            raise NotHeldError(f"{what}: exit status {command.poll()}: {command.stderr[-500:]}")
        progress.goes_on(what, command)
        if harm := difference(whole, folder / "runs"):
            raise NotHeldError(f"{what}: {harm}")
        if left := scraps(folder):
            raise NotHeldError(f"{what}: left {', '.join(left)}")
        return f"{name}: {'killed without its children, ' if alone else ''}the same result"

    def _writer(self, rng: random.Random, folder: Path) -> str:
        """Kill a command that writes other files than runs."""
        if not self.made:
            self.made.append(made_run(self.work / "writers"))
        name = rng.choice([*writers(self.made[0], folder)])
        if name not in self.written:
            place, begun = self.work / "writers" / name, time.monotonic()
            (place / "out").mkdir(parents=True)
            command = Command(*writers(self.made[0], place)[name], place / "log")
            if command.wait() != 0:
                raise RuntimeError(command.stderr)
            self.written[name] = contents(place / "out"), time.monotonic() - begun
        whole, seconds = self.written[name]
        return kill_writer(name, self.made[0], whole, rng, folder, seconds)

    def _rank(self, rng: random.Random, folder: Path) -> str:
        """Kill one of two ranks."""
        if "two ranks" not in self.alone:
            place, begun = self.work / "ranks", time.monotonic()
            place.mkdir()
            for rank in start_ranks(place, "alone"):
                if rank.wait() != 0:
                    raise RuntimeError(rank.stderr)
            self.alone["two ranks"] = place / "runs", time.monotonic() - begun
        whole, seconds = self.alone["two ranks"]
        kill_a_rank(rng, folder, seconds)
        if harm := difference(whole, folder / "runs"):
            raise NotHeldError(f"two ranks, one killed: {harm}")
        if left := scraps(folder):
            raise NotHeldError(f"two ranks, one killed: left {', '.join(left)}")
        return "two ranks, one killed: the same result"

    def _alone(self, name: str) -> tuple[Path, float]:
        if name not in self.alone:
            begun = time.monotonic()
            command = self._start(name, self.work / name, "alone")
            if command.wait() != 0:
                raise RuntimeError(command.stderr)
            self.alone[name] = self.work / name / "runs", time.monotonic() - begun
        return self.alone[name]

    def _start(self, name: str, folder: Path, log: str, workers: str = "0") -> Command:
        program, arguments = RUNS[name]
        outputs = {"--out": folder / "runs", "--features": folder / "features"}
        if program == "transfer.pretrain":
            outputs["--weights-to"] = folder / "weights"
        if name == "classify":
            outputs["--weights"] = self._alone("deit")[0].parent / "weights" / "tiny"
        folder.mkdir(parents=True, exist_ok=True)
        argv = [*arguments, *(str(word) for pair in outputs.items() for word in pair)]
        argv[argv.index("--workers") + 1] = workers
        return Command(program, argv, folder / f"log-{log}")


def _interrupt(name: str, rng: random.Random, command: Command, progress: Progress, *, alone: bool) -> list[str]:
    """Send signals to a run, to its first process alone if so wanted; check how it ends, and return their names."""
    sent, kind = [], rng.choice(ENDING)
    if rng.random() < 0.2 and command.send(signal.SIGSTOP):
        time.sleep(PAUSED_SECONDS)
        command.send(signal.SIGCONT)
        sent.append("STOP CONT")
    progress.before()
    if command.send(kind, alone=alone):
        sent.append(kind.name)
        command.wait()
        what = f"{name} after {', '.join(sent)}{' to the parent alone' if alone else ''}"
        check_status(what, kind, command)
        check_no_orphans(what, command.pid)
        progress.after(what, kind, command)
    command.wait()
    return sent


def difference(whole: Path, other: Path) -> str:
    """Return in words how two folders of one run differ in what does not depend on when and how they were executed."""
    first, second = (_without_extraction(record(out)) for out in (whole, other))
    if differing := differences(first, second):
        return f"another record: {str(differing)[:500]}"
    lines = [[file.read_text(encoding="utf-8") for file in out.glob("*/history.jsonl")] for out in (whole, other)]
    if lines[0] != lines[1]:
        return "another history"
    arrays = [outcomes(out) for out in (whole, other)]
    same = arrays[0].keys() == arrays[1].keys() and all(
        arrays[0][key].tobytes() == arrays[1][key].tobytes() for key in arrays[0]
    )
    if not same:
        return "other results of samples"
    return "" if _weights(whole) == _weights(other) else "other weights"


def _weights(out: Path) -> dict[str, str]:
    """Return the digests of the tensors that a run exported, and of those published beside its folder."""
    files = (*out.glob("*/export/**/*.safetensors"), *out.parent.glob("weights/**/*.safetensors"))
    return {f"{file.relative_to(out.parent)}": file_sha256(file) for file in files}


def _without_extraction(one: Record) -> Record:
    """Return a record without what it says of the features that were found or computed, and how fast."""
    return replace(one, details={name: value for name, value in one.details.items() if name != "features"})


def scraps(folder: Path) -> list[str]:
    """Return what finished runs should not leave: states, locks of runs, and files that were not given their names."""
    found = [path for place in (folder, *folder.rglob("*")) if place.is_dir() for path in scraps_in(place)]
    found += [path for name in ("state.*", "lock") for path in (folder / "runs").glob(f"*/{name}")]
    return [str(path.relative_to(folder)) for path in found]
