"""Costs of configurations, and measured cost ratios: kept with a sweep, shown in the summary."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.spec import resolve
from tests.transfer.records.recorded import broken, made, run_set, trained
from tests.transfer.report.tables.test_comparison import made as of_stem
from transfer.measure.ratios import UNMEASURED, CostRatio, CostRatios, Ratio, step_images
from transfer.records.record import Record, total_hours
from transfer.report.__main__ import main
from transfer.report.tables.costs import cost_table, pareto

Captured = pytest.CaptureFixture[str]

CPU = {"precision": "bf16", "device_type": "cpu", "threads": 2, "workers": 1}
GPU = {"precision": "bf16", "device_type": "cuda", "threads": 8, "workers": 16}


def run(score: float, gflops: float = 1.0, name: str = "tiny", **given: object) -> Record:
    cost = {"gflops": gflops, "params": 2_000_000, "device_hours": 0.5}
    return made(scores={"mAP": score}, **{"cost": cost, "backbone": {"name": name}, "environment": CPU, **given})


def test_a_row_says_what_a_configuration_took() -> None:
    slower = {"gflops": 1.0, "params": 2_000_000, "device_hours": 0.7}
    (row,) = cost_table(run_set([run(0.4), run(0.6, seed=1, cost=slower), broken(seed=2, environment=CPU)])).rows
    assert (row["metric"], row["score"], row["seeds"], row["failed"]) == ("mAP", pytest.approx(50.0), 2, 1)
    assert (row["gflops"], row["params_million"]) == (1.0, 2.0)
    assert row["run_hours"] == pytest.approx(0.6 * 3)
    assert (row["pretrain_hours"], row["total_hours"], row["hours_of"]) == (0.0, pytest.approx(1.8), "core")


def test_pretraining_of_all_stages_is_added() -> None:
    cost = {"device_hours": 10.0}
    first = trained("sha256:a", cost=cost, environment=CPU)
    second = trained("sha256:b", weights_id="sha256:a", epochs=1, cost=cost, environment=CPU)
    known = [first, second]
    assert cost_table(run_set([run(0.5, weights_id="sha256:b")], known))["total_hours"] == [61.5]
    rows = cost_table(run_set([run(0.5, weights_id="timm:x"), run(0.6, weights_id="random")], known))
    assert [*map(math.isnan, rows["pretrain_hours"])] == [True, False]
    other = [run(0.5, environment=GPU), run(0.5, weights_id="sha256:a", environment=GPU)]
    table = cost_table(run_set(other, known))
    assert (table["hours_of"], table["run_hours"][0]) == (["GPU", "mixed"], 0.5)
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

    def probe(seconds: float, found: float | None, lr: float, entry: str = "a") -> Record:
        cost = {"device_hours": seconds / 3600, "extraction_seconds": 60.0, "found_hours": found}
        return run(0.5, task="fewshot", cost=cost, lr=lr, details={"features": {"entries": [entry]}})

    table = cost_table(run_set([probe(70, 0.0, 0.1), probe(10, 60 * 3 / 3600, 0.2), probe(10, None, 0.3)]))
    assert table["run_hours"] == pytest.approx([70 * 3 / 3600] * 2 + [math.nan], nan_ok=True)
    own, *others = [probe(36, 0.0, 0.1), probe(36, 0.5, 0.2), probe(36, 0.5, 0.3), probe(36, 0.5, 0.4, "b")]
    assert total_hours([own, *others]) == "0.62 core", "the first one extracted `a`"
    assert total_hours(others) == "1.09 core"


def test_fronts_are_among_rows_that_can_be_compared() -> None:
    runs = [run(0.9, 1.0, "good"), run(0.5, 2.0, "bad"), run(0.5, 2.0, "other", lr=0.1)]
    assert cost_table(run_set(runs))["pareto_gflops"] == [False, True, False], "one point is no front"
    lower = {"mAP": {"unit": "error", "direction": "lower", "bounds": [0, 1]}}
    runs = [run(0.9, 1.0, "worse", metrics=lower), run(0.5, 1.0, "better", metrics=lower)]
    assert cost_table(run_set(runs))["pareto_gflops"] == [True, False]


MEASURED = CostRatio(Ratio(1.05, 1.04, 1.06, 20), Ratio(1.34, 1.31, 1.36, 20), 16, "CPU time of one thread", "here")


def swept(root: Path) -> tuple[list[Record], list[tuple[Record, Record]]]:
    """The runs of two stems in the folder of a sweep whose costs were measured, and what was measured."""
    given: dict[str, Any] = {"smoke": True, "environment": {"precision": "bf16"}}
    given["options"] = {"size": [64, 32], "batch_size": 16}
    variants = [
        [of_stem(root / "runs", stem, seed=seed, backbone=spec, cost=cost, **given) for seed in (0, 1)]
        for stem, cost in (("conv", {"gflops": 1.25, "params": 5e6}), ("patchify", {"gflops": 1.0, "params": 5e6}))
        for spec in [resolve("tiny", stem=stem, weights="random").as_dict()]
    ]
    asked: list[tuple[Record, Record]] = []

    def measure(a: Record, b: Record) -> CostRatio:
        asked.append((a, b))
        return MEASURED

    ratios = CostRatios(measure)
    a, b = ([run.record for run in variant] for variant in variants)
    assert ratios.of(a[0], b[0]) == ratios.of(a[1], b[0]) == MEASURED
    assert ratios.of(a[0], a[1]) is None, "the same model"
    ratios.write(root)
    return [*a, *b], asked


def test_a_sweeps_report_is_made_again_without_measuring(tmp_path: Path, capsys: Captured) -> None:
    records, asked = swept(tmp_path)
    assert len(asked) == 1, "equal models are measured once"
    again = CostRatios()
    again.read(tmp_path)
    assert again.of(records[2], records[0]) == UNMEASURED
    assert again.of(replace(records[0], options={"size": 64}), records[2]) == UNMEASURED, "another size"
    words = [str(tmp_path), "--compare", "stem=conv", "stem=patchify", "--smoke"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "1.25 vs. 1 GFLOP per image (+25 %), 5.00 vs. 5.00 M parameters. "
        "CPU time of one thread, conv / patchify, measured alternately: "
        "1.34 (quartiles 1.31 to 1.36) for a training step, 1.05 (quartiles 1.04 to 1.06) for a forward pass." in said
    )
    (tmp_path / "costs.json").unlink()
    assert main(words) == 0
    assert "5.00 vs. 5.00 M parameters; measure time: --measure-cost." in " ".join(capsys.readouterr().out.split())
    for option in (["--measure-cost"], []):
        assert main([*words, *option]) == 0
        assert "conv / patchify, measured alternately: " in " ".join(capsys.readouterr().out.split())


STEPS = [
    ({"batch_size": 64, "grad_accum_steps": 2}, {"precision": "bf16", "world_size": 4}, 8),
    ({"num_identities": 16, "num_instances": 4}, {"precision": "fp32"}, 64),
    ({"batch_size": 64, "eval_batch_size": 250}, {"precision": None}, 250),
]


@pytest.mark.parametrize(("options", "environment", "images"), STEPS)
def test_a_step_has_the_images_of_a_micro_batch(tmp_path: Path, options: Any, environment: Any, images: int) -> None:
    assert step_images(of_stem(tmp_path, "conv", options=options, environment=environment).record) == images
