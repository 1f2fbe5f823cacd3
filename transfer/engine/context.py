"""Where and how one run executes: device, precision, ranks, folder, signals, and what it has cost so far."""

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset
from tqdm import tqdm

from transfer.core.errors import Stopped, UsageError, UserError, visible_lines
from transfer.core.process import ALONE, Ranks, Threads, core_limit, peak_memory, signals_answered, usable_cores
from transfer.data.loading.loader import RunLoader, shuffled_batches, total_steps
from transfer.data.loading.workers import Collate
from transfer.engine.cost import Cost
from transfer.engine.device import autocast, scoring_precision
from transfer.engine.options import Precision
from transfer.engine.outcome import Outcome, Status
from transfer.engine.trackers import Tracker

T = TypeVar("T")


@dataclass
class Context:
    """Everything about a run that is not its recipe."""

    device: torch.device
    precision: Precision
    eval_precision: Precision = "fp32"
    """The precision in which networks are scored; see `scoring_precision`."""
    seed: int = 0
    folder: Path | None = None  # None: nothing is saved
    run_key: str = ""
    workers: int = 0
    threads: Threads = field(default_factory=lambda: Threads(torch.get_num_threads(), "as set", requested=True))
    threads_why: str | None = None  # of the number that this model got
    checkpoint_seconds: float = 300.0
    ranks: Ranks = ALONE
    progress: bool = False
    quiet: bool = False  # nothing is printed; notes still go to the record
    tracker: Tracker = field(default_factory=Tracker)
    cost: Cost = field(default_factory=Cost)
    outcome: Outcome = field(default_factory=Outcome)
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # of the scores, for the record
    features: Path | None = None  # folder of the feature store
    save_weights: bool = True  # whether trained weights are exported, see `engine.trained_weights`
    backbone: dict[str, Any] = field(default_factory=dict)
    untrained: list[str] = field(default_factory=list)
    exported: str | None = None  # weights id of what the run exported
    about: dict[str, Any] = field(default_factory=dict)  # what an export says about its run
    weights_id: str = ""  # of the weights that the run's identity names; empty: any
    head_digest: str = ""  # of the head beside them, likewise
    observer: "Callable[[Any], Callable[[int], dict[str, Any]]] | None" = None
    """Makes of a learner what says, after every epoch (from 0), what the history gets besides scores."""
    watch: Callable[[Any], Any] | None = None
    """Makes of a learner what measures its blocks in some steps; see `backbones.diagnostics.recorder`."""
    stop_signal: int | None = None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return autocast to the precision of training; an empty context for fp32."""
        return autocast(self.precision, self.device)

    def scoring(self) -> AbstractContextManager[Any]:
        """Return the context for every network that is scored: autocast to `eval_precision`, or full float32 without
        TF32.
        """
        return scoring_precision(self.eval_precision, self.device)

    def loader(
        self,
        dataset: Dataset[Any],
        epoch_batches: Callable[[int], list[list[int]]],
        *,
        parts: int,
        collate: Collate | None = None,
        epochs: float = 1,
        repeats: int = 1,
    ) -> RunLoader:
        """Return the loader that `fit` reads from, under the run's ranks and workers; see `RunLoader`.

        Args:
            epochs: of the training, where their numbers of batches differ; 1: every epoch is as long as the first.
            repeats: of an image in an epoch, by repeated augmentation.
        """
        images, lengths, unused = len(dataset), list[int](), list[int]()  # type: ignore[arg-type]
        for batches in map(epoch_batches, range(math.ceil(epochs))):
            lengths.append(len(batches))
            unused.append(images - len(set[int]().union(*batches)))
        steps, left = mean(lengths), mean(unused)
        self.details["epoch"] = {"steps": steps, "images": images, "left_out": left}
        text = f"steps per epoch: {round(steps, 1)}"
        if min(lengths) < max(lengths):
            text += f" on average, {total_steps(lengths, epochs):,} in all"
        if left:
            text += f", without {round(left, 1)} of {images} training images"
        if left and repeats > 1:
            text += f" (repeated augmentation shows {images - left:.0f} up to {repeats} times; for all use --repeats 1)"
        elif 0 < left < max(map(len, batches), default=0):
            text += " (incomplete batches are dropped)"
        self.say(text)
        return RunLoader(
            dataset,
            epoch_batches,
            workers=self.workers,
            parts=parts,
            ranks=self.ranks.data,
            on_gpu=self.on_gpu,
            collate=collate,
            lengths=lengths if epochs > 1 else (),
        )

    def shuffled(self, dataset: Dataset[Any], options: Any, *, collate: Collate | None = None) -> RunLoader:
        """Return the loader of all samples in random order, without an incomplete batch at the end of an epoch."""
        batches = partial(shuffled_batches, len(dataset), options.batch_size, seed=self.seed)  # type: ignore[arg-type]
        return self.loader(dataset, batches, parts=options.grad_accum_steps, collate=collate)

    @property
    def on_gpu(self) -> bool:
        """Whether the run computes on a GPU."""
        return self.device.type == "cuda"

    def note_backbone(self, backbone: Any, operations: dict[str, Any], images: int) -> None:
        """Note what the record says about the model, and settle the number of threads by its size.

        Args:
            operations: the operations of one image, as `backbones.flops.flops` returns them.
            images: that a rank sends through the model at once.

        Raises:
            UserError: its weights are others than those that the run was planned with.
        """
        if self.weights_id not in ("", backbone.weights_id):
            ids = f"{self.weights_id} when it began, {backbone.weights_id} now"
            fault = f"modified while the command was running ({ids})"
            raise UserError(f"weights {backbone.spec.weights}: {fault}; start it again")
        self._settle_threads(operations["total"] * images)
        self.backbone, self.untrained = backbone.spec.as_dict(), backbone.untrained
        self.cost.params = sum(parameter.numel() for parameter in backbone.parameters())
        parts = {name: value for name, value in operations.items() if name not in ("total", "lengths")}
        self.cost.gflops = operations["total"] / 1e9
        self.cost.gflops_by = {name: part / 1e9 for name, part in parts.items()}
        self.note_lengths("attention_lengths", operations)
        if backbone.loaded:
            self.details["weights"] = asdict(backbone.loaded)
            if line := str(backbone.loaded):
                self.note(line)
        if (channels := backbone.spec.in_chans) != 3:
            mean, std = (" ".join(map("{:.3g}".format, part)) for part in (backbone.spec.mean, backbone.spec.std))
            self.note(f"--in-chans {channels}: mean {mean}, std {std}; augmentation leaves out operations on colors")

    def _settle_threads(self, work: float) -> None:
        settled = self.threads if self.on_gpu else self.threads.for_model(work)
        torch.set_num_threads(settled.count)
        self.threads_why = settled.reason
        if settled.count != self.threads.count:  # that number was said before
            self.say(f"threads: {settled.count} ({settled.reason})")

    def note_lengths(self, name: str, operations: dict[str, Any]) -> None:
        """Note for the record how many blocks of point-wise attention divide by which L, if any do."""
        if operations["lengths"]:
            self.details[name] = {str(L): blocks for L, blocks in operations["lengths"].items()}

    def micro_batch(self, batch: int, parts: int) -> int:
        """Return how many images a rank has in one of the `parts` micro-batches of a step, which takes `batch` over all
        ranks.

        Raises:
            UsageError: micro-batches and ranks cannot share them evenly.
        """
        world = self.ranks.data.world
        images, rest = divmod(batch, parts * world)
        if rest:
            raise UsageError(f"--batch-size {batch} in {parts} micro-batches cannot be shared evenly by {world} ranks")
        return images

    def record_unscorable(self, status: Status, reason: object) -> None:
        """Set the outcome of a run whose network gives numbers that are not finite, or features that do not tell images
        apart, where it is scored. A training that has failed keeps its own.
        """
        if self.outcome.training_failed:
            return
        self.outcome = replace(self.outcome, status=status, reason=str(reason), signs=None, windows={})
        self.say(f"{status}: {reason}")

    def note(self, text: str) -> None:
        """Add a note to the record, and print it on stderr."""
        self.notes.append(text)
        self.say(text)

    def say(self, text: str) -> None:
        """Print a line for the user on stderr, from the first rank."""
        if self.ranks.first and not self.quiet:
            tqdm.write(visible_lines(text), file=sys.stderr)

    def bar(self, items: Iterable[T], label: str, total: int | None = None, start: int = 0) -> "tqdm[T]":
        """Return a progress bar on stderr, which prints a line every ten seconds if stderr is not a terminal."""
        shown: Any = {"file": sys.stderr, "mininterval": 0.2 if sys.stderr.isatty() else 10.0, "leave": False}
        return tqdm(items, label, total, initial=start, disable=not (self.progress and self.ranks.first), **shown)

    def check_stop(self) -> None:
        """Raise `Stopped` when a signal has come; for places with nothing to save."""
        if self.stop_signal is not None:
            raise Stopped

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Let SIGTERM, SIGINT and SIGHUP ask the run to save its state and stop, which is said at once; a second signal
        stops it at once.

        SIGHUP, which comes when a terminal is closed, stays ignored where it is, as under nohup.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            if self.stop_signal is not None:
                raise Stopped
            self.stop_signal = number

        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, note) for number in numbers}
        answer = partial(self.say, "stopping after this step (signal again to stop now)")
        try:
            with signals_answered(before.keys(), answer, Stopped.exit_status):
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def auto_workers(device: torch.device, ranks: Ranks) -> int:
    """Return the number of loader processes for a rank: its share of the cores beside a GPU, else a fourth of it."""
    cores = usable_cores() // ranks.local_world
    return min(max(cores, 1), 16) if device.type == "cuda" else cores // 4


def auto_threads(count: int | None, device: torch.device, ranks: Ranks, workers: int) -> Threads:
    """Return torch's threads for a rank: `--threads`, else OMP_NUM_THREADS (its first number), else its share of the
    cores, on a CPU less the loader's processes. See `transfer.core.process`.
    """
    if count is not None:
        return Threads(count, "--threads", requested=True)
    variable = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    # torchrun sets it to 1 where nobody else has set it
    if variable.isdecimal() and int(variable) > (ranks.world > 1):
        return Threads(int(variable), "OMP_NUM_THREADS", requested=True)
    cores, reason = core_limit()
    if ranks.local_world > 1:
        cores, reason = cores // ranks.local_world, f"{reason}, shared by {ranks.local_world} ranks"
    if device.type != "cuda" and workers:
        cores, reason = cores - workers, f"{reason}, without {workers} of the loader"
    return Threads(max(cores, 1), reason)


def peak_mib(device: torch.device) -> float:
    """Return the most memory used so far, in MiB: on the GPU by torch in this run, on a CPU by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_memory() / 2**10
