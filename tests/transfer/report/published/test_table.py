"""A table of a paper beside own runs, and the words of every verdict."""

import json
import math
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs import ended
from tests.transfer.report.published.runs import PROBED, cell_of, cells_of, line_of, lines_of, run_of, shown_table
from transfer.core.settings import config_names
from transfer.experiments.published_rows import PublishedTable, Value, read_paper
from transfer.records.store import StoredRun
from transfer.report.published.table import AGREEMENT_MARGIN, PAPER_COLUMNS, Counts, verdict_on
from transfer.statistics.intervals import Estimate

TABLES = [table for name in config_names("published") for table in read_paper(name).tables.values()]
SWEEP = attrgetter("sweep")
BASELINE = "ViT_p, 5e-4, AdamW, warm-up 5"
CRASH = "ViT_p, 1e-3, AdamW, warm-up 5"


@pytest.mark.parametrize("table", TABLES, ids=SWEEP)
def test_without_own_runs_the_published_column_stands_alone(table: PublishedTable) -> None:
    lines, notes = shown_table([], table.paper, table.name)
    assert {*table.notes, *read_paper(table.paper).notes} <= {*notes}
    if table.claims:
        assert [line["claim"] for line in lines] == [*table.claims]
        return
    assert all(list(line) == [column.name for column in PAPER_COLUMNS] for line in lines)
    assert len(lines) == sum(len(row.values) for row in table.rows)
    assert {line[name] for line in lines for name in ("own", "verdict", "difference", "runs")} == {""}
    assert all(value.doubt in "\n".join(notes) for row in table.rows for value in row.values)


@pytest.mark.parametrize(("right", "verdict"), [(798, "inconclusive"), (700, "lower")])
def test_a_comparable_score_has_a_verdict(tmp_path: Path, right: int, verdict: str) -> None:
    line = line_of([run_of(cell_of("1", BASELINE, "deit"), tmp_path, right)], "1", BASELINE)
    assert line["not comparable because"] == ""
    assert (line["published"], line["own"]) == ("79.8", f"{right / 10:.1f}")
    assert line["verdict"].startswith(f"{verdict}, of these models (1 seed)")
    assert line["difference"] == f"{right / 10 - 79.8:+.1f}"
    low, high = map(float, line["interval"].removesuffix(" (1 seed)").split(" to "))
    error = 100 * math.sqrt(right * (1000 - right) / 1000**3)
    assert (high - low) / 2 == pytest.approx(1.96 * error, abs=0.25)
    assert line["reading"] == "lr 0.001, printed 0.0005"
    assert line["device_hours"] == "2 core"


def test_breakdowns_meet_published_crashes_in_each_reading(tmp_path: Path) -> None:
    twice, once = (cell_of("1", CRASH, "deit", lr=rate) for rate in (2e-3, 1e-3))
    runs = [run_of(replace(twice, seed=seed), tmp_path) for seed in range(2)] + [run_of(once, tmp_path, 798)]
    first, second = sorted(lines_of(runs, "1", CRASH), key=lambda line: str(line["reading"]), reverse=True)
    assert (first["published"], first["own"], first["verdict"]) == ("crash", "nonfinite 2/2", "both failed")
    assert (first["reading"], second["reading"]) == ("lr 0.002, printed 0.001", "lr 0.001, printed 0.001")
    assert (second["own"], second["verdict"], second["difference"]) == ("79.8", "not here", "")
    assert line_of(runs, "1", BASELINE)["own"] == "79.8", "the second reading is the baseline's run"


