"""Measured cost ratios: kept with a sweep, shown in the summary."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backbones.spec import resolve
from tests.transfer.report.tables.test_comparison import made
from transfer.records.record import Record
from transfer.report.__main__ import main
from transfer.report.tables.costs import UNMEASURED, CostRatio, CostRatios, Ratio, step_images

MEASURED = CostRatio(
    Ratio(1.05, 1.04, 1.06, 20), Ratio(1.34, 1.31, 1.36, 20), 16, "CPU time of one thread", "a machine"
)


def swept(root: Path) -> tuple[list[Record], list[tuple[Record, Record]]]:
    """The runs of two stems in the folder of a sweep whose costs were measured, and what was measured."""
    given: dict[str, Any] = {"smoke": True, "environment": {"precision": "bf16"}}
    given["options"] = {"size": [64, 32], "batch_size": 16}
    variants = [
        [made(root / "runs", stem, seed=seed, backbone=spec, cost=cost, **given) for seed in (0, 1)]
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


def test_equal_models_are_measured_once_and_kept(tmp_path: Path) -> None:
    records, asked = swept(tmp_path)
    assert len(asked) == 1
    again = CostRatios()
    again.read(tmp_path)
    assert again.of(records[0], records[2]) == MEASURED
    assert again.of(records[2], records[0]) == UNMEASURED
    assert again.of(replace(records[0], options={"size": 64}), records[2]) == UNMEASURED, "another size"


def test_a_sweeps_report_is_made_again_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swept(tmp_path)
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


@pytest.mark.parametrize(
    ("options", "environment", "images"),
    [
        ({"batch_size": 64, "grad_accum_steps": 2}, {"precision": "bf16", "world_size": 4}, 8),
        ({"num_identities": 16, "num_instances": 4}, {"precision": "fp32"}, 64),
        ({"batch_size": 64, "eval_batch_size": 250}, {"precision": None}, 250),
    ],
)
def test_a_step_has_the_images_of_a_micro_batch(
    tmp_path: Path, options: dict[str, int], environment: dict[str, object], images: int
) -> None:
    run = made(tmp_path, "conv", options=options, environment=environment)
    assert step_images(run.record) == images
