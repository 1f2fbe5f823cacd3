"""What each part of a detector's training step takes, for `detection_step`."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tasks.detection.pipelines import DetectionImages
from tests.benchmarks.speed.timing import Clock

PARTS = ("image loading", "backbone", "neck", "RPN", "RoI heads", "backward", "optimiser")


class Stopwatch:
    """Seconds of turns and of the parts within them; on a GPU it waits for the device around each part."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.clock, self.device = clock, device
        self.turns: dict[str, list[dict[str, float]]] = defaultdict(list)
        self._now: dict[str, float] = defaultdict(float)
        self._since = self._optimiser = 0.0

    def begin(self) -> None:
        """A turn starts."""
        self._now = defaultdict(float)
        self._since = self._read()

    def end(self, side: str, *, kept: bool) -> None:
        """A turn of `side` ends, and the next starts."""
        self._now["all"] = self._read() - self._since
        if kept:
            self.turns[side].append(self._now)
        self.begin()

    def medians(self) -> dict[str, dict[str, float]]:
        """Seconds of a turn by side and part; `rest` is what no part accounts for."""
        found = {}
        for side, turns in self.turns.items():
            parts = {part: statistics.median(turn[part] for turn in turns) for part in ("all", *PARTS)}
            found[side] = parts | {"rest": parts["all"] - sum(parts[part] for part in PARTS)}
        return found

    @contextmanager
    def attached(self, *detectors: Any) -> Iterator[None]:
        """The parts of these detectors' steps are timed: their methods, all gradients, optimisers and data sets."""
        from mmdet.datasets import CocoDataset

        places = [(DetectionImages, "__getitem__", PARTS[0]), (CocoDataset, "__getitem__", PARTS[0])]
        for detector in detectors:
            places += [(detector.backbone, "forward", "backbone"), (detector.neck, "forward", "neck")]
            places += [(detector.rpn_head, "loss_and_predict", "RPN"), (detector.roi_head, "loss", "RoI heads")]
        with ExitStack() as stack:
            for owner, name, part in [*places, (Tensor, "backward", "backward")]:
                stack.enter_context(mock.patch.object(owner, name, self._timed(getattr(owner, name), part)))
            for hook in (
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ):
                stack.callback(hook.remove)
            yield

    def _timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            start = self._read()
            result = call(*given, **named)
            self._now[part] += self._read() - start
            return result

        return timed

    def _before_step(self, *_: Any) -> None:
        self._optimiser = self._read()

    def _after_step(self, *_: Any) -> None:
        self._now["optimiser"] += self._read() - self._optimiser

    def _read(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()
