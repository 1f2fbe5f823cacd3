import math

import numpy as np
import pytest

from tests.transfer.records.recorded import broken, made, trained
from tests.transfer.report.tables.of_records import cost_table_of
from transfer.records.record import Record
from transfer.report.tables.costs import hours, pareto

CPU = {"precision": "bf16", "device_type": "cpu", "threads": 2, "workers": 1}
GPU = {"precision": "bf16", "device_type": "cuda", "threads": 8, "workers": 16}


def run(score: float, gflops: float = 1.0, name: str = "tiny", **given: object) -> Record:
    cost = {"gflops": gflops, "params": 2_000_000, "device_hours": 0.5}
    return made(scores={"mAP": score}, **{"cost": cost, "backbone": {"name": name}, "environment": CPU, **given})


def test_a_row_says_what_a_configuration_took() -> None:
    slower = {"gflops": 1.0, "params": 2_000_000, "device_hours": 0.7}
    (row,) = cost_table_of([run(0.4), run(0.6, seed=1, cost=slower), broken(seed=2, environment=CPU)]).rows
    assert (row["metric"], row["score"], row["seeds"], row["failed"]) == ("mAP", pytest.approx(50.0), 2, 1)
    assert (row["gflops"], row["params_million"]) == (1.0, 2.0)
    assert row["run_hours"] == pytest.approx(0.6 * 3)
    assert (row["pretrain_hours"], row["total_hours"], row["hours_of"]) == (0.0, pytest.approx(1.8), "core")


def test_hours_are_those_of_gpus_or_of_cores() -> None:
    assert hours(run(0.5, environment=GPU)) == pytest.approx(0.5)
    assert math.isnan(hours(run(0.5, cost={})))


def test_pretraining_of_all_stages_is_added() -> None:
    cost = {"device_hours": 10.0}
    first = trained("sha256:a", cost=cost, environment=CPU)
    second = trained("sha256:b", weights_id="sha256:a", epochs=1, cost=cost, environment=CPU)
    known = [first, second]
    assert cost_table_of([run(0.5, weights_id="sha256:b")], known=known)["total_hours"] == [61.5]
    rows = cost_table_of([run(0.5, weights_id="timm:x"), run(0.6, weights_id="random")], known=known)
    assert [*map(math.isnan, rows["pretrain_hours"])] == [True, False]
    other = [run(0.5, environment=GPU), run(0.5, weights_id="sha256:a", environment=GPU)]
    table = cost_table_of(other, known=known)
    assert table["hours_of"] == ["GPU", "mixed"]
    assert [*map(math.isnan, table["total_hours"])] == [False, True]


def test_the_front_is_what_nothing_beats() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        scores, costs = rng.integers(0, 6, size).astype(float), rng.integers(0, 6, size).astype(float)
        points = list(zip(scores, costs, strict=True))
        expected = [
            not any(s >= score and c <= cost and (s > score or c < cost) for s, c in points) for score, cost in points
        ]
        assert pareto(scores.tolist(), costs.tolist()) == expected
    assert pareto([1.0, math.nan, 2.0], [1.0, 0.1, math.nan]) == [True, False, False]
    assert pareto([50.0, 50.0 + 1e-14], [1.0, 1.0 + 1e-15]) == [True, True], "equal but for rounding"


def test_features_that_were_found_cost_what_they_took_where_that_is_known() -> None:
    """Extraction takes a minute on three cores, a probe ten seconds; with the store only the latter is its own."""

    def probe(seconds: float, found: float | None, lr: float) -> Record:
        cost = {"device_hours": seconds / 3600, "extraction_seconds": 60.0, "found_hours": found}
        return run(0.5, task="fewshot", cost=cost, lr=lr)

    table = cost_table_of([probe(70, 0.0, 0.1), probe(10, 60 * 3 / 3600, 0.2), probe(10, None, 0.3)])
    assert table["run_hours"] == pytest.approx([70 * 3 / 3600] * 2 + [math.nan], nan_ok=True)


def test_fronts_are_among_rows_that_can_be_compared() -> None:
    runs = [run(0.9, 1.0, "good"), run(0.5, 2.0, "bad"), run(0.5, 2.0, "other", lr=0.1)]
    assert cost_table_of(runs)["pareto_gflops"] == [False, True, False], "one point is no front"
    lower = {"mAP": {"unit": "error", "direction": "lower", "bounds": [0, 1]}}
    runs = [run(0.9, 1.0, "worse", metrics=lower), run(0.5, 1.0, "better", metrics=lower)]
    assert cost_table_of(runs)["pareto_gflops"] == [True, False]
