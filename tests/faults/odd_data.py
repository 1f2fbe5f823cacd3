"""For kind `numbers`: data sets of which a score means nothing, or has one right value.

What has no score ends in words that name what is wrong; what the published protocol scores has exactly its value.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from tests.faults.trial import NotHeldError
from tests.processes import Command
from tests.runs import record

SHORT = ("--backbone", "tiny", "--threads", "1", "--workers", "0")
TRAINING_FAILED = 3
ROUNDING = 1e-6
FORMATS = {
    "reid": "market1501",
    "detect": "coco",
    "parquet": "parquet\nimage: image\nlabel: label",
    "folders": "image_folder",
}
"""How a set is stored: by its task, or by what its folder holds."""


@dataclass(frozen=True)
class Case:
    """An odd data set and a run on it."""

    make: Callable[[Path], None]
    words: tuple[str, ...]
    status: int
    named: tuple[str, ...] = ()
    """What the error, the reason of the outcome, or a note beside the scores must name."""
    scores: dict[str, float] = field(default_factory=dict)
    """The right values, where there are scores."""


def odd_data(rng: random.Random, folder: Path) -> str:
    """Run a task on one odd data set; see `Kind`."""
    odd = rng.choice([*CASES])
    case = CASES[odd]
    (folder / "mine").mkdir()
    case.make(folder / "mine")
    kind = case.words[0] if case.words[0] in FORMATS else "parquet" if [*folder.glob("mine/*.parquet")] else "folders"
    (folder / "mine.yaml").write_text(f"format: {FORMATS[kind]}\nroot: {folder / 'mine'}\n")
    words = (*case.words, "--dataset", str(folder / "mine.yaml"), "--seeds", str(rng.randrange(100)))
    argv = [*words, *SHORT, "--out", str(folder / "runs"), "--features", str(folder / "features")]
    command = Command("transfer.run", argv, folder / "log")
    ended, said = command.wait(), command.stderr
    if "Traceback" in said or ended != case.status:
        raise NotHeldError(f"{odd}: exit status {ended}: {said[-300:]}")
    if ended == 1:
        said = said[said.find("error: ") :] if "error: " in said else ""
    if missing := [name for name in case.named if name not in said]:
        raise NotHeldError(f"{odd}: {missing[0]!r} is not named: {said[-300:]}")
    return f"{odd}: {'refused by name' if ended == 1 else _recorded(odd, case, folder)}"


def _recorded(odd: str, case: Case, folder: Path) -> str:
    """Return in words what the run's record says. Raises NotHeldError where it is not what is right."""
    kept = record(folder / "runs")
    if case.status == TRAINING_FAILED:
        if kept.scores or not all(name in kept.outcome["reason"] for name in case.named):
            raise NotHeldError(f"{odd}: outcome {kept.outcome}, scores {kept.scores}")
        return str(kept.outcome["status"])
    wrong = {name: kept.scores.get(name) for name, right in case.scores.items() if not _near(kept.scores, name, right)}
    if wrong or not all(map(np.isfinite, kept.scores.values())):
        raise NotHeldError(f"{odd}: scores {kept.scores}, but right are {case.scores}")
    return "the right score"


def _near(scores: dict[str, float], name: str, right: float) -> bool:
    return name in scores and abs(scores[name] - right) <= ROUNDING


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


def _known(root: Path) -> None:
    """Write one training image of each of two classes, and test images that are copies: two right ones, one wrong."""
    for split, name, image, seed in (
        ("train", "a", "0", 1), ("train", "bb", "0", 2),
        ("val", "a", "0", 1), ("val", "a", "1", 2), ("val", "bb", "0", 2),
    ):  # fmt: skip
        _image(root / split / name / f"{image}.png", seed)


def _parquet(root: Path, train: list[int], val: list[int]) -> None:
    """Write a set whose labels are those given."""
    _image(root / "one.png", 1)
    content = (root / "one.png").read_bytes()
    (root / "one.png").unlink()
    for split, labels in (("train", train), ("val", val)):
        rows = pa.table({"image": [content] * len(labels), "label": labels})
        parquet.write_table(rows, root / f"{split}.parquet")


def _coco(root: Path, *, train: bool = True, val: bool = True, crowds: bool = False) -> None:
    """Write two images in either split with an object each, none where a split shall have none, or crowds to test."""
    (root / "annotations").mkdir()
    for split, objects in (("train", train), ("val", val)):
        crowd = crowds and split == "val"
        outline = {"size": [64, 32], "counts": [2000, 48]} if crowd else [[4, 4, 24, 4, 24, 24, 4, 24]]
        boxes = [
            {"id": number + 1, "image_id": number, "category_id": 1, "iscrowd": int(crowd), "area": 400.0}
            | {"bbox": [4, 4, 20, 20], "segmentation": outline}
            for number in range(2)
        ]
        for number in range(2):
            _image(root / f"{split}2017" / f"{number}.png", number)
        images = [{"id": number, "file_name": f"{number}.png", "width": 32, "height": 64} for number in range(2)]
        content = {"images": images, "annotations": boxes if objects else []}
        content["categories"] = [{"id": 1, "name": "thing"}]
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))


