"""Claims judged from made records, against scipy and plain statements of what each rule says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.runs import ended
from tests.transfer.experiments.test_claims import ROW, read
from tests.transfer.report.tables.test_comparison import both, compare, made, notes, row
from transfer.comparison.paired_intervals import read_outcomes
from transfer.core.errors import UserError
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store, StoredRun
from transfer.report.claims.evaluate import evaluate_claim
from transfer.report.claims.findings import NO_VERDICT, ClaimResult, Finding
from transfer.report.claims.variants import metric_values

BASE = ROW | {"b": "stem=patchify", "seeds": 3, "needs": 3}
RATES = (0.1, 0.2, 0.4)


def judged(folder: Path, runs: Sequence[StoredRun], known: Any = None, **change: Any) -> ClaimResult:
    whole = {key: value for key, value in (BASE | change).items() if value is not None}
    (claim,) = read(folder, whole).claims
    return evaluate_claim(claim, StoredRuns.of(runs, known))


def grid(root: Path, levels: dict[str, Sequence[float]], validation: dict[str, Sequence[float]] | None = None, **given):
    """Runs of three seeds at each rate; a level of 0 is a training that failed."""
    runs = []
    for stem, of_stem in levels.items():
        for place, (lr, level) in enumerate(zip(RATES, of_stem, strict=False)):
            held_out = {"top1": validation[stem][place]} if validation else {}
            for seed in range(3):
                more = {"broke": not level, "details": {"held_out": held_out}, **given}
                runs.append(made(root, stem, seed=seed, level=level or 0.5, lr=lr, **more))
    return runs


def validated(top1: float) -> dict[str, dict[str, float]]:
    return {"held_out": {"top1": top1}}


def values(runs: Sequence[StoredRun], stem: str, lr: float, score: str = "top1") -> list[float]:
    own = [run.record for run in runs if run.record.backbone["stem"] == stem and run.record.options["lr"] == lr]
    return [100 * record.scores[score] for record in own]


def ends(found: Finding) -> tuple[float, float, float]:
    """The effect and the ends of its interval."""
    return found.effect.mean, found.effect.low, found.effect.high


def test_cautions_of_other_scores_stand_at_no_claim(tmp_path: Path) -> None:
    """Nearly all images are right within five, so that the interval of top-5 may be too short."""
    runs = []
    for run in both(tmp_path):
        outcomes = read_outcomes(run)
        first = np.arange(len(outcomes["rank"])) < 30
        outcomes["rank"] = np.where(first | (outcomes["rank"] == 0), outcomes["rank"], 2)
        record = replace(run.record, scores={f"top{k}": float((outcomes["rank"] < k).mean()) for k in (1, 5)})
        runs.append(StoredRun(run.folder, Store(tmp_path).write(record, "lr: 0.05\n", outcomes)))
    assert "so the interval may be too short: top5" in notes(compare(runs, "stem=conv", "stem=patchify"))
    (found,) = judged(tmp_path, runs).findings
    assert not any("too short" in note for note in found.notes)


def test_one_seed_beside_several_decides_no_claim(tmp_path: Path) -> None:
    runs = [run for run in both(tmp_path) if run.record.seed == 0 or run.record.backbone["stem"] == "patchify"]
    result = judged(tmp_path, runs, needs=1)
    assert result.verdict == "undecided"
    assert any("has one completed seed" in note for note in result.findings[0].notes)
    shown = row(compare(runs, "stem=conv", "stem=patchify"), score="top1")
    assert shown["verdict"].startswith("inconclusive; one variant has a single seed")


def test_a_difference_is_the_one_that_report_compare_shows(tmp_path: Path) -> None:
    runs = both(tmp_path)
    (found,) = judged(tmp_path, runs).findings
    shown = row(compare(runs, "stem=conv", "stem=patchify"), score="top1")
    assert ends(found) == pytest.approx([shown[name] for name in ("difference", "low", "high")])
    assert (found.verdict, found.unit, found.n) == ("support", "points", "3 in pairs")
    assert (found.a, found.b) == ("stem=conv", "stem=patchify")  # without the conditions of all runs
    (found,) = judged(tmp_path, runs[:-1], needs=2).findings
    assert found.n == "2 in pairs"
    unjudged = both(tmp_path / "unjudged", options={"epochs": 1}, outcome=ended("not_judged", 9))
    (note,) = judged(tmp_path, unjudged).shown.notes
    assert note.startswith("6 of 6 training runs not checked for failure: ")
    assert judged(tmp_path, runs, margin=60).verdict == "no relevant effect"
    assert judged(tmp_path, runs, expect="a < b").verdict == "contradiction"
    assert judged(tmp_path, runs, kind="equivalence", expect="a = b").verdict == "contradiction"
    assert judged(tmp_path, runs, kind="equivalence", expect="a >= b").verdict == "support"
    assert judged(tmp_path, runs, kind="equivalence", expect="a = b", margin=60).verdict == "support"


def test_the_rate_of_each_variant_is_chosen_on_validation_alone(tmp_path: Path) -> None:
    levels = {"conv": (0.6, 0.9, 0.7), "patchify": (0.3, 0.4, 0.8)}
    runs = grid(tmp_path, levels, {"conv": (0.5, 0.2, 0.1), "patchify": (0.1, 0.5, 0.2)})
    choice = {"choose": "lr", "chosen_by": "held_out.top1"}
    (found,) = judged(tmp_path, runs, **choice).findings
    means = np.mean(values(runs, "conv", 0.1)), np.mean(values(runs, "patchify", 0.2))  # not those with the best test
    assert found.means == pytest.approx([*means])
    assert "lr 0.1 (an end of the grid) chosen for 'stem=conv'" in found.notes
    assert "lr 0.2 chosen for 'stem=patchify'" in found.notes
    (found,) = judged(tmp_path, runs, grid=[0.2, 0.4], **choice).findings
    assert found.means[0] == pytest.approx(np.mean(values(runs, "conv", 0.2)))
    assert "'stem=conv' has no run at lr 0.8" in judged(tmp_path, runs, grid=[0.1, 0.8], **choice).shown.why
    assert judged(tmp_path, runs[:-1], **choice | {"needs": 2}).shown.n == "2 in pairs"  # that all have at all rates
    assert "'stem=patchify' has no run at lr 0.4" in judged(tmp_path, runs[:-3], **choice).shown.why
    runs[0:1] = [made(tmp_path / "broken", "conv", seed=0, lr=0.1, broke=True, details=validated(0.5))]
    assert "lr 0.2 chosen for 'stem=conv'" in judged(tmp_path, runs, **choice).shown.notes  # where none failed


def test_what_has_no_results_by_sample_is_compared_over_seeds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = [("conv", seed) for seed in range(4)] + [("patchify", seed) for seed in (0, 1, 2, 3, 7, 8)]
    held = [0.6 * (stem == "conv") + 0.1 * rng.random() for stem, _ in parts]
    runs = [made(tmp_path, stem, seed=seed, details=validated(top1)) for (stem, seed), top1 in zip(parts, held)]
    found = judged(tmp_path, runs[:8], metric="held_out.top1").shown
    paired = stats.ttest_rel(held[:4], held[4:8]).confidence_interval()
    assert ends(found) == pytest.approx([100 * (np.mean(held[:4]) - np.mean(held[4:8])), *(100 * np.array(paired))])
    found = judged(tmp_path, runs[:3] + runs[-3:], metric="held_out.top1", needs=2).shown
    welch = stats.ttest_ind(held[:3], held[-3:], equal_var=False).confidence_interval()
    assert ends(found)[1:] == pytest.approx(100 * np.array(welch))
    assert (found.verdict, found.why) == (NO_VERDICT, "0 of the 2 seeds that it needs on all sides")  # none is in both
    assert "needs two seeds" in judged(tmp_path, runs[3:5], metric="held_out.top1").shown.why


def test_metrics_come_from_the_curve_the_cost_and_the_layers(tmp_path: Path) -> None:
    layers = [{"place": "block 3", "similarity": 0.25}]
    run = made(tmp_path, "conv", seed=9, cost={"train_seconds": 7.0}, details={"layers": layers})
    lines = [{"step": 1, "epoch": 1.0, "loss": 2.0}, {"epoch": 1, "top1": 0.125}, {"epoch": 1, "layers": layers}]
    (run.folder / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for metric, wanted in {
        "top1@1": 12.5, "cost.train_seconds": 7, "layers.block 3.similarity": 0.25, "layers.block 3.similarity@1": 0.25,
    }.items():  # fmt: skip
        assert metric_values([run], metric) == pytest.approx([wanted]), metric
    with pytest.raises(UserError, match=r"lacks 'top1@2' \(scores: top1, top5\)"):
        metric_values([run], "top1@2")


def test_a_share_of_failures_counts_runs_that_failed_outright(tmp_path: Path) -> None:
    runs = grid(tmp_path, {"conv": (0.8, 0.8, 0.7), "patchify": (0.8, 0.0, 0.0)})
    change = {"kind": "failure share", "margin": 50, "a": "stem=patchify,lr=0.2", "b": "stem=conv,lr=0.2"}
    (found,) = judged(tmp_path, runs, **change).findings
    assert (found.n, found.means, found.verdict) == ("3 of 3, 0 of 3", [100, 0], "support")
    same = judged(tmp_path, runs, **change | {"a": "stem=patchify,lr=0.1", "b": "stem=conv,lr=0.1"}).shown
    assert (same.n, ends(same)[0], same.verdict) == ("0 of 3, 0 of 3", 0, "undecided")  # [-56, 56]
    assert judged(tmp_path, runs, **change | {"expect": "a <= b", "margin": 20}).verdict == "contradiction"
    whole_grids = change | {"a": "stem=patchify", "b": "stem=conv", "over": "lr"}
    assert judged(tmp_path, runs, **whole_grids).shown.n == "6 of 9, 0 of 9"
    assert "n counts a seed once at each lr" in judged(tmp_path, runs, **whole_grids).shown.notes[0]
    assert "'stem=patchify' has no run at lr 0.4" in judged(tmp_path, runs[:-3], **whole_grids).shown.why


HALF = {"kind": "half-score rate", "over": "lr", "margin": 1.5}


def test_half_score_rates_are_compared_seed_by_seed_in_doublings(tmp_path: Path) -> None:
    runs = grid(tmp_path, {"conv": (0.8, 0.7, 0.0), "patchify": (0.8, 0.1, 0.0)})
    (found,) = judged(tmp_path, runs, **HALF).findings
    logs = []
    for stem in ("conv", "patchify"):
        curves = np.array([values(runs, stem, 0.1), values(runs, stem, 0.2), [0] * 3]).T  # chance is not known
        line = min(np.mean(values(runs, one, 0.1)) for one in ("conv", "patchify")) / 2
        logs.append([np.interp(-line, -row, range(3)) for row in curves])
    wanted = stats.ttest_rel(*logs).confidence_interval()
    assert ends(found) == pytest.approx([np.mean(logs[0]) - np.mean(logs[1]), *wanted])
    assert (found.unit, found.n) == ("doublings of lr", "3 in pairs")
    assert any(note.startswith("by each one's own line") for note in found.notes)
    coarse = judged(tmp_path, runs, **HALF | {"margin": 0.5}).shown
    assert coarse.verdict == "undecided"
    assert "steps of the grid, up to 1 doublings, are coarser than the smallest relevant effect" in coarse.notes
    rounded = judged(tmp_path, runs, **HALF | {"margin": 0.97}).shown
    assert not any("coarser" in note for note in rounded.notes)
    one_seed = [run for run in runs if run.record.seed == 0]
    assert "needs two seeds" in judged(tmp_path, one_seed, **HALF | {"needs": 1, "seeds": 1}).shown.why


def test_a_score_on_held_out_images_has_the_chance_level_of_its_kind(tmp_path: Path) -> None:
    two = {"dataset": {"name": "toy", "digest": "1", "counts": {"val": {"images": 300, "classes": 2}}}}
    levels = {"conv": (0.9, 0.8, 0.0), "patchify": (0.9, 0.5, 0.0)}
    found = judged(tmp_path, grid(tmp_path, levels, levels, **two), **HALF, metric="held_out.top1").shown
    assert "by the common line of 70.0 %: no relevant effect" in found.notes
    guesses = [
        made(tmp_path / "guesses", stem, seed=seed, level=0.5, details=validated(0.5 + seed / 100), **two)
        for stem in ("conv", "patchify")
        for seed in range(3)
    ]
    equal = {"kind": "equivalence", "expect": "a = b", "margin": 9}
    for metric in ("top1", "held_out.top1"):
        assert judged(tmp_path, guesses, **equal, metric=metric).shown.why == "no variant scores above chance"


def test_a_side_that_gained_too_little_by_training_is_undertrained(tmp_path: Path) -> None:
    runs = both(tmp_path)
    untrained = [made(tmp_path, "conv", seed=seed, level=0.2, lr=0.9) for seed in range(3)]
    untrained += [made(tmp_path, "patchify", seed=seed, level=0.2, lr=0.9) for seed in range(3)]
    low = {"untrained": {f"stem={one},lr=0.1": f"task=knn,stem={one},lr=0.9" for one in ("conv", "patchify")}}
    rates = {"a": "stem=conv,lr=0.1", "b": "stem=patchify,lr=0.1"}
    result = judged(tmp_path, [*runs, *untrained], **rates, **low)
    assert result.verdict == "support"
    gained = judged(tmp_path, [*runs, *untrained], **rates, **low, margin=99).shown
    assert (gained.verdict, "gained" in gained.why, "not more than 99 for certain" in gained.why) == (
        "undertrained", True, True,
    )  # fmt: skip
    assert gained.effect == result.shown.effect  # trained against trained, as it was
    assert len(result.records) == 12
    assert [note for note in result.shown.notes if note.startswith("'stem=conv,lr=0.1' gained")]
    few = judged(tmp_path, [*runs, *untrained[:2], *untrained[3:]], **rates, **low).shown
    assert few.why == "untrained network of 'stem=conv,lr=0.1': 2 of the 3 seeds that it needs"
    missing = judged(tmp_path, runs, **rates, **low).shown
    assert missing.verdict == NO_VERDICT
    assert "untrained network of 'stem=conv,lr=0.1': " in missing.why
    floor = judged(tmp_path, runs, floor={"value": 99, "what": "raw pixels"}).shown
    assert floor.verdict == "undertrained"
    assert "not more than the 99 of raw pixels" in floor.why


def test_a_rank_correlation_is_that_of_scipy(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    levels = [(stem, seed, rng.uniform(0.2, 0.9)) for stem in ("conv", "patchify") for seed in range(6)]
    runs = [made(tmp_path, stem, seed=seed, level=level, details=validated(level)) for stem, seed, level in levels]
    change = {"kind": "rank correlation", "against": "held_out.top1", "expect": "> 0", "b": None, "margin": None}
    (found,) = judged(tmp_path, runs, **change | {"a": ["stem=conv", "stem=patchify"]}).findings
    wanted = stats.spearmanr([run.record.scores["top1"] for run in runs], [level for *_, level in levels]).statistic
    assert ends(found)[0] == pytest.approx(wanted)
    assert (found.verdict, found.n) == ("support", "12 runs")
    assert judged(tmp_path, runs, **change | {"a": ["stem=conv"], "expect": "< 0"}).verdict == "contradiction"
    runs.append(made(tmp_path, "conv", seed=20, task_version=2, details=validated(0.1)))
    assert "task_version 2" in judged(tmp_path, runs, **change | {"a": ["stem=conv"]}).shown.why


def test_an_interaction_is_the_difference_of_two_differences(tmp_path: Path) -> None:
    parts = [(stem, attention) for stem in ("conv", "patchify") for attention in ("softmax", "relu")]
    runs = [made(tmp_path, *part, seed=seed) for part in parts for seed in range(3)]
    change = {"kind": "interaction", "expect": "> 0", "a": "stem=conv/patchify", "b": "attention=softmax/relu"}
    (found,) = judged(tmp_path, runs, **change).findings
    means = [np.mean([100 * run.record.scores["top1"] for run in runs[3 * k : 3 * k + 3]]) for k in range(4)]
    assert ends(found)[0] == pytest.approx(means[0] - means[1] - means[2] + means[3])
    assert found.verdict == "support"


def test_collectives_are_counted(tmp_path: Path) -> None:
    change = {"kind": "count", "metric": "collectives", "expect": "a < b", "b": "softmax"}
    result = judged(tmp_path, [], **change | {"a": "relu"})
    assert (result.shown.means, result.verdict) == ([2, 3], "support")
    assert "unknown attention 'rleu'" in judged(tmp_path, [], **change | {"a": "rleu"}).shown.why


def test_of_several_comparisons_the_weakest_decides_and_a_field_left_open_is_no_condition(tmp_path: Path) -> None:
    runs = grid(tmp_path, {"conv": (0.6, 0.6, 0.6), "patchify": (0.3, 0.4, 0.9)})
    why = judged(tmp_path, runs, b="stem=patchify,lr=0.1").shown.why
    assert why == "'stem=conv' has several values of lr (0.1, 0.2, 0.4); choose one"
    pairs = [[f"stem=conv,lr={lr}", f"stem=patchify,lr={lr}"] for lr in RATES]
    change = {"a": None, "b": None}
    result = judged(tmp_path, runs, pairs=pairs[:2], **change)
    assert (result.verdict, result.shown.b) == ("support", "stem=patchify,lr=0.2")
    result = judged(tmp_path, runs, pairs=pairs, **change)
    assert (result.verdict, result.shown.b) == ("contradiction", "stem=patchify,lr=0.4")
    result = judged(tmp_path, runs, pairs=pairs[:2], kind="equivalence", expect="a = b", **change)
    assert (result.verdict, result.shown.b) == ("contradiction", "stem=patchify,lr=0.1")  # the farther from equal
    absent = ["stem=conv,lr=7", "stem=patchify,lr=0.1"]
    assert judged(tmp_path, runs, pairs=[*pairs[:2], absent], **change).verdict == NO_VERDICT
    assert judged(tmp_path, runs, pairs=[*pairs, absent], **change).verdict == "contradiction"


UNDECIDABLE = [
    ({}, {"a": "stem=other"}, "no run has stem=other (there is conv, patchify)"),
    ({}, {"a": "stm=conv"}, "unknown field 'stm'; did you mean 'stem'?"),
    ({}, {"seeds": 5, "needs": 4}, "3 of the 4 seeds that it needs"),
    ({}, {"metric": "top2"}, "lacks 'top2' (scores: top1, top5)"),
    ({"smoke": True}, {}, "only smoke runs, or runs by changed files, are selected, which do not count"),
    ({"origin": {"smoke": True}}, {}, "3 smoke runs, or runs from weights of smoke runs"),
    ({"task_version": 2}, {}, "task_version"),
    ({"broke": True}, {}, "all trainings of 'stem=conv' failed"),
    ({"lr": 0.5}, {"b": "stem=patchify,lr=0.1"}, ""),
]


@pytest.mark.parametrize(("given", "change", "said"), UNDECIDABLE)
def test_what_keeps_a_row_from_a_verdict(tmp_path: Path, given: Any, change: Any, said: str) -> None:
    runs = [made(tmp_path, "conv", seed=seed, **given) for seed in range(3)]
    runs += [made(tmp_path, "patchify", seed=seed) for seed in range(3)]
    result = judged(tmp_path, [run for run in runs if not run.record.smoke], runs, **change)
    assert said in result.shown.why
    assert (result.verdict == NO_VERDICT) == bool(said)
    assert judged(tmp_path, runs[3:], runs[3:], a="stem=conv").verdict == NO_VERDICT


def test_a_claim_says_what_its_weights_were_trained_by(tmp_path: Path) -> None:
    origins = {"dirty": ["pretraining dirty"], "modified": ["weights modified"], "seed": []}
    for mark, told in origins.items():
        shown = judged(tmp_path, both(tmp_path / mark, origin={mark: True})).shown
        assert shown.verdict == "support"
        assert [note for note in shown.notes if "valid" in note] == [f"not a valid result: {text}" for text in told]


def test_seeds_of_a_probe_are_those_of_its_pretraining(tmp_path: Path) -> None:
    runs, parents = list[StoredRun](), list[StoredRun]()
    for stem, seed in product(("conv", "patchify"), range(3)):
        weights = f"sha256:{stem}{seed}"
        parents.append(made(tmp_path / "before", stem, seed=seed, export=weights, weights_id="random"))
        runs.append(made(tmp_path, stem, seed=0, weights_id=weights, wrong=range(9 + seed)))
    assert judged(tmp_path, runs, [*parents, *runs]).shown.seeds == 3


def test_seeds_that_change_nothing_count_as_one_whatever_the_kind(tmp_path: Path) -> None:
    probes, variants = list[StoredRun](), [*product(("conv", "patchify"), RATES)]
    for n, (stem, lr) in enumerate(variants, 1):
        given = {"weights_id": f"sha256:{stem}", "wrong": range(9 * n), "details": validated(n / 9)}
        probes += [made(tmp_path, stem, seed=seed + n, lr=lr, **given) for seed in range(3)]
    one = {"seeds": 1, "needs": 1}
    assert judged(tmp_path, probes, choose="lr", chosen_by="held_out.top1", **one).shown.n == "1"
    assert judged(tmp_path, probes, kind="failure share", over="lr", **one).shown.n == "0 of 3, 0 of 3"
    assert "needs two seeds" in judged(tmp_path, probes, **HALF, **one).shown.why
    change = {"kind": "rank correlation", "against": "held_out.top1", "expect": "< 0", "b": None, "margin": None}
    change["a"] = [f"stem={stem},lr={lr}" for stem, lr in variants]
    assert judged(tmp_path, probes, **change, **one).shown.n == "18 runs, 6 seeds"
