"""The rule by which a training is judged, on drawn statistics and on the committed trainings of the guide."""

import itertools
import json
import math
from dataclasses import asdict
from random import Random
from typing import Any

import pytest

from tests.benchmarks.outcomes import Training, errors, read
from tests.support import fit_options
from transfer.engine.outcome import (
    FEWEST,
    HOPELESS,
    HOPELESS_STEPS,
    MARGIN,
    RULE,
    SCALER_SKIPS,
    Outcome,
    OutcomeMonitor,
    Signs,
    judge,
)

LN10, LN97 = math.log(10), math.log(97)
CLASSES = Signs(chance=LN10, accuracy=0.1)
IDENTITIES = Signs(statistic="identity_loss", chance=LN97)
TEACHER = Signs(moving_targets=True, bounds={"teacher_entropy": (0.1, 9.9)})


def noisy(*points: tuple[int, float], noise: float = 0.03) -> list[float]:
    """Values on straight lines between (step, value), with Gaussian noise."""
    line, random = [], Random(0)
    for (start, low), (end, high) in itertools.pairwise(points):
        line += [low + (high - low) * step / (end - start) for step in range(end - start)]
    return [value + random.gauss(0, noise) for value in line]


def run(losses: list[float], signs: Signs = CLASSES, epochs: int = 10, **given: Any) -> Outcome:
    """Follow a training of these losses to its end; `columns` are further statistics, options the rest."""
    columns = given.pop("columns", {})
    monitor = OutcomeMonitor(fit_options(epochs=epochs, **given), signs)
    for step, loss in enumerate(losses, 1):
        stats = {"loss": loss, "lr": 0.1, **{name: column[step - 1] for name, column in columns.items()}}
        if found := monitor.update(step, epochs * step / len(losses), stats):
            return found
    return monitor.final(len(losses))


FOUND_DEAD = {
    "identities at ln 97, features equal": (
        [6.0] * 140, IDENTITIES,
        {"identity_loss": noisy((0, 4.9), (30, LN97), (140, LN97), noise=2e-4), "spread": [0.3] * 20 + [1e-5] * 120},
        "collapsed",
    ),
    "features of a random ViT became equal": (
        noisy((0, 2.6), (40, 2.31), (300, 2.31)), CLASSES,
        {"spread": noisy((0, 0.6), (60, 2e-4), (300, 2e-4), noise=0)}, "collapsed",
    ),
    "last losses of 2.36": (noisy((0, 2.5), (40, 2.36), (160, 2.36)), CLASSES, {"spread": [0.4] * 160}, "at_chance"),
    "last losses of 2.30": (noisy((0, 2.5), (40, 2.30), (160, 2.30)), CLASSES, {"spread": [0.4] * 160}, "at_chance"),
    "no more right than by chance": ([2.36] * 160, CLASSES, {"accuracy": noisy((0, 0.1), (160, 0.1))}, "at_chance"),
    "fewer steps than two windows": (noisy((0, 2.4), (24, 2.31)), CLASSES, {}, "at_chance"),
    "a dip below chance": (noisy((0, 2.3), (60, 1.9), (120, 2.31), (300, 2.31)), CLASSES, {}, "at_chance"),
    "rising through chance": (noisy((0, 2.3), (100, 1.0), (300, 6.0)), CLASSES, {}, "diverged"),
    "no level, and no fall": (noisy((0, 4.0), (200, 4.0)), Signs(), {}, "at_chance"),
    "no level, and a rise": (noisy((0, 4.0), (200, 6.0)), Signs(), {}, "diverged"),
    "a uniform teacher": ([5.0] * 100, TEACHER, {"teacher_entropy": [9.0] * 50 + [9.95] * 50}, "collapsed"),
    "a constant teacher": ([5.0] * 100, TEACHER, {"teacher_entropy": [9.0] * 50 + [0.01] * 50}, "collapsed"),
}  # fmt: skip
FOUND_ALIVE = {
    "a peak at a large rate": (noisy((0, 2.3), (20, 3.8), (30, 2.3), (58, 2.22), (78, 2.22)), CLASSES, {}),
    "too sure, and right too often for chance": ([2.36] * 160, CLASSES, {"accuracy": noisy((0, 0.1), (160, 0.17))}),
    "a peak far above, and back": (noisy((0, 2.3), (30, 60.0), (60, 2.0), (200, 1.0)), CLASSES, {}),
    "equal features that batch norm tells apart": (noisy((0, 2.3), (200, 1.0)), CLASSES, {"spread": [0.5, 1e-4] * 100}),
    "parallel features of the start": (noisy((0, 5.0), (100, 3.0)), Signs(), {"spread": [1e-4] * 100}),
    "targets of its own": (noisy((0, 2.0), (40, 2.0), (300, 6.0)), TEACHER, {"teacher_entropy": [5.0] * 300}),
    "no level, and a fall": (noisy((0, 5.0), (200, 4.0)), Signs(), {}),
}


