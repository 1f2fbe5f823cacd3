"""`python -m transfer.doctor speed --backbone NAME`: images per second of feed, model and whole step on this machine.

It trains by a shipped recipe for some seconds, on drawn JPEG files or on a dataset, and predicts the hours of the
recipe. Nothing is recorded but the rate, by which sweeps predict their cost.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.spec import resolve_dataset
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.split import FileSplit
from backbones.data.toy.jpegs import draw_jpegs
from backbones.engine.options import check_ranges
from backbones.errors import print_safe
from backbones.pretrain.method import Method, load_method
from backbones.runtime.threads import usable_cores
from backbones.settings import parse
from transfer.cli.command import Command, pretraining_recipe, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe_method import method_of
from transfer.doctor.speed_memory import remember_speed
from transfer.doctor.speed_rates import Rates, measure_rates
from transfer.evaluation.environment import environment
from transfer.evaluation.evaluator import make_context

SIDES, FILES = (500, 375), 48
"""Pixels and number of the drawn files: the average size of ImageNet's images."""
CLASSES = 1000
BATCH = {"cuda": 128, "cpu": 16}


@dataclass(kw_only=True)
class SpeedOptions:
    """Measure how fast this machine trains a backbone, and what limits it."""

    backbone: str
    """The backbone: a shipped name, a name of timm, a YAML file, or `file.py:Class`."""
    recipe: str = "deit"
    """The recipe of pretraining: a shipped name, as deit or dino."""
    dataset: str | None = None
    """The dataset whose files are read; by default JPEG files of ImageNet's size are drawn."""
    data: Path | None = None
    """The folder with the datasets; by default $TRANSFER_DATA."""
    batch_size: int | None = None
    """Images in a step; by default 128 on a GPU and 16 on a CPU, or the recipe's if that is less."""
    workers: int | None = None
    """Loader processes; by default as many as a training takes."""
    image_ops: Literal["pil", "fast"] | None = None
    """Image operations of the whole step; by default the recipe's."""
    compile: bool = False
    """Compile the training step."""
    device: str = "auto"
    """auto, cpu or cuda."""
    seconds: float = 8.0
    """Seconds of each of the measurements."""

    def __post_init__(self) -> None:
        check_ranges(self, 1e-3, None, "seconds")
        check_ranges(self, 1, None, "batch_size")
        check_ranges(self, 0, None, "workers")


def main(argv: list[str]) -> int:
    """Measure, print and remember.

    Raises:
        UsageError: an unknown name. UserError: a dataset is missing.
    """
    options = parse(SpeedOptions, argv, prog="python -m transfer.doctor speed")
    command, method = _command(options)
    context = replace(make_context(command), progress=False, quiet=True)
    with _data(options, command) as data:
        rates = measure_rates(command, method, data, context, options.seconds)
    machine = environment(context)
    print_safe(
        f"{options.backbone} by {options.recipe} on {machine['device']}, {usable_cores()} cores, {context.precision}, "
        f"batch {command.options.batch_size}, {_source(options)}"
    )
    for title, rate in _table(rates):
        print_safe(f"  {title:26} {rate}")
    images, epochs = _epoch_images(command), command.options.epochs
    if images is not None:
        hours = images * epochs / rates.step / 3600
        print_safe(f"{epochs} epochs of {images:,} images at this rate: {hours:,.1f} hours on one such device")
    if method.name == "supervised":  # one view of an image a step, whose operations the model's count gives
        remember_speed(machine["device"], options.backbone, rates.step, context.cost.gflops)
    return 0


def _table(rates: Rates) -> Iterator[tuple[str, str]]:
    """Yield the name of each measurement and its images per second."""
    feed = ", ".join(f"{ops} {rate:,.0f}" for ops, rate in rates.feed.items())
    yield f"loader, {rates.workers} processes", f"{feed} images/s"
    yield "model, batch ready", f"{rates.model:,.0f}"
    yield "whole step", f"{rates.step:,.0f}, {rates.waiting:.0%} of it waiting for data"


def _command(options: SpeedOptions) -> tuple[Command, Method]:
    recipe = pretraining_recipe(options.recipe)
    method = load_method(method_of(recipe))
    words = ["--backbone", options.backbone, "--device", options.device]
    words += ["--dataset", options.dataset] if options.dataset else []
    words += ["--data", str(options.data)] if options.data else []
    words += [] if options.workers is None else ["--workers", str(options.workers)]
    words += ["--image-ops", options.image_ops] if options.image_ops else []
    words += ["--compile"] if options.compile else []
    command = read_command(recipe, method.options, words, PretrainRunOptions)
    device = "cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu"
    batch = options.batch_size or min(BATCH[device], command.options.batch_size)
    command.options = replace(command.options, batch_size=batch)
    return command, method


def _source(options: SpeedOptions) -> str:
    return f"files of {options.dataset}" if options.dataset else f"drawn JPEG files of {SIDES[0]} x {SIDES[1]}"


def _epoch_images(command: Command) -> int | None:
    counts = resolve_dataset(command.run.dataset[0]).counts or {}
    train = counts.get("train")
    return int(train["images"]) if isinstance(train, dict) and "images" in train else None


class _Drawn(FileSplit):
    """Few files under many names, read from the disk each time."""

    def preload(self, limit: int | None) -> None:
        """Do nothing: a large dataset would not be kept in memory either."""


@contextmanager
def _data(options: SpeedOptions, command: Command) -> Iterator[ClassificationData]:
    """Give the training split of the dataset that the user names, or a drawn one."""
    if options.dataset:
        yield open_classification(resolve_dataset(options.dataset), options.data)
        return
    count = max(2048, 64 * command.options.batch_size)
    with TemporaryDirectory(prefix="speed-") as folder:
        files = draw_jpegs(FILES, *SIDES)
        for number, content in enumerate(files):
            (Path(folder) / f"{number}.jpg").write_bytes(content)
        split = _Drawn(
            "train",
            labels=np.arange(count) % CLASSES,
            names=PackedNames(f"{number % FILES}.jpg" for number in range(count)),
            sizes=np.resize([len(content) for content in files], count),
            folder=Path(folder),
        )
        facts: dict[str, Any] = {"version": None, "counts": {}, "digest": "", "val": None}
        yield ClassificationData(name="drawn", classes=tuple(map(str, range(CLASSES))), train=split, **facts)
