"""Kind `numbers`: features, gradients and data sets that no score can be made from.

A run ends with the typed outcome that names the reason, or with an error that does. It has a score only where the
protocol defines one, and then the right one.
"""

import random
import re
from pathlib import Path

from tests.faults.odd_data import ROUNDING, SHORT, TRAINING_FAILED, odd_data
from tests.faults.trial import NotHeldError
from tests.processes import Command, free_port
from tests.runs import record

STEM = f"{Path(__file__).with_name('odd_stem.py')}:Stem"
TRAINING = {
    "reid": ("transfer.run", ("reid", "--smoke")),
    "finetune": ("transfer.run", ("finetune", "--smoke")),
    "detect": ("transfer.run", ("detect", "--smoke", "--epochs", "1")),
    "deit": ("transfer.pretrain", ("deit", "--smoke", "--epochs", "2")),
    "dino": ("transfer.pretrain", ("dino", "--smoke", "--epochs", "2")),
}
FROZEN = {
    "reid": ("transfer.run", ("reid", "--smoke", "--epochs", "0")),
    "knn": ("transfer.run", ("knn", "--smoke")),
    "linear": ("transfer.run", ("linear", "--smoke", "--epochs", "1")),
    "fewshot": ("transfer.run", ("fewshot", "--smoke", "--dataset", "toy_dtd")),
    "tokens": ("transfer.run", ("tokens", "--smoke")),
}
FEATURES = ("nan", "inf", "zero", "huge", "equal", "one image")
LOSSES = ("nan", "inf", "huge", "nan later", "inf gradient")
REASONS = r"not finite for \S|became (nan|inf)|degenerate|the same for all"
"""What an outcome's reason says: an image, what the training met, or that all is alike."""


class OddNumbers:
    """Runs whose stem is `odd_stem`, and runs on data sets of which nothing can be learnt."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def trial(self, rng: random.Random, folder: Path) -> str:
        """One run; see `Kind`."""
        return rng.choice((_frozen, _frozen, _trained, _by_ranks, odd_data, odd_data))(rng, folder)


def _frozen(rng: random.Random, folder: Path) -> str:
    name, odd = rng.choice([*FROZEN]), rng.choice(FEATURES)
    command = _start(FROZEN[name], folder, {"ODD": odd})
    if name == "tokens" and odd in ("zero", "equal"):
        return _similar(odd, command, folder)
    return _ended(f"{name} with {odd} features", [command], folder)


def _similar(odd: str, command: Command, folder: Path) -> str:
    """Tokens that are equal have the similarity 1; that of tokens that are zero is not defined, which is said."""
    ended, scores = command.wait(), record(folder / "runs").scores
    right = ["similarity_stem is not defined" in command.stderr, abs(scores.get("similarity_stem", 0) - 1) <= ROUNDING]
    if ended or right != ([True, False] if odd == "zero" else [False, True]):
        raise NotHeldError(f"tokens that are {odd}: exit status {ended}, scores {scores}: {command.stderr[-300:]}")
    return f"tokens that are {odd}: {'named' if odd == 'zero' else 'the right score'}"


def _trained(rng: random.Random, folder: Path) -> str:
    name, odd = rng.choice([*TRAINING]), rng.choice(LOSSES)
    command = _start(TRAINING[name], folder, {"ODD": odd})
    return _ended(f"{name} with {odd}", [command], folder)


def _by_ranks(rng: random.Random, folder: Path) -> str:
    """Two ranks of which one gets numbers that are not finite: both end, with one outcome."""
    name, odd = rng.choice([*TRAINING]), rng.choice(("nan", "nan later", "inf gradient"))
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    common |= {"ODD": odd, "ODD_RANK": rng.choice("01")}
    ranks = [_start(TRAINING[name], folder, common | {"RANK": rank, "LOCAL_RANK": rank}, rank) for rank in "01"]
    return _ended(f"{name} with {odd} on rank {common['ODD_RANK']} of two", ranks, folder)


def _start(run: tuple[str, tuple[str, ...]], folder: Path, environment: dict[str, str], rank: str = "0") -> Command:
    program, words = run
    places = ["--out", folder / "runs", "--features", folder / "features"]
    places += ["--weights-to", folder / "weights"] if program == "transfer.pretrain" else []
    argv = [*words, *SHORT, "--stem", STEM, *map(str, places)]
    return Command(program, argv, folder / f"log-{rank}", environment)


def _ended(what: str, commands: list[Command], folder: Path) -> str:
    statuses = [command.wait() for command in commands]
    if any("Traceback" in command.stderr for command in commands):
        raise NotHeldError(f"{what}: a traceback: {commands[0].stderr[-300:]}")
    if statuses != [TRAINING_FAILED] * len(commands):
        raise NotHeldError(f"{what}: exit status {statuses}: {commands[0].stderr[-300:]}")
    kept = record(folder / "runs")
    if kept.scores or kept.outcome["status"] == "completed" or not re.search(REASONS, kept.outcome["reason"]):
        raise NotHeldError(f"{what}: outcome {kept.outcome}, scores {kept.scores}")
    return f"{what.split(' with ')[0]}: {kept.outcome['status']}"
