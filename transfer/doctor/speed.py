"""`python -m transfer.doctor speed --backbone NAME`: images per second of loader, model and whole step on this machine.

It trains by a shipped recipe for some seconds, on drawn JPEG files or on a dataset, and predicts the hours of the
recipe. Nothing is recorded but the rate, by which sweeps predict their cost.
"""

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from backbones.pretrain.method import PretrainingMethod
from transfer.cli.command import Command, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe import method_of, pretraining_recipe
from transfer.core.errors import print_safe
from transfer.core.process import usable_cores
from transfer.core.settings import as_flags
from transfer.data.classification import ClassificationData, open_classification
from transfer.data.loading.loader import StreamPosition
from transfer.data.spec import resolve_dataset
from transfer.data.splits.split import FileSplit
from transfer.data.toy.digits import draw_jpegs
from transfer.doctor.options import SpeedOptions
from transfer.engine.context import Context
from transfer.engine.cost import remember_speed
from transfer.engine.device import device_name
from transfer.engine.learner import Learner
from transfer.engine.loop import fit
from transfer.evaluation.evaluator import make_context
from transfer.measure.steps import BATCH
from transfer.task import load_task

WARM_UP = 3
"""Steps before the clock starts: the first ones allocate, compile and fill the loader."""


class Timed:
    """Batches of a training for some seconds, as the loader that `fit` reads from.

    Attributes:
        steps: the batches that were taken in these seconds.
        passed: the seconds.
        waited: those that passed in waiting for batches.
    """

    def __init__(self, batches: Iterable[Any], seconds: float, device: torch.device) -> None:
        self.batches, self.seconds, self.device = batches, seconds, device
        self.steps, self.passed, self.waited = 0, 0.0, 0.0

    def stream(self, epoch: int = 0, index: int = 0, epochs: float = 1) -> Iterator[tuple[StreamPosition, Any]]:
        """Yield positions in one long epoch, which has nothing to validate, and the batches."""
        batches, begin = iter(self.batches), 0.0
        for number in itertools.count():
            asked = self._clock(settled=number <= WARM_UP)
            if number <= WARM_UP:
                begin, self.waited = asked, 0.0
            elif asked - begin > self.seconds:
                self.steps, self.passed = number - WARM_UP, self._clock(settled=True) - begin
                return
            batch = next(batches)
            self.waited += time.perf_counter() - asked
            yield StreamPosition(0, number, 10**9), batch

    def _clock(self, *, settled: bool) -> float:
        if settled and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def measured(
    command: Command, method: PretrainingMethod, data: ClassificationData, context: Context, seconds: float
) -> tuple[Timed, Timed, Timed]:
    """Measure the loader alone, then training steps on one batch that is ready, then whole training steps.

    Args:
        command: backbone and options of the training.
        method: that trains.
        data: with a training split.
        context: device, precision and loader processes.
        seconds: of each measurement.

    Raises:
        UsageError: the method has no `prepare_training`, or the options do not suit the backbone.
    """
    spec, options = command.resolved(from_scratch=True), command.options
    method.check(spec, data, options, context)

    def prepared() -> tuple[Learner, Timed]:
        learner, loader = method.prepare_training(spec, data, options, context)
        return learner, Timed((batch for _, batch in loader.stream(0, 0, 1000)), seconds, context.device)

    learner, feed = prepared()
    for _, batch in feed.stream():  # noqa: B007
        pass
    model = Timed(itertools.repeat(batch), seconds, context.device)
    fit(learner, model, options, context)
    learner, whole = prepared()
    fit(learner, whole, options, context)
    return feed, model, whole


SIDES, FILES = (500, 375), 48
"""Pixels and number of the drawn files: the average size of ImageNet's images."""
CLASSES = 1000


def main(options: SpeedOptions) -> int:
    """Measure, print and remember.

    Raises:
        UsageError: an unknown name. UserError: a dataset is missing.
    """
    command, method = read_training(options)
    context = replace(make_context(command), progress=False, quiet=True)
    with drawn_data(options, command) as data:
        if options.dataset:
            command = command.fit_data(method, command.resolved(from_scratch=True), data)
            for line in command.fitted:
                print_safe(line)
        feed, model, whole = measured(command, method, data, context, options.seconds)
    batch, epochs, device = command.options.batch_size, command.options.epochs, device_name(context.device)
    source = f"files of {options.dataset}" if options.dataset else f"drawn JPEG files of {SIDES[0]} x {SIDES[1]}"
    machine = f"{device}, {usable_cores()} cores, {context.precision}"
    print_safe(f"{options.backbone} by {options.recipe} on {machine}, batch {batch}, {source}")
    rates = [batch * part.steps / part.passed for part in (feed, model, whole)]
    print_safe(f"  loader, {f'{context.workers} processes':17} {rates[0]:,.0f} images/s")
    print_safe(f"  model, batch ready         {rates[1]:,.0f} images/s")
    waiting = f"{whole.waited / whole.passed:.0%} of it waiting for data"
    print_safe(f"  whole step                 {rates[2]:,.0f} images/s, {waiting}")
    counts = resolve_dataset(command.run.dataset[0]).counts or {}
    if images := len(data.train or ()) if options.dataset else counts.get("train", {}).get("images"):
        hours = images * epochs / rates[2] / 3600
        print_safe(f"{epochs} epochs of {images:,} images at this rate: {hours:,.1f} hours on one such device")
    if method.method == "supervised":  # one view of an image a step, whose operations the model's count gives
        remember_speed(device, options.backbone, rates[2], context.cost.gflops)
    return 0


def read_training(options: SpeedOptions) -> tuple[Command, PretrainingMethod]:
    """Return the command that trains by the recipe, and its method."""
    recipe = pretraining_recipe(options.recipe)
    method = load_task(method_of(recipe))
    assert isinstance(method, PretrainingMethod)
    names = ("backbone", "device", "dataset", "data", "workers", "image_ops", "batch_size")
    values = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.compile:
        values["compile"] = True
    command = read_command(recipe, method.options, as_flags(values), PretrainRunOptions)
    device = "cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu"
    batch = options.batch_size or min(BATCH[device], command.options.batch_size)
    command.options = replace(command.options, batch_size=batch)
    return command, method


@contextmanager
def drawn_data(options: SpeedOptions, command: Command) -> Iterator[ClassificationData]:
    """Give the training split of the dataset that the user names, or one of few drawn files under many names."""
    if options.dataset:
        load_task("finetune").check_kind(spec := resolve_dataset(options.dataset))
        yield open_classification(spec, options.data)
        return
    count = max(2048, 64 * command.options.batch_size)
    with TemporaryDirectory(prefix="speed-") as folder:
        for number, content in enumerate(draw_jpegs(FILES, *SIDES)):
            (Path(folder) / f"{number}.jpg").write_bytes(content)
        files = [f"{number % FILES}.jpg" for number in range(count)]
        sizes = np.array([(Path(folder) / file).stat().st_size for file in files])
        labels = np.arange(count) % CLASSES
        split = FileSplit("train", labels=labels, names=files, sizes=sizes, folder=Path(folder))
        classes = tuple(map(str, range(CLASSES)))
        facts: dict[str, Any] = {"version": None, "counts": {}, "digest": "", "val": None}
        yield ClassificationData(name="drawn", classes=classes, train=split, **facts)
