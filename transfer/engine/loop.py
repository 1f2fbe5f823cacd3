"""The one training loop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch

from transfer.core.errors import Stopped
from transfer.data.loading.loader import StreamPosition, steps_taken
from transfer.engine.checkpoint import SCHEMA, VERSION, History, load_state, save_state
from transfer.engine.context import Context
from transfer.engine.device import device_name, fastest_convolutions
from transfer.engine.learner import Batch, Learner
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Outcome, OutcomeMonitor
from transfer.engine.step import Stepper, Taken

Validate = Callable[[int], dict[str, Any]]
READ_STEPS = 20
"""Steps of an epoch after which nothing is left unread, so that the state can be saved."""


class Loader(Protocol):
    """The interface that `fit` reads from: `transfer.data.loading.loader.RunLoader`, or anything with its `stream`."""

    def stream(self, epoch: int, index: int, epochs: float) -> Iterator[tuple[StreamPosition, Batch]]:
        """Yield positions and batches from a step on."""


def fit(
    learner: Learner, loader: Loader, options: FitOptions, context: Context, validate: Validate | None = None
) -> Outcome:
    """Train `learner` for `options.epochs`, from the saved state if the run's folder has one.

    The state is saved every `context.checkpoint_seconds`, on a signal and at the end. The outcome is also left in
    `context.outcome`, times and images in `context.cost`.

    Args:
        validate: called after every epoch with its number (from 0); what it gives goes to the history and decides
            nothing.

    Raises:
        Stopped: a signal came; the state is saved.
        UserError: the saved state is damaged or foreign, or the disk is full.
    """
    run = _Run(learner, options, context)
    run.restore()
    if not run.done:
        with fastest_convolutions(learner.one_size):
            run.train(loader, validate)
    learner.eval()
    context.outcome = run.outcome
    return run.outcome


@dataclass
class _Progress:
    """The number of completed steps, the position of the next one, and the epoch that still has to be validated."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    unscored: int | None = None


def _circumstances(context: Context) -> dict[str, str]:
    """Return what floating-point rounding depends on besides the options, as phrases that follow "was reached"."""
    return {
        "world": f"by {context.ranks.world} process(es)",
        "threads": f"with {torch.get_num_threads()} thread(s)",
        "device": f"on {device_name(context.device)}",
        "torch": f"with torch {torch.__version__}",
    }


