"""Kind `numbers`: features, gradients and data sets that no score can be made from.

A run ends with the typed outcome that names the reason, or with an error of one line. It never has a score.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from tests.faults.trial import NotHeldError
from tests.processes import Command, free_port
from tests.runs import record

STEM = f"{Path(__file__).with_name('odd_stem.py')}:Stem"
SHORT = ("--backbone", "tiny", "--threads", "1", "--workers", "0")
TRAINING = {
    "reid": ("transfer.run", ("reid", "--smoke")),
    "finetune": ("transfer.run", ("finetune", "--smoke")),
    "deit": ("transfer.pretrain", ("deit", "--smoke", "--epochs", "2")),
    "dino": ("transfer.pretrain", ("dino", "--smoke", "--epochs", "2")),
}
FROZEN = {
    "reid": ("transfer.run", ("reid", "--smoke", "--epochs", "0")),
    "knn": ("transfer.run", ("knn", "--smoke")),
    "linear": ("transfer.run", ("linear", "--smoke", "--epochs", "1")),
    "fewshot": ("transfer.run", ("fewshot", "--smoke", "--dataset", "toy_dtd")),
}
FEATURES = ("nan", "inf", "zero", "huge", "equal", "one image")
LOSSES = ("nan", "inf", "huge", "nan later", "inf gradient")
TRAINING_FAILED = 3


class OddNumbers:
    """Runs whose stem is `odd_stem`, and runs on data sets of which nothing can be learnt."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def trial(self, rng: random.Random, folder: Path) -> str:
        """One run; see `Kind`."""
        return rng.choice((_frozen, _frozen, _trained, _by_ranks, _on_odd_data))(rng, folder)


def _frozen(rng: random.Random, folder: Path) -> str:
    name, odd = rng.choice([*FROZEN]), rng.choice(FEATURES)
    command = _start(FROZEN[name], folder, {"ODD": odd})
    return _ended(f"{name} with {odd} features", [command], folder)


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
    if kept.scores or kept.outcome["status"] == "completed" or not kept.outcome["reason"]:
        raise NotHeldError(f"{what}: outcome {kept.outcome}, scores {kept.scores}")
    return f"{what.split(' with ')[0]}: {kept.outcome['status']}"


def _on_odd_data(rng: random.Random, folder: Path) -> str:
    odd = rng.choice([*DATA])
    make, task, status = DATA[odd]
    (folder / "mine").mkdir()
    make(folder / "mine")
    kind = "market1501" if task[0] == "reid" else "parquet" if [*folder.glob("mine/*.parquet")] else "image_folder"
    columns = "image: image\nlabel: label\n" if kind == "parquet" else ""
    (folder / "mine.yaml").write_text(f"format: {kind}\nroot: {folder / 'mine'}\n{columns}")
    words = (*task, "--dataset", str(folder / "mine.yaml"), "--seeds", str(rng.randrange(100)))
    argv = [*words, *SHORT, "--out", str(folder / "runs"), "--features", str(folder / "features")]
    command = Command("transfer.run", argv, folder / "log")
    ended, said = command.wait(), command.stderr.strip().splitlines()
    if "Traceback" in command.stderr or ended not in status:
        raise NotHeldError(f"{odd}: exit status {ended}: {command.stderr[-300:]}")
    if ended == 0:
        scores = record(folder / "runs").scores
        if not all(map(math.isfinite, scores.values())):
            raise NotHeldError(f"{odd}: scores {scores}")
        return f"{odd}: scored"
    if ended in (1, 2) and not any(line.startswith("error: ") for line in said):
        raise NotHeldError(f"{odd}: no error in words: {said[-1][:300]}")
    return f"{odd}: {'refused' if ended < TRAINING_FAILED else record(folder / 'runs').outcome['status']}"


def _image(path: Path, seed: int | None) -> None:
    """Write an image of noise, or of one colour without a seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    size = (64, 32, 3)
    pixels = np.full(size, 127) if seed is None else np.random.default_rng(seed).integers(0, 256, size)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def _market(root: Path, seeds: Callable[[int], int | None], *, matched: bool = True, gallery: int = 8) -> None:
    """Write eight identities, seen by two cameras; the query's camera alone where nothing is to match."""
    for place, first, other in (("bounding_box_train", 1, 2), ("query", 1, 1), ("bounding_box_test", 2, 2)):
        for identity in range(1, 9 if place != "bounding_box_test" else gallery + 1):
            for number, camera in enumerate({first, other if matched else first}):
                camera = camera if matched else 1
                name = f"{identity:04d}_c{camera}s1_{number:06d}_00.jpg"
                _image(root / place / name, seeds(identity * 10 + camera))


def _folders(root: Path, train: dict[str, int], val: dict[str, int], plain: bool = False) -> None:
    for split, classes in (("train", train), ("val", val)):
        for name, count in classes.items():
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                _image(root / split / name / f"{number}.png", None if plain else number * 31 + len(name))


def _parquet(root: Path, train: list[int], val: list[int]) -> None:
    """Write a set whose labels are those given."""
    _image(root / "one.png", 1)
    content = (root / "one.png").read_bytes()
    (root / "one.png").unlink()
    for split, labels in (("train", train), ("val", val)):
        rows = pa.table({"image": [content] * len(labels), "label": labels})
        parquet.write_table(rows, root / f"{split}.parquet")


REID = ("reid", "--epochs", "1", "--num-identities", "4", "--num-instances", "2", "--size", "64", "32")
CONV = (*REID, "--stem", "conv")
UNTRAINED = ("reid", "--epochs", "0", "--size", "64", "32")
KNN = ("knn", "--size", "32", "--k", "1", "--other-k", "2")
DATA: dict[str, tuple[Callable[[Path], None], tuple[str, ...], tuple[int, ...]]] = {
    "identities without a match": (lambda root: _market(root, lambda n: n, matched=False), UNTRAINED, (1,)),
    "images of one colour": (lambda root: _market(root, lambda n: None), REID, (TRAINING_FAILED,)),
    "a batch of one colour in batch norm": (lambda root: _market(root, lambda n: None), CONV, (TRAINING_FAILED,)),
    "one image in the gallery": (lambda root: _market(root, lambda n: n, gallery=1), UNTRAINED, (0, 1)),
    "an empty gallery": (lambda root: _market(root, lambda n: n, gallery=0), UNTRAINED, (1,)),
    "an empty class": (lambda root: _folders(root, {"a": 4, "bb": 0}, {"a": 2, "bb": 2}), KNN, (0, 1)),
    "one class": (lambda root: _folders(root, {"a": 4}, {"a": 2}), KNN, (0, 1)),
    "one image": (lambda root: _folders(root, {"a": 1, "bb": 0}, {"a": 1, "bb": 0}), KNN, (0, 1)),
    "a class that training lacks": (lambda root: _folders(root, {"a": 3, "bb": 3}, {"ccc": 3}), KNN, (0, 1)),
    "a label below 0": (lambda root: _parquet(root, [0, 1, -1], [0, 1]), KNN, (1,)),
    "a label beyond those of training": (lambda root: _parquet(root, [0, 1, 0], [0, 7]), KNN, (1,)),
    "plain images": (lambda root: _folders(root, {"a": 4, "bb": 4}, {"a": 3, "bb": 3}, True), KNN, (TRAINING_FAILED,)),
}
"""What is odd -> function that writes it, the task, and the exit statuses that are right."""
