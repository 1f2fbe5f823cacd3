"""How a training ended, judged on training statistics only. Breaking down is a result, not an exception.

The vocabulary is the suite's own definition of what papers call a crash: completed, nonfinite, diverged, collapsed,
at_chance.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from backbones.engine.options import FitOptions

Status = Literal["completed", "nonfinite", "diverged", "collapsed", "at_chance"]

SMOOTHING = 0.98  # decay of the running mean of the loss, per step
MARGIN = 0.05  # nats below the best constant prediction that count as having left chance
SCALER_SKIPS = 20  # fp16: skipped steps in a row that count as non-finite
COLLAPSED_STEPS = 20  # collapsed steps in a row that count as a collapse


@dataclass(frozen=True)
class Outcome:
    """The end of a training run: its status, the reason as text, and the step (from 1) at which it was seen."""

    status: Status = "completed"
    reason: str = ""
    step: int = 0

    @property
    def training_failed(self) -> bool:
        """Whether the training failed as a training (a process that was killed never gets an outcome)."""
        return self.status != "completed"


@dataclass
class RunningMean:
    """Debiased exponential mean of a statistic."""

    total: float = 0.0
    weight: float = 0.0

    def update(self, value: float) -> float:
        """Add one value and return the mean."""
        self.total = SMOOTHING * self.total + (1 - SMOOTHING) * value
        self.weight = SMOOTHING * self.weight + (1 - SMOOTHING)
        return self.value

    @property
    def value(self) -> float:
        """The mean so far; nan before the first value."""
        return self.total / self.weight if self.weight else math.nan


@dataclass
class DivergenceMonitor:
    """Follows the statistics of a training and judges when it has broken down.

    Args:
        options: `judge_after` steps past the warm-up the finite verdicts begin.
        chance: name of a statistic and the value that the best constant prediction gives it, for instance
            ("id_loss", ln C); None where a method has no such level.
        collapsed: the statistics of a step -> a phrase that says why they look collapsed, or an empty text.
        moving_targets: the loss has targets that the training itself makes, so that it may rise from low early values
            in good health: values before the judged steps are not compared with later ones.
    """

    options: FitOptions
    chance: tuple[str, float] | None = None
    collapsed: Callable[[dict[str, float]], str] = lambda stats: ""
    moving_targets: bool = False
    means: dict[str, RunningMean] = field(default_factory=dict)
    initial: float = math.nan
    lowest: float = math.inf
    above_since: float | None = None  # fractional epoch since which the loss has been too high
    flat_steps: int = 0
    left_chance: bool = False
    chance_since: float | None = None  # fractional epoch since which the loss has been at chance
    warm_steps: int = 0  # steps past the warm-up
    skips: int = 0

    def update(self, step: int, time: float, stats: dict[str, float], skipped: bool = False) -> Outcome | None:
        """Return the verdict after one step; None while nothing is wrong.

        Args:
            time: fractional epoch after the step.
            stats: `loss`, `grad_norm`, and what the learner gave besides.
            skipped: the fp16 scaler left this step out.
        """
        self.skips = self.skips + 1 if skipped else 0
        if self.skips >= SCALER_SKIPS:
            return Outcome("nonfinite", f"fp16: {self.skips} steps in a row had non-finite gradients", step)
        if stats.get("scale", 1.0) < 1:
            return Outcome("nonfinite", f"fp16: the loss scale fell to {stats['scale']:.3g}", step)
        if skipped:
            return None  # its numbers enter no mean
        bad = [name for name, value in stats.items() if not math.isfinite(value)]
        if bad:
            return Outcome("nonfinite", f"{bad[0]} became {stats[bad[0]]} (rate {stats.get('lr', math.nan):.3g})", step)
        for name, value in stats.items():
            self.means.setdefault(name, RunningMean()).update(value)
        return self._finite_verdict(step, time, stats)

    def _finite_verdict(self, step: int, time: float, stats: dict[str, float]) -> Outcome | None:
        self.warm_steps += time > self.options.warmup_epochs
        judged = self.warm_steps >= self.options.judge_after
        loss = self.means["loss"].value
        self.initial = loss if math.isnan(self.initial) else self.initial
        self.lowest = min(self.lowest, loss) if judged or not self.moving_targets else loss
        limit = self.lowest + max(0.5, 0.1 * abs(self.initial - self.lowest))
        if loss <= limit:
            self.above_since = None
        elif self.above_since is None:
            self.above_since = time
        if self._at_chance(step) is None:
            self.left_chance, self.chance_since = True, None
        elif self.chance_since is None:
            self.chance_since = time
        why = self.collapsed(stats)
        self.flat_steps = self.flat_steps + 1 if why else 0
        if not judged:
            return None
        if self.flat_steps >= COLLAPSED_STEPS:
            return Outcome("collapsed", f"{why} for {self.flat_steps} steps", step)
        if self.above_since is not None and time - self.above_since >= 1.0:
            reason = f"smoothed loss {loss:.4g} stayed above {limit:.4g} for an epoch (it had been {self.lowest:.4g})"
            return Outcome("diverged", reason, step)
        # A loss that is rising beyond chance is on its way to being called diverged, and one that has left chance may
        # pass it on that way: it is back there only after an epoch.
        if self.above_since is not None or self.chance_since is None:
            return None
        return self._at_chance(step) if not self.left_chance or time - self.chance_since >= 1.0 else None

    @property
    def loss(self) -> float:
        """The smoothed loss; nan before the first step."""
        return self.means["loss"].value if "loss" in self.means else math.nan

    def final(self, step: int) -> Outcome:
        """Return the verdict at the end of a training that was not stopped early."""
        judged = self._at_chance(step) if self.warm_steps >= self.options.judge_after else None
        return judged or Outcome("completed", "", step)

    def _at_chance(self, step: int) -> Outcome | None:
        if self.chance is None or self.chance[0] not in self.means:
            return None
        name, level = self.chance
        value = self.means[name].value
        if value < level - MARGIN:
            return None
        reason = f"smoothed {name} {value:.4g} is that of a constant prediction ({level:.4g})"
        return Outcome("at_chance", reason, step)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        kept = ("initial", "lowest", "above_since", "flat_steps", "left_chance", "chance_since", "warm_steps", "skips")
        means = {name: asdict(mean) for name, mean in self.means.items()}
        return {"means": means, **{name: getattr(self, name) for name in kept}}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        for name, value in state.items():
            setattr(self, name, value)
        self.means = {name: RunningMean(**mean) for name, mean in state["means"].items()}
