"""Two models measured in turns."""

from typing import Any

import pytest

from backbones.spec import resolve
from tests.transfer.records.recorded import made, run_set
from transfer.measure.steps import FEWEST, ROUNDS, in_turns, measure_pair
from transfer.records.record import Record
from transfer.runs import RunSet, measure_cost

TRAINED = {"precision": "bf16", "eval_precision": "fp32", "world_size": 1}


def run(stem: str = "patchify", **given: Any) -> Record:
    backbone = resolve("tiny", stem=stem, weights="random").as_dict()
    values = {"environment": TRAINED, "options": {"size": 32, "batch_size": 4}, "smoke": True, "scores": {"mAP": 0.5}}
    return made(**values | {"backbone": backbone, "run_id": f"reid-{stem}"} | given)


def test_a_machine_that_gets_slower_changes_no_ratio() -> None:
    """Steps of 0.013 and 0.01 s, each of which takes 2 % longer than the one before."""
    load, order = 1.0, ""

    def timed(name: str, seconds: float, count: int) -> float:
        nonlocal load, order
        order, load = order + name, load * 1.02**count
        return seconds * load * count

    steps = {"A": 0.013, "B": 0.010}
    ratio = in_turns(lambda: "A", lambda: "B", lambda step, n: timed(str(step()), steps[str(step())], n), 0.3)
    assert order[4:12] == "ABBAABBA", "after one to warm up and one to choose the length of a turn"
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.3, 1.3, 1.3), rel=1e-3)
    assert FEWEST < ratio.rounds <= ROUNDS
    assert in_turns(lambda: "A", lambda: "B", lambda step, n: 100.0 * n, 0.3).rounds == FEWEST


def test_models_are_rebuilt_from_their_records() -> None:
    ratio = measure_pair(run("conv"), run())
    assert (ratio.batch, ratio.clock) == (4, "CPU time of one thread")
    for part in (ratio.forward, ratio.training):
        assert 0 < part.low <= part.median <= part.high
        assert FEWEST <= part.rounds <= ROUNDS
    scored = {"environment": {"precision": None, "eval_precision": "fp32"}}
    scored["options"] = {"size": 32, "eval_batch_size": 2}
    frozen = measure_pair(run("conv", **scored), run(**scored))
    assert (frozen.training, frozen.batch) == (None, 2)


def test_arms_are_measured_in_python() -> None:
    elsewhere = run("conv").backbone | {"stem": "gone.py:Stem", "files": {"stem": "0" * 64}}
    runs = run_set([run("conv"), run("conv", seed=1, run_id="b"), run(), run("xiao", backbone=elsewhere)])
    table = measure_cost(RunSet(runs.runs, runs.known), "stem", "conv", "patchify")
    assert table["runs of"] == ["reid on toy_market"]
    assert table["training"][0] > 0
    (note,) = measure_cost(RunSet(runs.runs, runs.known), "stem", f"sha256:{'0' * 64}:Stem", "patchify").notes
    assert note.text.startswith("not measured: ")