@pytest.mark.parametrize("name", FOUND_DEAD)
def test_a_training_that_failed_is_told_from_its_windows(name: str) -> None:
    losses, signs, columns, status = FOUND_DEAD[name]
    found = run(losses, signs, columns=columns)
    assert (found.status, found.step, found.rule) == (status, len(losses), RULE)
    assert found.reason


@pytest.mark.parametrize("stop_early", [False, True])
@pytest.mark.parametrize("name", FOUND_ALIVE)
def test_a_training_that_lives_is_left_alone(name: str, stop_early: bool) -> None:
    losses, signs, columns = FOUND_ALIVE[name]
    found = run(losses, signs, columns=columns, stop_early=stop_early)
    assert (found.status, found.reason, found.step) == ("completed", "", len(losses))


def test_a_mean_must_be_below_chance_by_a_share_of_it_and_by_its_errors() -> None:
    assert run([LN10 * (1 - 0.99 * MARGIN)] * 100).status == "at_chance"
    assert run([LN10 * (1 - 1.01 * MARGIN)] * 100).status == "completed"
    unclear = run(noisy((0, LN10 - 0.1), (100, LN10 - 0.1), noise=0.2))
    assert unclear.status == "at_chance"
    assert unclear.reason.endswith("3 standard errors; train longer to tell it from noise")
    assert run(noisy((0, LN10 - 0.3), (100, LN10 - 0.3), noise=0.2)).status == "completed"


@pytest.mark.parametrize(
    ("losses", "signs", "reason"),
    [
        ([1.0] * (FEWEST - 1), CLASSES, "19 steps"),
        ([0.0] * 100, Signs(chance=0.0), "one class"),
        ([2.0] * 100, IDENTITIES, "not every step has identity_loss"),
        ([2.0] * 100, Signs(chance=LN10, validation=("held_out_top1", 0.1, 500)), "no validation gave held_out_top1"),
    ],
)
def test_what_cannot_be_told_is_not_judged_and_says_why(losses: list[float], signs: Signs, reason: str) -> None:
    found = run(losses, signs)
    assert (found.status, found.training_failed) == ("not_judged", False)
    assert reason in found.reason


def test_a_score_on_images_that_are_not_scored_in_the_end_keeps_a_training_alive() -> None:
    signs = Signs(chance=LN10, validation=("held_out_top1", 0.1, 500))
    columns = {"loss": noisy((0, 2.5), (100, LN10))}
    assert judge(columns, signs, 100, 0.12).status == "at_chance"  # within what 500 images give by luck
    assert judge(columns, signs, 100, 0.2).status == "completed"


def test_a_loss_from_which_nothing_recovers_ends_the_training() -> None:
    far = [2.3] * 50 + [1.01 * HOPELESS * LN10] * HOPELESS_STEPS
    found = run([*far, 1.0, 1.0])
    assert (found.status, found.step) == ("diverged", len(far))
    assert run([*far[:-1], *[1.0] * 100]).status == "completed"
    assert run([*far, *[1.0] * 100], Signs(moving_targets=True)).status == "completed"


