"""`python -m transfer.doctor speed --backbone NAME`: images per second of feed, model and whole step on this machine.

It trains by a shipped recipe for some seconds, on drawn JPEG files or on a data set, names what is slowest and what to
set, and predicts the hours of the recipe. Nothing is recorded but the rate, which sweeps predict their cost by.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from backbones.data.classification import ClassificationData, open_classification
from backbones.data.loading.images import seeded
from backbones.data.loading.loader import RunLoader, StreamPosition
from backbones.data.spec import resolve_dataset
from backbones.data.splits.split import FileSplit, PackedNames
from backbones.engine.context import Context
from backbones.engine.learner import Learner
from backbones.engine.loop import fit
from backbones.errors import UsageError
from backbones.runtime.threads import usable_cores
from backbones.settings import parse
from transfer.cli.command import Command, pretraining_recipe, read_command
from transfer.cli.options import PretrainRunOptions
from transfer.cli.recipe_method import method_of
from transfer.doctor.speed_advice import Rates, advice
from transfer.doctor.speed_memory import remember_speed
from transfer.evaluation.environment import environment
from transfer.evaluation.evaluator import make_context

SIDES, QUALITY, FILES = (500, 375), 85, 48
"""Pixels, JPEG quality and number of the drawn files: the average size of ImageNet's images."""
CLASSES = 1000
WARM_UP = 3
"""Steps before the clock starts: the first ones allocate, compile and fill the loader."""
BATCH = {"cuda": 128, "cpu": 16}


@dataclass(kw_only=True)
class SpeedOptions:
    """Measure how fast this machine trains a backbone, and what limits it."""

    backbone: str = ""
    """The backbone: a shipped name, a name of timm, a YAML file, or `file.py:Class`."""
    recipe: str = "deit"
    """The recipe of pretraining: a shipped name, as deit or dino."""
    dataset: str | None = None
    """The data set whose files are read; by default JPEG files of ImageNet's size are drawn."""
    data: Path | None = None
    """The folder with the data sets; by default $TRANSFER_DATA."""
    batch: int | None = None
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
    """Seconds of each of the six measurements."""

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise UsageError(f"--seconds {self.seconds}: must be above 0")
        for name in ("batch", "workers"):
            value = getattr(self, name)
            if value is not None and value < (name == "batch"):
                raise UsageError(f"--{name} {value}: must be at least {int(name == 'batch')}")


def measure_speed(argv: list[str]) -> int:
    """Measure, print and remember.

    Raises:
        UsageError: no backbone, or an unknown name. UserError: a data set is missing.
    """
    options = parse(SpeedOptions, argv, prog="python -m transfer.doctor speed")
    if not options.backbone:
        raise UsageError("--backbone is missing; `python -m transfer.run --list` shows the shipped ones")
    command, method = _command(options)
    context = replace(make_context(command), progress=False, quiet=True)
    with _data(options, command) as data:
        rates = _measure(command, method, data, context, options.seconds)
    machine = environment(context)
    print(
        f"{options.backbone} by {options.recipe} on {machine['device']}, {usable_cores()} cores, {context.precision}, "
        f"batch {command.options.batch}, {_source(options)}"
    )
    for line in advice(rates, _epoch_images(command), command.options.epochs, command):
        print(line)
    if method.name == "supervised":
        remember_speed(machine["device"], options.backbone, rates.step, context.cost.gflops)
    return 0


def _command(options: SpeedOptions) -> tuple[Command, Any]:
    from backbones.pretrain.method import load_method

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
    batch = options.batch or min(BATCH[device], command.options.batch)
    command.options = replace(command.options, batch=batch)
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
        """Do nothing: a large data set would not be kept in memory either."""