def test_a_step_after_pretraining_belongs_to_the_row_of_its_weights(tmp_path: Path) -> None:
    dino, linear = (cell_of("2", PROBED, step) for step in ("dino", "linear"))
    trained = run_of(dino, tmp_path, 500, export="sha256:dd")
    probe = run_of(linear, tmp_path, 734, weights_id="sha256:dd")
    line = line_of([trained, probe], "2", PROBED)
    assert (line["pretraining_hours"], line["not comparable because"]) == ("2 core", "")
    assert line["verdict"].startswith("inconclusive, of these models (1 seed): differences up to 2.9 percentage")
    assert line_of([trained, probe], "2", PROBED.replace("3Conv+3BN+", ""))["own"] == ""
    assert "none of 1 run matches a row, which needs pretrain-" in shown_table([trained], "scaled_relu", "3")[1][-1]
    assert line_of([probe], "2", PROBED)["not comparable because"] == "unknown pretraining: weights sha256:dd"
    broken = run_of(replace(dino, seed=1), tmp_path)
    line = line_of([broken], "2", PROBED)
    assert (line["own"], line["not comparable because"], line["pretraining_hours"]) == (
        "blocked: nonfinite 1/1", "", "2 core",
    )  # fmt: skip
    assert line["verdict"] == "failed here only"
    line = line_of([broken, trained], "2", PROBED)
    assert (line["own"], line["verdict"]) == ("blocked: nonfinite 1/2", ""), "the other's run is still to come"
    assert line["runs"] == broken.record.run_id
    toy = run_of(dino, tmp_path, smoke=True, changed={"epochs": 3}, dataset={"name": "toy_digits"})
    line = line_of([toy], "2", PROBED)
    assert line["not comparable because"] == "smoke; dino: toy_digits for imagenet1k; dino: epochs 3 (100)"
    assert line_of([toy, broken], "2", PROBED)["not comparable because"] == "", "the most comparable"


def test_seeds_whose_pretraining_broke_down_are_told(tmp_path: Path) -> None:
    dino, linear = (cell_of("2", PROBED, step) for step in ("dino", "linear"))
    trained = run_of(dino, tmp_path, 500, export="sha256:dd")
    lost = [run_of(replace(dino, seed=seed), tmp_path) for seed in (1, 2)]
    probe = run_of(linear, tmp_path, 36700, 50000, weights_id="sha256:dd")
    line = line_of([trained, *lost, probe], "2", PROBED)
    assert line["own"] == "73.4; 2 of 3 pretraining runs failed; these at chance level: 24.5"
    assert line["verdict"] == "agrees within 1, completed runs only, of these models (1 seed)"


def test_a_cell_in_doubt_is_never_compared(tmp_path: Path) -> None:
    label = "1Proj+1BN+1ReLU, 5e-2"
    dino = run_of(cell_of("4", label, "dino"), tmp_path, 1, export="sha256:dd")
    cell = next(cell for cell in cells_of("4", label, "reid") if cell.dataset == "msmt17")
    run = run_of(cell, tmp_path, None, weights_id="sha256:dd")
    done = replace(run.record, outcome=ended("completed", 1), scores={"rank1": 0.5})
    lines = {line["metric"]: line for line in lines_of([dino, StoredRun(run.folder, done)], "4", label) if line["own"]}
    assert lines["rank1"]["published"] == "88.6 (in doubt)"
    assert (lines["rank1"]["own"], lines["rank1"]["verdict"], lines["rank1"]["difference"]) == ("50.0", "", "")
    assert lines["rank1"]["not comparable because"] == ""


MEASURED = {5: 0.1841, 20: 0.5362, 50: 0.6379, 300: 0.816}