REID = ("reid", "--epochs", "1", "--num-identities", "4", "--num-instances", "2", "--size", "64", "32")
CONV = (*REID, "--stem", "conv")
UNTRAINED = ("reid", "--epochs", "0", "--size", "64", "32")
KNN = ("knn", "--size", "32", "--k", "1", "--other-k", "2")
DETECT = ("detect", "--smoke", "--epochs", "1")
TOKENS = ("tokens", "--size", "32", "--images", "1")
FEWSHOT = ("fewshot", "--size", "32", "--shots", "1", "--draws", "2")
LINEAR = ("linear", "--size", "32", "--epochs", "1", "--batch", "2", "--blocks", "2")
FINETUNE = ("finetune", "--size", "32", "--epochs", "1", "--batch", "2")
FAR, COLLAPSED = "every query is equally far", "the same for all training images"
ALL_RIGHT = dict.fromkeys(("mAP", "rank1", "rank5", "rank10", "mINP"), 1.0)
TWO_OF_THREE = dict.fromkeys(("top1", "top5", "top1_k2"), 2 / 3)
CASES: dict[str, Case] = {
    "identities without a match": Case(
        lambda root: _market(root, lambda n: n, matched=False), UNTRAINED, 1, ("none of the 8 queries has a match",)
    ),
    "images of one colour": Case(lambda root: _market(root, lambda n: None), REID, TRAINING_FAILED, (FAR,)),
    "a batch of one colour in batch norm": Case(
        lambda root: _market(root, lambda n: None), CONV, TRAINING_FAILED, (FAR,)
    ),
    "one image in the gallery": Case(
        lambda root: _market(root, lambda n: n, gallery=1), UNTRAINED, 0, ("7 of 8 queries have no match",), ALL_RIGHT
    ),
    "an empty gallery": Case(
        lambda root: _market(root, lambda n: n, gallery=0), UNTRAINED, 1, ("unreadable: bounding_box_test/",)
    ),
    "an empty class": Case(
        lambda root: _folders(root, {"a": 4, "bb": 0}, {"a": 2, "bb": 2}), KNN, 1, ("/train: 1 class", "images: bb")
    ),
    "a class without test images": Case(
        lambda root: _folders(root, {"a": 4, "bb": 4}, {"a": 2, "bb": 0}), KNN, 1, ("/val: 1 class", "images: bb")
    ),
    "a class without a test folder": Case(
        lambda root: _folders(root, {"a": 4, "bb": 4}, {"a": 2}), KNN, 1, ("/train: bb",)
    ),
    "one image": Case(lambda root: _folders(root, {"a": 1}, {"a": 1}), KNN, 1, ("there is one class, 'a'",)),
    "one image of each class": Case(_known, KNN, 0, (), TWO_OF_THREE),
    "a class that training lacks": Case(
        lambda root: _folders(root, {"a": 3, "bb": 3}, {"ccc": 3}), KNN, 1, ("/val: ccc",)
    ),
    "a label below 0": Case(lambda root: _parquet(root, [0, 1, -1], [0, 1]), KNN, 1, ("row 2: label -1",)),
    "a label beyond those of training": Case(
        lambda root: _parquet(root, [0, 1, 0], [0, 3]), KNN, 1, ("train.parquet", "without training images: 2, 3")
    ),
    "plain images": Case(
        lambda root: _folders(root, {"a": 4, "bb": 4}, {"a": 3, "bb": 3}, True), KNN, TRAINING_FAILED, (COLLAPSED,)
    ),
    "tokens of a plain image": Case(
        lambda root: _folders(root, {"a": 1}, {"a": 1}, True), TOKENS, 0, (), {"similarity_stem": 1.0}
    ),
    "no object to learn": Case(lambda root: _coco(root, train=False), DETECT, 1, ("instances_train2017.json",)),
    "no object to find": Case(lambda root: _coco(root, val=False), DETECT, 1, ("instances_val2017.json",)),
    "crowds alone to find": Case(lambda root: _coco(root, crowds=True), DETECT, 1, ("instances_val2017.json",)),
}
CASES |= {
    f"one class in {words[0]}": Case(lambda root: _folders(root, {"a": 4}, {"a": 2}), words, 1, ("mine: ", " class"))
    for words in (KNN, LINEAR, FINETUNE, FEWSHOT)
}
"""What is odd -> how it is made, the run, and its right end."""
