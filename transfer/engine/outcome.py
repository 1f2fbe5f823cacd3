"""Detect failed training from training statistics only. A failure is recorded as a status, not raised.

The vocabulary is the suite's own definition of what papers call a crash: completed, nonfinite, diverged, collapsed,
at_chance, and not_judged for what the rule cannot tell.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from transfer.engine.options import FitOptions

Status = Literal["completed", "nonfinite", "diverged", "collapsed", "at_chance", "not_judged"]
SCORED = ("completed", "not_judged")
"""Statuses of training runs with scores."""

RULE = 2
"""Version of the rule; rises with any change below."""
EXPORT_RULE = 3
"""Version of the rule where the exported network is not the one whose loss is judged; see `rule_of`."""
MOVED = 2e-3  # change of the exported weights, as a share of their norm, below which nothing has moved
# `tests/benchmarks/outcomes` has the training runs on which the constants of the rule were fixed.
FEWEST = 20  # steps below which a training is not judged; also the smallest window
MARGIN = 0.013  # share of a level that a mean must be away from it
ERRORS = 3.0  # standard errors that it must be away besides
SPREAD_SHARE, SPREAD_FLOOR = 0.01, 0.01  # collapsed features: share of the first window's spread; no more than this
EQUAL_SPREAD = 1e-6  # spread under which a batch counts as one point
# times the start's loss, and steps in a row there, from which training does not recover
HOPELESS, HOPELESS_STEPS = 10.0, 100
BY_GUESSING = 0.001  # probability of a score by guessing, below which it is above chance
RISEN = 1.1  # times its first value and chance, above which a loss that ends there has diverged
SCALER_SKIPS = 20  # fp16: skipped steps in a row that count as non-finite
TENTHS = 5  # tenths of a run in a row that must look failed where it is stopped early


@dataclass(frozen=True, kw_only=True)
class Signs:
    """Statistics of a method that show whether its training works, as plain values for the record.

    `spread` (see `feature_spread`), if among the statistics, shows a collapse in every method.
    """

    statistic: str = "loss"
    """Name of the statistic that decreases in successful training."""
    chance: float | None = None
    """Its value under the best constant prediction, for instance ln C; None where it is undefined."""
    accuracy: float | None = None
    """Likewise of a statistic `accuracy`, which rises: the share of the commonest class."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Other statistics, and the values between which they lie if nothing has collapsed."""
    moving_targets: bool = False
    """Training produces its own targets, so the loss may rise from low early values without failure."""
    validation: tuple[str, float, int] | None = None
    """A score that validation writes to the history, its chance level, and its number of samples, none of which is
    among those that are scored in the end. Training with a score above chance has not failed."""


