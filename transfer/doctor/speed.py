"""`python -m transfer.doctor speed --backbone NAME`: images per second of feed, model and whole step on this machine.

It trains by a shipped recipe for some seconds, on drawn JPEG files or on a dataset, and predicts the hours of the
recipe. Nothing is recorded but the rate, by which sweeps predict their cost.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from backbones.pretrain.method import PretrainingMethod
from transfer.cli.command import Command, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe import method_of, pretraining_recipe
from transfer.core.errors import UsageError, print_safe
from transfer.core.process import usable_cores
from transfer.core.settings import as_flags
from transfer.data.classification import ClassificationData, open_classification
from transfer.data.loading.loader import RunLoader, StreamPosition
from transfer.data.spec import resolve_dataset
from transfer.data.splits.manifest import PackedNames
from transfer.data.splits.split import FileSplit
from transfer.data.toy.digits import draw_jpegs
from transfer.doctor.options import SpeedOptions
from transfer.doctor.speed_memory import remember_speed
from transfer.engine.context import Context
from transfer.engine.learner import Learner
from transfer.engine.loop import fit
from transfer.evaluation.environment import environment
from transfer.evaluation.evaluator import make_context
from transfer.task import load_task

WARM_UP = 3
"""Steps before the clock starts: the first ones allocate, compile and fill the loader."""


@dataclass(frozen=True)
class Rates:
    """Images per second. Keys are the image operations, `pil` and `fast` where the augmentation has them."""

    feed: Mapping[str, float]
    """Batches of the loader when nothing waits for them."""
    model: float
    """Training steps on one batch that is ready."""
    step: float
    """Whole training steps."""
    waiting: float
    """The share of the time of whole steps in which they waited for data."""
    workers: int
    """Loader processes."""


def measure_rates(
    command: Command, method: PretrainingMethod, data: ClassificationData, context: Context, seconds: float
) -> Rates:
    """Measure the parts of a training, then the whole.

    Args:
        command: backbone and options of the training.
        method: that trains.
        data: with a training split.
        context: device, precision and loader processes.
        seconds: of each measurement.

    Raises:
        UsageError: the method has no `prepare_training`, or the options do not suit the backbone.
    """
    assert data.train is not None
    spec, options = command.resolved(from_scratch=True), command.options

    method.check(spec, data, options, context)

    learner, chosen = method.prepare_training(spec, data, options, context)
    feed = {}
    for ops in ("pil", "fast"):
        try:
            loader = method.prepare_training(spec, data, replace(options, image_ops=ops), context)[1]
        except UsageError:
            continue  # this augmentation has no fast operations
        feed[ops] = _feed_rate(loader, options.batch_size, seconds)
    batch = next(iter(chosen.stream(0, 0, 1)))[1]
    model = _step_rate(learner, _Repeated(batch), options, context, seconds)
    learner, chosen = method.prepare_training(spec, data, options, context)
    step = _step_rate(learner, chosen, options, context, seconds)
    return Rates(feed, model[0], step[0], step[1], context.workers)


def _feed_rate(loader: RunLoader, batch: int, seconds: float) -> float:
    """Return images per second of the loader when nothing waits for it."""
    begin, count = 0.0, 0
    for number, _ in enumerate(loader.stream(0, 0, 1000)):
        now = time.perf_counter()
        if number == WARM_UP:
            begin = now
        elif number > WARM_UP:
            count += batch
            if now - begin > seconds:
                return count / (now - begin)
    raise AssertionError("a thousand epochs have ended")


class _Repeated:
    """A loader that gives one batch again and again."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def stream(self, epoch: int, index: int, epochs: int) -> Iterator[tuple[StreamPosition, Any]]:
        """Yield positions in one long epoch, and the batch."""
        for number in range(10**9):
            yield StreamPosition(0, number, 10**9), self.batch


class _Limited:
    """A loader that ends after some seconds, with the time of its steps and of waiting for their batches."""

    def __init__(self, loader: Any, seconds: float, device: torch.device) -> None:
        self.loader, self.seconds, self.device = loader, seconds, device
        self.steps, self.passed, self.waited = 0, 0.0, 0.0

    def stream(self, epoch: int, index: int, epochs: int) -> Iterator[tuple[StreamPosition, Any]]:
        """Yield from the loader."""
        begin, source, number = 0.0, self.loader.stream(epoch, index, epochs), 0
        while True:
            asked = self._clock(number <= WARM_UP)
            if number == WARM_UP:
                begin = asked
            if number > WARM_UP and asked - begin > self.seconds:
                self.steps, self.passed = number - WARM_UP, self._clock(True) - begin
                return
            place, batch = next(source)
            if number >= WARM_UP:
                self.waited += time.perf_counter() - asked
            number += 1
            # an epoch that never ends has nothing to validate
            yield StreamPosition(0, place.index, 10**9), batch

    def _clock(self, settled: bool) -> float:
        if settled and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _step_rate(learner: Learner, loader: Any, options: Any, context: Context, seconds: float) -> tuple[float, float]:
    """Return images per second of training, and the share of the time that it waited for data."""
    limited = _Limited(loader, seconds, context.device)
    fit(learner, limited, options, context)
    return limited.steps * options.batch_size / limited.passed, limited.waited / limited.passed


SIDES, FILES = (500, 375), 48
"""Pixels and number of the drawn files: the average size of ImageNet's images."""
CLASSES = 1000
BATCH = {"cuda": 128, "cpu": 16}


def main(options: SpeedOptions) -> int:
    """Measure, print and remember.

    Raises:
        UsageError: an unknown name. UserError: a dataset is missing.
    """
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
    images = len(data.train) if options.dataset and data.train is not None else _counted_images(command)
    epochs = command.options.epochs
    if images is not None:
        hours = images * epochs / rates.step / 3600
        print_safe(f"{epochs} epochs of {images:,} images at this rate: {hours:,.1f} hours on one such device")
    if method.method == "supervised":  # one view of an image a step, whose operations the model's count gives
        remember_speed(machine["device"], options.backbone, rates.step, context.cost.gflops)
    return 0


def _table(rates: Rates) -> Iterator[tuple[str, str]]:
    """Yield the name of each measurement and its images per second."""
    feed = ", ".join(f"{ops} {rate:,.0f}" for ops, rate in rates.feed.items())
    yield f"loader, {rates.workers} processes", f"{feed} images/s"
    yield "model, batch ready", f"{rates.model:,.0f}"
    yield "whole step", f"{rates.step:,.0f}, {rates.waiting:.0%} of it waiting for data"


def _command(options: SpeedOptions) -> tuple[Command, PretrainingMethod]:
    recipe = pretraining_recipe(options.recipe)
    method = load_task(method_of(recipe))
    assert isinstance(method, PretrainingMethod)
    names = ("backbone", "device", "dataset", "data", "workers", "image_ops")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    words = [*as_flags(given), *["--compile"] * options.compile]
    command = read_command(recipe, method.options, words, PretrainRunOptions)
    device = "cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu"
    batch = options.batch_size or min(BATCH[device], command.options.batch_size)
    command.options = replace(command.options, batch_size=batch)
    return command, method


def _source(options: SpeedOptions) -> str:
    return f"files of {options.dataset}" if options.dataset else f"drawn JPEG files of {SIDES[0]} x {SIDES[1]}"


def _counted_images(command: Command) -> int | None:
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
        load_task("finetune").check_kind(spec := resolve_dataset(options.dataset))
        yield open_classification(spec, options.data)
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
