import math

import pytest

from backbones.engine.learner import Learner
from backbones.engine.outcome import DivergenceMonitor, Outcome
from tests.support import fit_options

STEPS = 10  # per epoch


def run(losses: list[float], chance: float | None = None, spread: float = 0.5, **options: float) -> Outcome:
    """Feeds losses to a watch, one per step."""
    watch = DivergenceMonitor(
        fit_options(**options), ("loss", chance) if chance is not None else None, Learner().collapsed
    )
    for step, loss in enumerate(losses, 1):
        verdict = watch.update(step, step / STEPS, {"loss": loss, "grad_norm": 1.0, "spread": spread})
        if verdict:
            return verdict
    return watch.final(len(losses))


def test_a_falling_loss_completes() -> None:
    assert run([5 * 0.99**i for i in range(300)], chance=5.0) == Outcome("completed", "", 300)


@pytest.mark.parametrize(("name", "value"), [("loss", math.nan), ("triplet_loss", math.inf)])
def test_the_first_nonfinite_statistic_is_named_with_its_step(name: str, value: float) -> None:
    watch = DivergenceMonitor(fit_options())
    assert watch.update(1, 0.1, {"loss": 1.0, "grad_norm": 1.0, "triplet_loss": 1.0}) is None
    verdict = watch.update(2, 0.2, {"loss": 1.0, "grad_norm": 1.0, "triplet_loss": 1.0, name: value})
    assert verdict
    assert (verdict.status, verdict.step) == ("nonfinite", 2)
    assert verdict.reason.startswith(name)


def test_fp16_counts_only_skips_in_a_row() -> None:
    watch = DivergenceMonitor(fit_options())
    broken = {"loss": 1.0, "grad_norm": math.inf}
    for step in range(1, 20):
        assert watch.update(step, 0.1, broken, skipped=True) is None
    assert watch.update(20, 0.1, {"loss": 1.0, "grad_norm": 1.0}) is None
    for step in range(21, 40):
        assert watch.update(step, 0.1, broken, skipped=True) is None
    verdict = watch.update(40, 0.1, broken, skipped=True)
    assert verdict
    assert verdict.status == "nonfinite"


def test_fp16_ends_when_the_loss_scale_is_used_up() -> None:
    watch = DivergenceMonitor(fit_options())
    assert watch.update(1, 0.1, {"loss": 1.0, "grad_norm": 1.0, "scale": 1.0}) is None
    verdict = watch.update(2, 0.1, {"loss": 1.0, "grad_norm": 1.0, "scale": 0.5})
    assert verdict
    assert verdict.status == "nonfinite"


def test_a_loss_that_stays_high_for_an_epoch_diverged() -> None:
    losses = [2.0] * 30 + [10.0] * 60
    verdict = run(losses)
    assert verdict.status == "diverged"
    # The smoothed loss leaves 2.0 + max(0.5, 0.1 * 0) after four steps at 10, and must stay there for ten more.
    smoothed, weight, above = 0.0, 0.0, None
    for step, loss in enumerate(losses, 1):
        smoothed, weight = 0.98 * smoothed + 0.02 * loss, 0.98 * weight + 0.02
        if smoothed / weight > 2.5:
            above = above or step
            if step - above >= STEPS:
                break
    assert verdict.step == step


def test_a_bump_shorter_than_an_epoch_is_forgiven() -> None:
    assert run([2.0] * 30 + [20.0] * 2 + [0.0] * 100).status == "completed"


def test_nothing_finite_is_judged_before_the_stated_steps() -> None:
    losses = [2.0] * 10 + [10.0] * 40
    assert run(losses, warmup_epochs=2.0, judge_after=30).status == "diverged"
    assert run(losses, warmup_epochs=2.0, judge_after=31).status == "completed"


def test_a_constant_prediction_is_at_chance() -> None:
    chance = math.log(10)
    assert run([chance] * 100, chance=chance).status == "at_chance"
    assert run([chance - 0.04] * 100, chance=chance).status == "at_chance"
    assert run([chance - 0.06] * 100, chance=chance).status == "completed"
    assert run([chance] * 9, chance=chance).status == "completed"


def test_a_dip_below_chance_does_not_excuse_the_rest() -> None:
    """Back at chance, a run that had left it is judged after an epoch there."""
    chance = math.log(10)
    verdict = run([chance - 0.1] + [chance] * 200, chance=chance)
    assert verdict.status == "at_chance"
    assert verdict.step < 60
    dipped = run([chance] * 5 + [chance - 0.3] * 30 + [chance] * 300, chance=chance, judge_after=20)
    assert dipped.status == "at_chance"
    assert dipped.step < 35 + 120 + STEPS


def test_a_loss_that_rises_through_chance_diverged() -> None:
    chance = math.log(10)
    assert run([1.0] * 30 + [chance + 0.02 * i for i in range(200)], chance=chance).status == "diverged"


def test_the_low_start_of_a_loss_against_moving_targets_is_no_mark() -> None:
    def verdict(losses: list[float]) -> Outcome | None:
        watch = DivergenceMonitor(fit_options(judge_after=200), moving_targets=True)
        found = (watch.update(step, step / STEPS, {"loss": loss}) for step, loss in enumerate(losses, 1))
        return next(filter(None, found), None)

    assert run([2.0] * 40 + [6.0] * 260, judge_after=200).status == "diverged"
    assert verdict([2.0] * 40 + [6.0 - 0.01 * i for i in range(260)]) is None
    late = verdict([2.0] * 250 + [6.0] * 100)
    assert late
    assert late.status == "diverged"


def test_equal_features_collapsed() -> None:
    assert run([1.0] * 100, spread=0.0) == Outcome("collapsed", "all features of a batch were equal for 20 steps", 20)
    assert run([1.0] * 100, spread=0.0, judge_after=40).step == 40
    assert run([1.0] * 100, spread=1e-4).status == "completed"


def test_a_method_says_what_looks_collapsed_and_only_steps_in_a_row_count() -> None:
    class Uniform(Learner):
        def collapsed(self, stats: dict[str, float]) -> str:
            return "the teacher was uniform" if stats["entropy"] > 0.99 else ""

    watch = DivergenceMonitor(fit_options(), None, Uniform().collapsed)
    for step in range(1, 200):
        entropy = 0.5 if step % 20 == 0 else 1.0
        assert watch.update(step, step / STEPS, {"loss": 1.0, "entropy": entropy}) is None
    verdict = watch.update(200, 20.0, {"loss": 1.0, "entropy": 1.0})
    assert verdict == Outcome("collapsed", "the teacher was uniform for 20 steps", 200)


def test_state_survives_a_checkpoint() -> None:
    one = DivergenceMonitor(fit_options())
    losses = [2.0] * 15 + [10.0] * 40
    for step, loss in enumerate(losses[:20], 1):
        one.update(step, step / STEPS, {"loss": loss, "grad_norm": 1.0})
    two = DivergenceMonitor(fit_options())
    two.load(one.state())
    for step, loss in enumerate(losses[20:], 21):
        stats = {"loss": loss, "grad_norm": 1.0}
        assert one.update(step, step / STEPS, stats) == two.update(step, step / STEPS, stats)
    assert one.state() == two.state()
