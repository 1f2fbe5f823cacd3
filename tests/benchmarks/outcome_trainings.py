"""The trainings behind `outcomes.npz`: 27 settings of three methods, ten rates each, and longer ones for the truth.

A ViT of 2 blocks, 64 wide, with 16 patches of 8 pixels, on 2,048 images of CIFAR-10 (1,000 to test) and on 1,120
drawings of 70 characters of Omniglot, of which 280 more are held out. Loading would be most of the time, so an image is
augmented three times per setting, and kept. Of the committed file all longer trainings were run whose score was below
20 % (ReID: 12 %) or whose loss was near chance, some more than `trained` runs.
"""

import contextlib
import io
import json
import math
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import tasks.reid
from backbones.backbone import Backbone
from backbones.data.loading.images import ReidTestTransform
from backbones.data.splits.dataset import SplitDataset
from tests.benchmarks.outcomes import SIGNS, UNIFORM, clear
from transfer.pretrain import main as pretrain
from transfer.run import main as evaluate

CONV = "3Conv+3BN+3ReLU+1Proj@2,2,1,2"
COMMON = ["--backbone", "tiny", "--arch", "vit_tiny", "--patch", "8", "--threads", "1"]
RATES = {
    ("supervised", "adamw"): (2e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1),
    ("supervised", "sgd"): (3e-3, 1e-2, 3e-2, 0.07, 0.12, 0.2, 0.3, 0.5, 1, 3),
    ("reid", "adamw"): (3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.3, 1),
    ("reid", "sgd"): (1.6e-3, 5e-3, 1.5e-2, 5e-2, 0.1, 0.2, 0.4, 0.8, 1.5, 4),
    ("dino", "adamw"): (1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.2, 1),
    ("dino", "sgd"): (1e-3, 1e-2, 5e-2, 0.1, 0.3, 0.6, 1, 3, 10, 30),
}
WIDE = {
    ("supervised", "adamw"): (1e-4, 5e-4, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.3, 1),
    ("supervised", "sgd"): (1e-3, 1e-2, 3e-2, 0.1, 0.2, 0.5, 1, 2, 5, 20),
    ("reid", "adamw"): (1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.2, 1),
    ("reid", "sgd"): (5e-4, 1.6e-3, 5e-3, 1.5e-2, 5e-2, 0.1, 0.3, 1, 3, 10),
}
"""Rates of settings numbered below 20; the others have them closer together."""
SETTINGS: dict[str, tuple[str, str, str, float, int, int, int]] = {
    "s0": ("patchify", "softmax", "adamw", 0.5, 5, 64, 0),
    "s1": ("conv", "relu", "sgd", 0, 2, 64, 0),
    "s2": ("conv", "softmax", "sgd", 0, 5, 64, 1),
    "s20": ("patchify", "relu", "adamw", 0, 1, 64, 0),
    "s21": ("patchify", "softmax", "sgd", 0, 1, 32, 2),
    "s22": ("conv", "relu", "adamw", 1, 2, 64, 1),
    "s23": ("patchify", "relu", "sgd", 0, 3, 64, 1),
    "s24": ("conv", "softmax", "adamw", 0, 2, 32, 3),
    "s25": ("patchify", "softmax", "adamw", 0, 1, 32, 4),
    "s26": ("conv", "softmax", "sgd", 0.5, 1, 64, 2),
    "s28": ("patchify", "relu", "sgd", 1, 2, 64, 3),
    "s29": ("patchify", "softmax", "adamw", 0, 4, 64, 5),
    "s30": ("conv", "relu", "sgd", 0, 4, 64, 6),
    "r0": ("patchify", "softmax", "sgd", 0, 6, 64, 0),
    "r1": ("conv", "softmax", "adamw", 1, 4, 64, 0),
    "r20": ("patchify", "relu", "adamw", 0, 3, 64, 1),
    "r21": ("conv", "softmax", "sgd", 1, 4, 32, 1),
    "r22": ("conv", "softmax", "adamw", 0, 6, 64, 2),
    "r23": ("conv", "relu", "sgd", 0, 4, 64, 3),
    "r24": ("patchify", "softmax", "adamw", 0, 4, 64, 3),
    "r25": ("conv", "relu", "adamw", 1, 2, 32, 2),
    "r26": ("conv", "softmax", "adamw", 0, 2, 64, 4),
    "d0": ("patchify", "softmax", "adamw", 0.2, 1, 32, 0),
    "d1": ("conv", "softmax", "sgd", 0, 1, 64, 0),
    "d20": ("patchify", "relu", "adamw", 0.2, 1, 32, 0),
    "d21": ("patchify", "softmax", "sgd", 0, 1, 32, 1),
    "d22": ("conv", "softmax", "adamw", 0, 1, 64, 2),
}
"""Stem, attention, optimiser, epochs of warm-up, epochs, batch, seed, by the method's first letter and a number."""
METHODS = {"s": "supervised", "r": "reid", "d": "dino"}
SCORES = {"supervised": "top1", "reid": "held_out", "dino": "knn_top1"}