class _Run:
    def __init__(self, learner: Learner, options: FitOptions, context: Context):
        self.options, self.context = options, context
        self.stepper = Stepper(learner, options, context)
        self.observe = context.observer(learner) if context.observer else None
        self.monitor = OutcomeMonitor(options, learner.signs())
        self.progress, self.done, self.outcome = _Progress(), False, Outcome()
        self.unread_steps: list[tuple[_Progress, float, int, Taken]] = []
        """Steps whose numbers the host has not read: progress and fractional epoch after each, and its images."""
        self.stop_requested = False
        # Only the first rank writes; ranks without a folder keep nothing.
        self.folder = context.folder if context.ranks.first else None
        self.last_save = self.clock = time.monotonic()

    def restore(self) -> None:
        """Restore the saved state, if there is one."""
        folder = self.context.folder
        state = load_state(folder, self.context.run_key, self.context.about.get("options")) if folder else None
        if state:
            self._take_up(state)
        else:
            self.history = History(self.folder)

    def _take_up(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state` returned."""
        context = self.context
        self.stepper.load(state["stepper"])
        self.monitor.load(state["monitor"])
        self.progress, self.done = _Progress(**state["progress"]), state["done"]
        self.outcome = Outcome(**state["outcome"])
        vars(context.cost).update(state["cost"])
        context.notes += [note for note in state.get("notes", state["resumed"]) if note not in context.notes]
        context.details |= {"resumed": state["resumed"]} if state["resumed"] else {}
        self.history = History(self.folder, state["history_lines"])
        circumstances = _circumstances(context)
        for name, saved in state["circumstances"].items():
            if circumstances[name] != saved:
                self.note(f"step {self.progress.step} was reached {saved}, the rest {circumstances[name]}")
        epoch = min(self.progress.epoch + 1, self.options.epochs)
        context.say(f"resuming after step {self.progress.step} (epoch {epoch})")

    def note(self, text: str) -> None:
        """Note what is unlike an uninterrupted training, in the record and in the state, as it may be stopped again."""
        self.context.note(text)
        self.context.details.setdefault("resumed", []).append(text)

    def save(self) -> None:
        """Write history and state to the disk, in this order: a state is never ahead of its history."""
        self.last_save = time.monotonic()
        if not self.folder:
            return
        self.history.flush()
        state = {
            SCHEMA: VERSION,
            "run_key": self.context.run_key,
            "options": self.context.about.get("options", {}),
            "stepper": self.stepper.state(),
            "monitor": self.monitor.state(),
            "progress": asdict(self.progress),
            "done": self.done,
            "outcome": asdict(self.outcome),
            "cost": asdict(self.context.cost),
            "circumstances": _circumstances(self.context),
            "notes": self.context.notes,  # such as of a validation that is not repeated
            "resumed": self.context.details.get("resumed", []),
            "history_lines": self.history.count,
        }
        save_state(self.folder, state)

    def train(self, loader: Loader, validate: Validate | None) -> None:
        """Train until the end, a breakdown or a signal."""
        outcome, self.clock = None, time.monotonic()
        self.validate(validate)
        stream = loader.stream(self.progress.epoch, self.progress.index, self.options.epochs)
        with self.context.bar(self._timed(stream), "train", start=self.progress.step) as bar:
            for place, batch in bar:
                self.step(place, batch)
                # a moment that all ranks share: one that read a signal or an outcome before others would leave them
                outcome = self.settle(late=not place.ends_epoch and bool((place.index + 1) % READ_STEPS))
                self._charge("train_seconds")
                bar.total = place.total or steps_taken(place.length, self.options.epochs)
                if not outcome:
                    self.validate(validate)
                position_text = f"epoch {place.epoch + 1}/{self.options.epochs}, loss {self.monitor.loss:.3f}"
                bar.set_postfix_str(position_text, refresh=False)
                if outcome:
                    break
                if self.stop_requested:
                    self.stop()
                if not self.unread_steps and self.clock - self.last_save >= self.context.checkpoint_seconds:
                    self.save()
        outcome = outcome or self.settle()
        self.done = True
        self.stepper.share_buffers()
        if outcome is None and not self.stepper.finite():
            reason = "a parameter or a batch-norm statistic was not finite after the last step"
            outcome = replace(self.monitor.final(self.progress.step), status="nonfinite", reason=reason)
        self.outcome = outcome or self.monitor.final(self.progress.step)
        self.save()

    def validate(self, validate: Validate | None) -> None:
        """Write the scores of an epoch that has just ended to the history, with what the observer says, and charge
        their time to evaluation.
        """
        epoch = self.progress.unscored
        if epoch is None or not (validate or self.observe):
            return
        self.stepper.share_buffers()
        try:
            scores = validate(epoch) if validate else {}
            scores = self.observe(epoch) | scores if self.observe else scores
        except Stopped:
            self.stop()  # taken up with this validation
            raise
        self.stepper.begin()
        if scores:
            if self.monitor.signs.validation:
                self.monitor.score = scores.get(self.monitor.signs.validation[0])
            self.history.add({"step": self.progress.step, "epoch": min(epoch + 1, self.options.epochs), **scores})
            numbers = {f"validation/{key}": value for key, value in scores.items() if isinstance(value, int | float)}
            self.context.tracker.log(self.progress.step, numbers)
        self.progress.unscored = None
        self._charge("eval_seconds")

    def step(self, place: StreamPosition, batch: Batch) -> None:
        """Begin one step."""
        number = self.progress.step + len(self.unread_steps) + 1
        progress = _Progress(number, place.epoch, place.index + 1)
        if place.ends_epoch:
            progress = _Progress(number, place.epoch + 1, 0, unscored=place.epoch)
        moment = self.stepper.schedule.clock(place.epoch, place.index, place.length)
        images = self.stepper.learner.batch_size(batch) * self.context.ranks.data.world
        taken = self.stepper.step(number, moment, batch, place.length)
        self.unread_steps.append((progress, place.epoch + (place.index + 1) / place.length, images, taken))

    def settle(self, *, late: bool = False) -> Outcome | None:
        """Note and judge the statistics of unread steps. Return the outcome if they decide it: no later step counts.

        Args:
            late: leave the last one to its device, where that computes beside the host and skips no steps.
        """
        while self.unread_steps:
            leaves_last = late and self.stepper.late and not self.monitor.skips
            if leaves_last and len(self.unread_steps) == 1:
                break
            self.progress, epoch, images, taken = self.unread_steps.pop(0)
            stats, skipped, signalled = taken.read()
            self.stop_requested, number = self.stop_requested or signalled, self.progress.step
            mark = {"skipped": True} if skipped else {}
            watched = taken.read_watched()
            self.history.add({"step": number, "epoch": round(epoch, 6), **stats, **mark, **watched})
            self.context.tracker.log(number, stats | watched)
            self.context.cost.images += images
            if outcome := self.monitor.update(number, epoch, stats, skipped):
                return outcome
        return None

    def stop(self) -> None:
        """Save the state and raise `Stopped`. A step that ends the training is left to the resumed one."""
        if not self.settle():
            self.save()
        self.context.say(f"stopped by a signal after step {self.progress.step}; rerun the command to resume")
        raise Stopped

    def _charge(self, part: str) -> None:
        """Add the time since the last charge to a part of the cost."""
        before, self.clock = self.clock, time.monotonic()
        vars(self.context.cost)[part] += self.clock - before

    def _timed(self, stream: Iterator[tuple[StreamPosition, Batch]]) -> Iterator[tuple[StreamPosition, Batch]]:
        """Yield from the stream, and charge the time spent waiting for it to the cost."""
        while True:
            before = time.monotonic()
            try:
                item = next(stream)
            except StopIteration:
                return
            except Exception:
                # A signal to the whole process group also ends the loader's workers, in the middle of a batch even.
                if self.context.stop_signal is None:
                    raise
                self.stop()
            self.context.cost.wait_seconds += time.monotonic() - before
            yield item
