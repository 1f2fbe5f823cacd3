"""Images per second of a training's parts: loader, model, whole step."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from backbones.data.classification import ClassificationData
from backbones.data.loading.loader import RunLoader, StreamPosition
from backbones.engine.context import Context
from backbones.engine.learner import Learner
from backbones.engine.loop import fit
from backbones.errors import UsageError
from backbones.pretrain.method import Method
from transfer.cli.command import Command

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
    command: Command, method: Method, data: ClassificationData, context: Context, seconds: float
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