@dataclass(frozen=True)
class Setting:
    """All of a training but its rate."""

    setting: str
    """Key of `SETTINGS`."""
    method: str
    stem: str
    attention: str
    optimizer: str
    warmup: float
    epochs: int
    batch: int
    seed: int

    def arguments(self, rate: float | None, work: Path, longer: int = 1) -> list[str]:
        """Return the command line; without a rate that of a score without training."""
        stem = CONV if self.stem == "conv" else self.stem
        line = [*COMMON, "--data", str(work / "data"), "--out", str(work / "runs"), "--stem", stem, "--attention",
                self.attention, "--seeds", str(self.seed)]  # fmt: skip
        if self.method == "reid":
            line += ["--dataset", str(work / "omniglot.yaml"), "--size", "32", "32"]
        if rate is None:
            line += ["--weights", "random"]
            knn = ["--dataset", "cifar10", "--size", "32", "--resize", "32", "--pool", "gap"]
            return ["reid", *line, "--epochs", "0"] if self.method == "reid" else ["knn", *line, *knn]
        line += ["--epochs", str(longer * self.epochs), "--lr", str(rate), "--optimizer", self.optimizer,
                 "--warmup-epochs", str(self.warmup)]  # fmt: skip
        if self.method == "reid":
            return ["reid", *line, "--num-identities", str(self.batch // 4), "--pad", "2"]
        line += ["--weights", "random", "--batch", str(self.batch), "--validate-at", "--weights-to", str(work / "w")]
        if self.method == "dino":
            return ["cifar_dino", *line, *["--local-crops", "0", "--image-ops", "fast", "--pool", "gap"]]
        return ["cifar_deit", *line]


@dataclass
class Result:
    """What a training left."""

    status: str
    score: float
    history: list[dict[str, float]] = field(default_factory=list)


KEPT: dict[Any, Any] = {}
HELD_OUT: dict[str, float] = {}


def _keep(data: Any) -> None:
    """Make a class of data sets keep what it gives, with three augmentations of an image."""
    make = data.__getitem__

    def kept(self: Any, key: Any) -> Any:
        key = (key[0] % 3, *key[1:]) if isinstance(key, tuple) else key
        place = (len(self), type(self.transform).__name__, self.seed, key)
        if place not in KEPT:
            KEPT[place] = make(self, key)
        return KEPT[place]

    data.__getitem__ = kept


def _identify(folder: Path, learner: tasks.reid.ReidLearner, backbone: Backbone, context: Any) -> None:
    """Classify held-out images of the training identities; stands in for the export of the weights."""
    paths = sorted(folder.iterdir())
    identities = sorted({path.name.split("_")[0] for path in paths})
    images = torch.stack([ReidTestTransform((32, 32))(Image.open(path).convert("RGB")) for path in paths])
    labels = torch.tensor([identities.index(path.name.split("_")[0]) for path in paths])
    with torch.no_grad():
        _, logits = learner.neck(backbone.pooled(images))
    HELD_OUT["held_out"] = float((logits.argmax(1) == labels).float().mean())


def run(setting: Setting, rate: float | None, work: Path, longer: int = 1) -> Result:
    """Train once, or score the untrained network."""
    for folder in ("runs", "w"):
        shutil.rmtree(work / folder, ignore_errors=True)
    HELD_OUT.clear()
    line = setting.arguments(rate, work, longer)
    command = pretrain if line[0].startswith("cifar") else evaluate
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        exit_status = command(line)
    records = [*work.glob("runs/*/record.json")]
    if exit_status not in (0, 3) or not records:
        raise SystemExit(f"{' '.join(line)}\n{said.getvalue()}")
    record = json.loads(records[0].read_text())
    scores = (record["scores"] or {}) | HELD_OUT
    score = scores.get(SCORES[setting.method], math.nan) if rate is not None else scores.get("knn_top1", math.nan)
    lines = map(json.loads, records[0].with_name("history.jsonl").read_text().splitlines() if rate is not None else [])
    return Result(record["outcome"]["status"], score, [line for line in lines if "loss" in line])


def transposed(history: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Return statistics by name."""
    return {name: [line[name] for line in history] for name in history[0]}


def trained(setting: Setting, work: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, float]]]]:
    """Give the values of each training of a setting, and its history."""
    KEPT.clear()
    untrained = math.nan if setting.method == "supervised" else run(setting, None, work).score
    wide = int(setting.setting[1:]) < 20 and setting.method != "dino"
    for number, rate in enumerate((WIDE if wide else RATES)[setting.method, setting.optimizer]):
        one, longer = run(setting, rate, work), Result("", math.nan)
        drawn = random.Random(f"{setting.setting}/{number}").random() < 0.2
        if one.status != "nonfinite" and (drawn or clear(setting.method, one.score, transposed(one.history)) is None):
            longer = run(setting, rate, work, longer=4)
        print(setting.setting, rate, one.status, one.score, longer.status, longer.score, file=sys.stderr, flush=True)
        yield asdict(setting) | {
            "rate": float(rate), "status": one.status, "score": one.score, "untrained": untrained,
            "longer_status": longer.status, "longer_score": longer.score, "before": "", "before_epoch": "",
        }, one.history  # fmt: skip


def write(path: Path, rows: Sequence[dict[str, Any]], histories: Sequence[Sequence[dict[str, float]]]) -> None:
    """Write trainings as half-precision numbers: a statistic less its level, the logarithm of spread."""
    stored: dict[str, list[float]] = {"statistic": [], "spread": [], "accuracy": [], "other": []}
    for row, history in zip(rows, histories, strict=True):
        signs = SIGNS[row["method"]]
        level = UNIFORM if signs.chance is None else signs.chance
        for line in history:
            value, loss = line[signs.statistic], line["loss"]
            stored["statistic"].append(value - level)
            stored["spread"].append(math.log10(max(line.get("spread", math.nan), 1e-30)))
            stored["accuracy"].append(line.get("accuracy", math.nan))
            stored["other"].append(line["teacher_entropy"] / UNIFORM if row["method"] == "dino" else loss - value)
    largest = float(np.finfo(np.float16).max)
    halves: dict[str, NDArray[Any]] = {
        name: np.clip(values, -largest, largest).astype(np.float16) for name, values in stored.items()
    }
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns["steps"] = np.array([len(history) for history in histories])
    np.savez_compressed(path, allow_pickle=False, **columns, **halves)


def _prepare(data: Path, work: Path) -> None:
    """Lay out the parts of the data sets that are used."""
    import pyarrow.parquet

    (work / "data/cifar10").mkdir(parents=True)
    for split, rows in (("train", 2048), ("test", 1000)):
        whole = pyarrow.parquet.read_table(data / f"cifar10/{split}.parquet")
        pyarrow.parquet.write_table(whole.slice(0, rows), work / f"data/cifar10/{split}.parquet")
    market, ours = data.resolve() / "omniglot_market", work / "data/omniglot"
    for folder in ("bounding_box_train", "held_out"):
        (ours / folder).mkdir(parents=True)
    for folder in ("query", "bounding_box_test"):
        (ours / folder).symlink_to(market / folder)
    seen: dict[str, int] = {}
    for path in sorted((market / "bounding_box_train").glob("*.jpg")):
        identity = path.name.split("_")[0]
        number = seen[identity] = seen.get(identity, -1) + 1
        (ours / ("held_out" if number % 5 == 2 else "bounding_box_train") / path.name).symlink_to(path)
    description = {"format": "market1501", "root": ["omniglot"], "license": "MIT", "citation": "Lake et al. 2015"}
    (work / "omniglot.yaml").write_text(json.dumps(description | {"how": "Omniglot in Market-1501's layout"}))


def train(data: Path, out: Path) -> None:
    """Train everything and write it to `out`.

    Args:
        data: folder with cifar10/{train,test}.parquet and omniglot_market/ in Market-1501's layout: 70 training
            identities of 20 drawings.
    """
    with TemporaryDirectory() as folder:
        work = Path(folder)
        _prepare(data, work)
        _keep(SplitDataset)
        tasks.reid.export_trained = partial(_identify, work / "data/omniglot/held_out")  # type: ignore[attr-defined]
        with contextlib.chdir(work):
            settings = [Setting(name, METHODS[name[0]], *values) for name, values in SETTINGS.items()]
            rows, histories = zip(*(one for setting in settings for one in trained(setting, work)), strict=True)
    write(out, rows, histories)
