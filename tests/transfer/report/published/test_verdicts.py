"""How one's own runs stand to a published number: the words of every verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.transfer.report.published.runs import cell_of, lines_of, run_of, shown_table
from transfer.experiments.published_rows import Value
from transfer.records.store import StoredRun
from transfer.report.published.table import AGREEMENT_MARGIN, Counts, verdict_on
from transfer.statistics.intervals import Estimate

BASELINE = "ViT_p, 5e-4, AdamW, warm-up 5"
SCORE = Value("deit", "imagenet1k", "top1", "79.8")
CRASH = Value("deit", "imagenet1k", "top1", "crash")


def estimate(middle: float, half: float, inner: float, seeds: int = 3) -> Estimate:
    """Of a score in percent, with the lengths to either side of its intervals at 95 and at 90 %."""
    low, high, *inside = ((middle + length) / 100 for length in (-half, half, -inner, inner))
    about: dict[str, Any] = {"errors": ((half / 200, 9.0),), "inner": tuple(inside)}
    return Estimate(middle / 100, low, high, seeds=(seeds,), discordant=500, **about)


@pytest.mark.parametrize(
    ("value", "counts", "found", "words"),
    [
        (SCORE, Counts(3), estimate(79.8, 0.6, 0.5), "agrees within 1"),
        (SCORE, Counts(1), estimate(79.8, 0.6, 0.5, 1), "agrees within 1, of these models (1 seed)"),
        (SCORE, Counts(3), estimate(79.8, 1.1, 0.94), "agrees within 1"),
        (SCORE, Counts(3), estimate(79.8, 1.1, 0.96),
            "inconclusive: differences up to 1.1 percentage points not excluded"),
        (SCORE, Counts(3), estimate(80.4, 0.5, 0.4), "higher"),
        (SCORE, Counts(3), estimate(79.3, 0.4, 0.3), "lower, by less than 1"),
        (SCORE, Counts(3), None, "no interval"),
        (SCORE, Counts(3, broken=3), None, "failed here only"),
        (SCORE, Counts(3, broken=1), estimate(79.8, 0.6, 0.5, 2),
            "agrees within 1, completed runs only"),
        (SCORE, Counts(2, pretrainings=5, lost=3), estimate(79.8, 0.6, 0.5, 2),
            "agrees within 1, completed runs only"),
        (SCORE, Counts(3, pretrainings=1), estimate(79.8, 0.6, 0.5),
            "agrees within 1, of one pretraining (3 seeds after it)"),
        (SCORE, Counts(0, pretrainings=2, lost=2), None, "failed here only"),
        (CRASH, Counts(3), estimate(79.8, 0.6, 0.5), "not here"),
        (CRASH, Counts(3, not_judged=2), None, "inconclusive: 2 of 3 not judged"),
        (CRASH, Counts(3, broken=3), None, "both failed"),
        (CRASH, Counts(3, broken=1), None, "failed in 1 of 3 here"),
        (CRASH, Counts(2, pretrainings=5, lost=3), None, "not here, completed runs only"),
    ],
)  # fmt: skip
def test_every_verdict(value: Value, counts: Counts, found: Estimate | None, words: str) -> None:
    assert verdict_on(value, counts, found and found.beside(float(SCORE.printed))) == words


@pytest.mark.parametrize(("printed", "slack"), [("79.8", 0.05), ("79.854", 0.0005), ("80", 0.5)])
def test_the_rounding_of_the_printed_number_counts_either_way(printed: str, slack: float) -> None:
    value = Value("deit", "imagenet1k", "top1", printed)
    number = float(printed)
    for more, within in ((-1e-6, True), (1e-6, False)):
        room = estimate(number, 2.0, AGREEMENT_MARGIN - slack + more)
        assert verdict_on(value, Counts(3), room.beside(number)).startswith("agrees") is within
    for more, shown in ((-1e-6, False), (1e-6, True)):
        near = estimate(number + 3 + slack + more, 3.0, 2.5)
        assert verdict_on(value, Counts(3), near.beside(number)).startswith("higher") is shown


def test_every_comparable_configuration_has_a_row(tmp_path: Path) -> None:
    cell = cell_of("1", BASELINE, "deit")
    given: list[Any] = [{"environment": {"precision": kind}} for kind in ("bf16", "fp16")] + [{"smoke": True}]
    runs = [run_of(cell, tmp_path, right, **one) for right, one in zip((700, 798, 798), given, strict=True)]
    lines = lines_of(runs, "1", BASELINE)
    found = {line["runs"]: (line["own"], line["verdict"].partition(",")[0]) for line in lines}
    bf16, fp16 = (run.record.run_id for run in runs[:2])
    assert found == {bf16: ("70.0", "lower"), fp16: ("79.8", "inconclusive")}


def test_a_cell_without_an_interval_says_why(tmp_path: Path) -> None:
    run = run_of(cell_of("1", BASELINE, "deit"), tmp_path, 798)
    unnamed = f"no run has a score of this name: {run.record.run_id}"
    for scores, why in (({"top5": 0.9}, unnamed), ({"top1": 0.798}, "outcomes do not add up to the score")):
        other = StoredRun(run.folder, replace(run.record, scores=scores))
        if "top1" in scores:
            np.savez(run.folder / "outcomes.npz", sample=np.arange(3), cluster=np.arange(3))
        lines, notes = shown_table([other], "scaled_relu", "1")
        (line,) = [line for line in lines if line["row"] == BASELINE]
        assert (line["interval"], line["verdict"]) == ("none", "no interval")
        assert f"{BASELINE}, imagenet1k, top1: no interval, since {why}" in notes