@contextmanager
def _data(options: SpeedOptions, command: Command) -> Iterator[ClassificationData]:
    """Give the training split of the data set that the user names, or a drawn one."""
    if options.dataset:
        yield open_classification(resolve_dataset(options.dataset), options.data)
        return
    count = max(2048, 64 * command.options.batch)
    with TemporaryDirectory(prefix="speed-") as folder:
        sizes = _draw(Path(folder))
        split = _Drawn(
            "train",
            labels=np.arange(count) % CLASSES,
            names=PackedNames(f"{number % FILES}.jpg" for number in range(count)),
            sizes=np.resize(sizes, count),
            folder=Path(folder),
        )
        facts: dict[str, Any] = {"version": None, "counts": {}, "digest": "", "val": None}
        yield ClassificationData(name="drawn", classes=tuple(map(str, range(CLASSES))), train=split, **facts)


def _draw(folder: Path) -> Any:
    """Write JPEG files of smooth colours with some noise, of some 100 kB as ImageNet's; return their sizes in bytes."""
    generator, sizes = np.random.default_rng(0), []
    for number in range(FILES):
        colours = Image.fromarray(generator.integers(0, 256, (23, 31, 3), dtype=np.uint8))
        smooth = np.asarray(colours.resize(SIDES, Image.Resampling.BICUBIC)).astype(int)
        noisy = (smooth + generator.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        path = folder / f"{number}.jpg"
        Image.fromarray(noisy).save(path, quality=QUALITY)
        sizes.append(path.stat().st_size)
    return np.array(sizes, dtype=np.int64)


def _measure(command: Command, method: Any, data: ClassificationData, context: Context, seconds: float) -> Rates:
    from importlib import import_module

    prepare: Callable[..., tuple[Learner, RunLoader]] = import_module(type(method).__module__).prepare_training
    assert data.train is not None
    split, spec, options = data.train, command.resolved(from_scratch=True), command.options

    method.check(spec, data, options, context)

    def loader(image_ops: str) -> tuple[Learner, RunLoader]:
        return prepare(spec, data, replace(options, image_ops=image_ops), context)

    decoding, views, feed = {}, {}, {}
    learner, chosen = loader(options.image_ops)
    for ops, read in (("pil", split.decoded), ("fast", split.read_pixels)):
        decoding[ops] = _rate(lambda turn, read=read: read(turn % len(split)), seconds / 4)  # type: ignore[misc]
        try:
            images = loader(ops)[1].dataset
        except UsageError:
            continue  # this augmentation has no fast operations
        views[ops] = _rate(lambda turn, images=images: images[(0, turn % len(split), 0)], seconds / 2)  # type: ignore[misc]
        feed[ops] = _feed_rate(loader(ops)[1], options.batch, seconds)
    batch = next(iter(chosen.stream(0, 0, 1)))[1]
    model = _step_rate(learner, _Repeated(batch), options, context, seconds)
    step = _step_rate(loader(options.image_ops)[0], chosen, options, context, seconds)
    copy = _copy_rate(batch, options.batch, context) if context.on_gpu else None
    return Rates(decoding, views, feed, copy, model[0], step[0], step[1], context.workers)


def _rate(call: Callable[[int], object], seconds: float) -> float:
    """Return calls per second of this thread."""
    call(0)
    begin, turn = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds or not turn:
        with seeded(0, turn):
            call(turn)
        turn += 1
    return turn / passed


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
    return limited.steps * options.batch / limited.passed, limited.waited / limited.passed


def _copy_rate(batch: Any, images: int, context: Context) -> float:
    """Return images per second of copying pinned batches to the GPU."""
    tensors = [part.pin_memory() for part in _tensors(batch)]
    torch.cuda.synchronize(context.device)
    begin = time.perf_counter()
    for _ in range(20):
        for part in tensors:
            part.to(context.device, non_blocking=True)
    torch.cuda.synchronize(context.device)
    return 20 * images / (time.perf_counter() - begin)


def _tensors(batch: Any) -> Sequence[Tensor]:
    return [batch] if isinstance(batch, Tensor) else [tensor for part in batch for tensor in _tensors(part)]