@dataclass(frozen=True)
class Outcome:
    """The end of a training run: its status, the reason as text, and the step (from 1) at which it was seen."""

    status: Status = "completed"
    reason: str = ""
    step: int = 0
    rule: int = RULE
    signs: dict[str, Any] | None = None
    """The fields of `Signs`; None where nothing was trained, or scoring decided."""
    windows: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Mean of each statistic that was looked at, over the first and the last window."""
    largest_lr: float | None = None
    """The largest learning rate that a step used."""
    change: float | None = None
    """Norm of what training changed the exported weights by, over their norm before; None where none are exported."""

    @property
    def training_failed(self) -> bool:
        """Whether training failed (a killed process has no outcome)."""
        return self.status not in SCORED

    @property
    def nonfinite(self) -> bool:
        """Whether training left numbers that cannot be scored; that of any other failure is, see `Task.execute`."""
        return self.status == "nonfinite"


def rule_of(options: Any) -> int:
    """Return the version of the rule for a training with these options.

    A falling loss shows that the network moves whose loss it is. It does not show it of an average (`export` teacher or
    ema), nor has DINO's student a loss that must fall.
    """
    return RULE if getattr(options, "export", "raw") == "raw" else EXPORT_RULE


def judge_export(outcome: Outcome, change: float) -> Outcome:
    """Return the outcome of a training with the change of the weights that it exports; see `Outcome.change`."""
    judged = replace(outcome, change=change)
    if outcome.status != "completed" or change >= MOVED:
        return judged
    reason = f"nothing moved: training changed the exported weights by {change:.2g} of their norm, less than {MOVED:g}"
    return replace(judged, status="not_judged", reason=reason)


class _Window(NamedTuple):
    mean: float
    error: float
    """Standard error of the mean, from differences of neighbours, which a trend hardly widens (von Neumann 1941)."""


_Windows = Mapping[str, tuple[_Window, _Window]]
"""The first and the last window of each column."""


def window_steps(steps: int) -> int:
    """Return the steps of the windows at the start and the end of training: a tenth, at least 20."""
    return max(FEWEST, steps // 10) if steps >= 2 * FEWEST else steps // 2


def _window(values: Sequence[float]) -> _Window:
    squares = math.fsum((after - before) ** 2 for before, after in itertools.pairwise(values))
    return _Window(math.fsum(values) / len(values), math.sqrt(squares / 2 / (len(values) - 1) / len(values)))


def judge(
    columns: Mapping[str, Sequence[float]],
    signs: Signs,
    step: int,
    score: float | None = None,
    *,
    errors: float = ERRORS,
) -> Outcome:
    """Return the outcome of a training run whose numbers are all finite.

    Args:
        columns: statistics by name, a value for each step that moved the weights.
        signs: what to look for in them.
        step: the number of the last step.
        score: the last one that `signs.validation` names.
        errors: standard errors that a mean must be away from its level.
    """
    steps, rates = len(columns.get("loss", ())), columns.get("lr", ())
    windows = {}
    if steps >= FEWEST:
        length = window_steps(steps)
        for name in ("loss", signs.statistic, "spread", "accuracy", *signs.bounds):
            column = columns.get(name, ())
            if len(column) == steps:
                windows[name] = _window(column[:length]), _window(column[-length:])
    status, reason = _verdict(steps, windows, signs, score, errors)
    if status == "at_chance" and signs.chance is not None and not signs.moving_targets:
        begun, ended = columns[signs.statistic][0], windows[signs.statistic][1].mean
        if ended > RISEN * max(begun, signs.chance):
            status, reason = "diverged", f"{reason}, and it began at {begun:.4g}"
    if hopeless(columns.get(signs.statistic, ()), signs):
        limit = HOPELESS * _start(columns[signs.statistic], signs)
        status, reason = "diverged", f"{signs.statistic} was above {limit:.4g} for {HOPELESS_STEPS} steps"
    means = {name: (first.mean, last.mean) for name, (first, last) in windows.items()}
    return Outcome(status, reason, step, RULE, asdict(signs), means, max(rates, default=None))


def _verdict(steps: int, windows: _Windows, signs: Signs, score: float | None, errors: float) -> tuple[Status, str]:
    name, level = signs.statistic, signs.chance
    if not steps:
        return "not_judged", "nothing was trained"
    if steps < FEWEST:
        return "not_judged", f"{steps} steps, at least {FEWEST} are needed; train longer, or with smaller batches"
    if level is not None and level <= 0:
        return "not_judged", "one class, so that a constant prediction makes no error"
    if name not in windows:
        return "not_judged", f"not every step has {name}"
    if signs.validation and score is None:
        return "not_judged", f"no validation gave {signs.validation[0]}"
    first, last = windows[name]
    start = first if level is None else _Window(level, 0.0)
    margin = max(MARGIN * abs(start.mean), errors * math.hypot(start.error, last.error))
    left = last.mean < start.mean - margin
    if (left and level is not None) or _above_chance(windows, signs, score, errors):
        return "completed", ""
    if why := _collapsed(windows, signs):
        return "collapsed", why
    if left or (level is None and signs.moving_targets):
        return "completed", ""
    text = f"{name} {last.mean:.4g} over the last {window_steps(steps)} steps"
    if level is None and not signs.moving_targets and last.mean > first.mean + margin:
        return "diverged", f"{text}, which was {first.mean:.4g} over the first"
    level_name = "over the first" if level is None else "of a constant prediction"
    noisy = last.mean < start.mean - MARGIN * abs(start.mean)
    fix = f", {errors:g} standard errors; train longer to tell it from noise" if noisy else ""
    return "at_chance", f"{text} is not below the {start.mean:.4g} {level_name} by {margin:.2g}{fix}"


def _above_chance(windows: _Windows, signs: Signs, score: float | None, errors: float) -> bool:
    """Return whether more is right than a constant prediction has right, in training or in validation."""
    if signs.accuracy is not None and "accuracy" in windows:
        last = windows["accuracy"][1]
        if last.mean > signs.accuracy + errors * last.error:
            return True
    return signs.validation is not None and score is not None and above_chance(score, *signs.validation[1:])


def above_chance(score: float, level: float, samples: int) -> bool:
    """Return whether a share of right samples is above that of guessing, by a one-sided exact binomial test."""
    from scipy.special import betainc

    hits = round(score * samples)  # betainc is P(at least so many hits by guessing)
    return hits > level * samples and bool(betainc(hits, samples - hits + 1, level) < BY_GUESSING)


def _collapsed(windows: _Windows, signs: Signs) -> str:
    """Return why the last window looks collapsed; an empty text if it does not."""
    if "spread" in windows:
        first, last = (window.mean for window in windows["spread"])
        if last <= max(EQUAL_SPREAD, min(SPREAD_FLOOR, SPREAD_SHARE * first)):
            return f"the features of a batch became equal: spread {last:.2g}, which was {first:.2g}"
    for name, (low, high) in signs.bounds.items():
        if name in windows and not low <= (value := windows[name][1].mean) <= high:
            return f"{name} {value:.4g} is not between {low:.4g} and {high:.4g}"
    return ""


def _start(column: Sequence[float], signs: Signs) -> float:
    return max(_window(column[:FEWEST]).mean, signs.chance or 0.0)


def hopeless(column: Sequence[float], signs: Signs) -> bool:
    """Return whether the statistic of `signs` has long been at values from which training does not recover."""
    if signs.moving_targets or len(column) < FEWEST + HOPELESS_STEPS:
        return False
    start = _start(column, signs)
    return column[-1] > HOPELESS * start > 0 and min(column[-HOPELESS_STEPS:]) > HOPELESS * start


class OutcomeMonitor:
    """Follows training statistics: stops training when failure is certain, and checks for failure at the end.

    Attributes:
        columns: the statistics that `judge` reads, a value for each step that moved the weights.
        score: the last one that `signs.validation` names.
    """

    def __init__(self, options: FitOptions, signs: Signs) -> None:
        self.options, self.signs = options, signs
        self.columns: dict[str, list[float]] = {}
        self.score: float | None = None
        self.skips = 0  # steps in a row that the scaler skipped
        self.failing = 0  # tenths of the run in a row that looked failed
        self.time = 0.0

    def update(self, step: int, time: float, stats: Mapping[str, float], skipped: bool = False) -> Outcome | None:
        """Return the outcome if training ends with this step; None while it continues.

        Args:
            time: fractional epoch after the step.
            stats: `loss`, `grad_norm`, and what the learner gave besides.
            skipped: the fp16 scaler left this step out.
        """
        before, self.time = self.time, time
        self.skips = self.skips + 1 if skipped else 0
        if self.skips >= SCALER_SKIPS:
            return self._nonfinite(f"fp16: {self.skips} steps in a row had non-finite gradients", step)
        if stats.get("scale", 1.0) < 1:
            return self._nonfinite(f"fp16: the loss scale fell to {stats['scale']:.3g}", step)
        if skipped:
            return None  # its numbers enter no window
        bad = [name for name, value in stats.items() if not math.isfinite(value)]
        if bad:
            return self._nonfinite(f"{bad[0]} became {stats[bad[0]]} (rate {stats.get('lr', math.nan):.3g})", step)
        for name in {"loss", "lr", "spread", "accuracy", self.signs.statistic, *self.signs.bounds}.intersection(stats):
            self.columns.setdefault(name, []).append(stats[name])
        if hopeless(self.columns.get(self.signs.statistic, ()), self.signs):
            return self.final(step)
        return self._early(step, before) if self.options.stop_early else None

    def _nonfinite(self, reason: str, step: int) -> Outcome:
        return replace(self.final(step), status="nonfinite", reason=reason)

    def _early(self, step: int, before: float) -> Outcome | None:
        """Return the outcome if training looked failed, without error margins, at the end of several tenths after
        warm-up.
        """
        then, now = (int(10 * time / self.options.epochs + 1e-9) for time in (before, self.time))
        if now == then or self.time <= self.options.warmup_epochs:
            return None
        outcome = self.final(step, errors=0.0)
        self.failing = self.failing + 1 if outcome.training_failed else 0
        return outcome if self.failing == TENTHS else None

    @property
    def loss(self) -> float:
        """The loss of the last step that moved the weights; nan before the first."""
        return self.columns.get("loss", [math.nan])[-1]

    def final(self, step: int, errors: float = ERRORS) -> Outcome:
        """Return the outcome if training ends with this step; see `judge`."""
        return replace(judge(self.columns, self.signs, step, self.score, errors=errors), rule=rule_of(self.options))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = {name: value for name, value in vars(self).items() if name not in ("options", "signs")}
        return state | {"columns": {name: [*column] for name, column in self.columns.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that `state` returned."""
        vars(self).update(state)