def test_stopping_early_is_off_by_default_and_needs_five_tenths_past_the_warm_up() -> None:
    dead = noisy((0, 2.5), (40, 2.31), (400, 2.31))
    assert run(dead).step == 400
    assert run(dead, stop_early=True).step == 200
    assert run(dead, stop_early=True, warmup_epochs=4.0).step == 360
    late = noisy((0, 2.5), (40, 2.31), (110, 2.31), (400, 1.5))
    assert run(late, stop_early=True).status == "completed"


@pytest.mark.parametrize(("name", "value"), [("loss", math.nan), ("triplet_loss", math.inf)])
def test_the_first_nonfinite_statistic_is_named_with_its_step(name: str, value: float) -> None:
    monitor = OutcomeMonitor(fit_options(), Signs())
    assert monitor.update(1, 0.1, {"loss": 1.0, "grad_norm": 1.0, "triplet_loss": 1.0}) is None
    found = monitor.update(2, 0.2, {"loss": 1.0, "grad_norm": 1.0, "triplet_loss": 1.0, name: value})
    assert found
    assert (found.status, found.step) == ("nonfinite", 2)
    assert found.reason.startswith(name)


def test_fp16_counts_skips_in_a_row_which_enter_no_window_and_ends_when_the_scale_is_used_up() -> None:
    monitor = OutcomeMonitor(fit_options(), Signs())
    broken = {"loss": 1.0, "grad_norm": math.inf}
    for step in range(1, SCALER_SKIPS):
        assert monitor.update(step, 0.1, broken, skipped=True) is None
    assert monitor.update(SCALER_SKIPS, 0.1, {"loss": 2.0, "grad_norm": 1.0}) is None
    assert monitor.columns == {"loss": [2.0]}
    found = [monitor.update(step, 0.1, broken, skipped=True) for step in range(SCALER_SKIPS + 1, 2 * SCALER_SKIPS + 1)]
    assert [outcome and outcome.status for outcome in found] == [None] * (SCALER_SKIPS - 1) + ["nonfinite"]
    monitor = OutcomeMonitor(fit_options(), Signs())
    assert monitor.update(1, 0.1, {"loss": 1.0, "scale": 1.0}) is None
    assert (found := monitor.update(2, 0.1, {"loss": 1.0, "scale": 0.5}))
    assert found.status == "nonfinite"


def test_an_outcome_keeps_all_that_a_later_rule_needs() -> None:
    """The record has it as JSON."""
    columns = {"identity_loss": noisy((0, 4.9), (100, LN97)), "spread": [0.5] * 100, "loss": [5.0] * 100}
    columns["lr"] = noisy((0, 0.0), (50, 0.4), (100, 0.0), noise=0)
    found = judge(columns, IDENTITIES, 100)
    kept = json.loads(json.dumps(asdict(found)))
    assert judge(columns, Signs(**kept["signs"]), 100) == found
    assert kept["windows"]["identity_loss"] == pytest.approx([4.84, LN97], abs=0.1)
    assert kept["windows"]["spread"] == [0.5, 0.5]
    assert kept["largest_lr"] == max(columns["lr"])


STATED = {"even": (5, 70, 6, 60), "odd": (3, 42, 4, 48)}
"""Dead called alive, of how many; alive called dead, of how many: supervised and ReID, as in `docs/measured.md`."""


def counted(trainings: list[Training]) -> tuple[int, int, int, int]:
    found = errors(trainings)
    of = {truth: sum(count for (is_true, _), count in found.items() if is_true == truth) for truth in ("dead", "alive")}
    return found["dead", "alive"], of["dead"], found["alive", "dead"], of["alive"]


def test_errors_are_those_stated() -> None:
    trainings = [one for one in read() if one.values["method"] != "dino"]
    halves = {name: [one for one in trainings if one.reported == (name == "odd")] for name in STATED}
    assert {name: counted(part) for name, part in halves.items()} == STATED


def test_what_lives_is_never_called_dead_from_a_hundred_steps_on() -> None:
    long = [one for one in read() if one.values["method"] != "dino" and one.steps >= 100]
    assert counted(long)[2:] == (0, 40)