def trained(tmp_path: Path) -> StoredRun:
    run = run_of(cell_of("convergence", "ViT_c", "deit", lr=1e-3), tmp_path, 816)
    lines = [{"step": 100, "epoch": 5, "loss": 5.0}, {"step": 9, "epoch": 5.0, "loss": 4.0}]
    lines += [{"step": 1251 * epoch, "epoch": epoch, "top1": score, "top5": 1.0} for epoch, score in MEASURED.items()]
    (run.folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_scores_on_the_way_stand_beside_the_published_ones(tmp_path: Path) -> None:
    lines = lines_of([trained(tmp_path)], "convergence", "ViT_c")
    assert [(line["metric"], line["published"], line["own"], line["difference"]) for line in lines] == [
        ("top1 at epoch 5", "18.1", "18.4", "+0.3"),
        ("top1 at epoch 20", "53.6", "53.6", "+0.0"),
        ("top1 at epoch 50", "63.8", "63.8", "-0.0"),
    ]
    assert {line["verdict"] for line in lines} == {"agrees within 1, of these models (1 seed)"}
    assert {(line["not comparable because"], line["reading"]) for line in lines} == {
        ("", "lr 0.001, printed not stated")
    }
    low, high = map(float, lines[1]["interval"].removesuffix(" (1 seed)").split(" to "))
    assert high - low == pytest.approx(2 * 1.96 * 100 * (0.5362 * 0.4638 / 50000) ** 0.5, abs=0.15), "of 50,000 images"


@pytest.mark.parametrize("content", ['{"broken "top1"', json.dumps({"step": 1, "epoch": 7, "top1": 0.1})])
def test_a_history_without_the_epoch_is_said(tmp_path: Path, content: str) -> None:
    run = trained(tmp_path)
    path = run.folder / "history.jsonl"
    path.write_text(content)
    lines, notes = shown_table([run], "scaled_relu", "convergence")
    assert {line["verdict"] for line in lines if line["row"] == "ViT_c"} == {"no interval"}
    (note,) = [note for note in notes if note.startswith("ViT_c, imagenet1k, top1 at epoch 20: no interval, since ")]
    assert str(path) in note
    assert "--validate-at 20" in note


SCORE = Value("deit", "imagenet1k", "top1", "79.8")
CRASHED = Value("deit", "imagenet1k", "top1", "crash")


def estimate(middle: float, half: float, inner: float, seeds: int = 3) -> Estimate:
    """Of a score in percent, with the lengths to either side of its intervals at 95 and at 90 %."""
    low, high, *inside = ((middle + length) / 100 for length in (-half, half, -inner, inner))
    about: dict[str, Any] = {"errors": ((half / 200, 9.0),), "inner": tuple(inside)}
    return Estimate(middle / 100, low, high, seeds=(seeds,), discordant=500, **about)


NEAR = estimate(79.8, 0.6, 0.5)
VERDICTS = [
    (SCORE, Counts(3), NEAR, "agrees within 1"),
    (SCORE, Counts(1), estimate(79.8, 0.6, 0.5, 1), "agrees within 1, of these models (1 seed)"),
    (SCORE, Counts(3), estimate(79.8, 1.1, 0.94), "agrees within 1"),
    (SCORE, Counts(3), estimate(79.8, 1.1, 0.96), "inconclusive: differences up to 1.1 percentage points not excluded"),
    (SCORE, Counts(3), estimate(80.4, 0.5, 0.4), "higher"),
    (SCORE, Counts(3), estimate(79.3, 0.4, 0.3), "lower, by less than 1"),
    (SCORE, Counts(3), None, "no interval"),
    (SCORE, Counts(3, broken=3), None, "failed here only"),
    (SCORE, Counts(3, broken=1), estimate(79.8, 0.6, 0.5, 2), "agrees within 1, completed runs only"),
    (SCORE, Counts(2, pretrainings=5, lost=3), estimate(79.8, 0.6, 0.5, 2), "agrees within 1, completed runs only"),
    (SCORE, Counts(3, pretrainings=1), NEAR, "agrees within 1, of one pretraining (3 seeds after it)"),
    (SCORE, Counts(0, pretrainings=2, lost=2), None, "failed here only"),
    (CRASHED, Counts(3), NEAR, "not here"),
    (CRASHED, Counts(3, not_judged=2), None, "inconclusive: 2 of 3 not judged"),
    (CRASHED, Counts(3, broken=3), None, "both failed"),
    (CRASHED, Counts(3, broken=1), None, "failed in 1 of 3 here"),
    (CRASHED, Counts(2, pretrainings=5, lost=3), None, "not here, completed runs only"),
]


@pytest.mark.parametrize(("value", "counts", "found", "words"), VERDICTS)
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
