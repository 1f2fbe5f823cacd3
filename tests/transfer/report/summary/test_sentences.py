"""The answer in words, for outcomes of every kind: never stronger than the interval, and with what is missing."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs import ended
from tests.transfer.records.recorded import made as recorded
from tests.transfer.records.recorded import run_set
from tests.transfer.report.tables.test_comparison import both, compared, made
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.sections import ReportRequest, sections
from transfer.report.summary import sentences
from transfer.report.summary.sentences import COUNTED, answer, arms_to_compare, interval_text, versus, why_no_arms
from transfer.statistics.verdicts import CORRECTED

HEAD = "conv vs. patchify"
KEY = "Mean of conv over seeds vs. that of patchify, then the difference with its 95 % interval:"


Given = list[dict[str, Any]]


def variants(root: Path, a: Given, b: Given, **given: Any) -> list[StoredRun]:
    """k-NN runs of the conv stem and the patchify stem, one for each of what is given."""
    stems = [("conv", one) for one in a] + [("patchify", one) for one in b]
    return [made(root, stem, **{**given, **one}) for stem, one in stems]


def seeds(count: int, level: float, first: int = 0, **given: Any) -> Given:
    return [{"seed": first + seed, "level": level, **given} for seed in range(count)]


GOOD, BAD, BROKEN = seeds(3, 0.8), seeds(3, 0.5), {"seed": 2, "broke": True}
ONE, THREE = "1 score of 1 task on 1 dataset", "1 score of 1 task on 1 dataset, 3 seeds"
TOY: dict[str, Any] = {"smoke": True, "origin": {"subset": 60}}
TEN: dict[str, Any] = {"dataset": {"name": "toy", "digest": "1", "counts": {"val": {"images": 300, "classes": 10}}}}
OTHER: dict[str, Any] = {"dataset": {"name": "other", "digest": "1"}}
DIRTY: dict[str, Any] = {"environment": {"dirty": True}}
COSTS = [{"gflops": 5.12, "params": 22.4e6}, {"gflops": 4.0, "params": 22.1e6}]
OUTCOMES: dict[str, tuple[Given, Given, list[str]]] = {
    "better": (GOOD, BAD, [
        rf"^{HEAD}: better \({THREE}\)\.$",
        rf"^{KEY}\n- knn top1 on `toy_market`: \d+\.\d % vs\. \d+\.\d %, \+\d+\.\d points \[\d",
    ]),
    "worse": (seeds(3, 0.4), seeds(3, 0.6), [
        rf"^{HEAD}: worse \(", r"^- knn top1 on `toy_market`: [^,]*, -\d+\.\d points \[-\d+\.\d, -\d",
    ]),
    "equal on every sample": (BAD, BAD, [
        rf"^{HEAD}: inconclusive \(", r"^- .* \+0\.0 points \[-1\.0, 1\.0\], equal on every sample$",
    ]),
    "one seed, better": (seeds(1, 0.8, **TOY), seeds(1, 0.5, **TOY), [
        rf"^Smoke test, not a valid result. {HEAD}: better \({ONE}, 1 seed\)\.",
        r"^Runs used subsets of the data \(--subset 60\); .*\n(.*\n)*One completed seed per variant: .*Add further",
    ]),
    "some of b broke down": (GOOD, [*seeds(2, 0.5), BROKEN], [
        rf"^{HEAD}: better \(completed runs only\) \(",
        r"failed runs counted at chance level, or at 0 where it is not known\)$",
        "^patchify failed in 1 of 3 training runs: knn on toy_market",
    ]),
    "one of two seeds broke down, one seed against several": (
        [*seeds(1, 0.8), BROKEN, *seeds(1, 0.8, **OTHER)], [*seeds(1, 0.5), BROKEN, *seeds(3, 0.5, **OTHER)], [
        r"^One completed seed of conv .*: add seeds to it \(knn on other\)\.\nOne .* variant \(knn on toy_market\): ",
    ]),
    "all of b broke down": (seeds(2, 0.8), [BROKEN, BROKEN | {"seed": 1}], [
        rf"^{HEAD}: patchify failed \({ONE}\)\.", "^patchify failed in 2 of 2 training runs",
    ]),
    "both are at chance, and significantly different": (seeds(3, 0.05, **TEN), seeds(3, 0.12, **TEN), [
        rf"^{HEAD}: not above chance \({THREE}\)\.",
    ]),
    "one of b was found dead by an older rule": (GOOD, [*seeds(2, 0.5), BROKEN | {"outcome": ended("not_judged")}], [
        rf"^{HEAD}: better \(",
    ]),
    "marks of the weights": (seeds(2, 0.8, origin={"smoke": True, "modified": True}), seeds(2, 0.5, **DIRTY), [
        rf"^{HEAD}: ", "^Pretrained by a smoke test, not a valid result\\.$",
        r"^Made with changed files of the suite\.\nWeights were changed after their export\.$",
    ]),
    "cost": (seeds(2, 0.8, cost=COSTS[0]), seeds(2, 0.5, cost=COSTS[1]), [
        r"^Cost: 5.12 vs. 4 GFLOP per image \(\+28 %\), 22.40 vs. 22.10 M parameters; measure time: --measure-cost",
    ]),
    "better in one of two datasets": ([*GOOD, *seeds(3, 0.5, **OTHER)], [*BAD, *seeds(3, 0.51, first=20, **OTHER)], [
        rf"^{HEAD}: better in 1, inconclusive in 1 of 2 scores of 1 task on 2 datasets, 3 seeds\.",
        "^- .*, better$", "^- .*, inconclusive$",
    ]),
    "better in two datasets": ([*GOOD, *seeds(3, 0.8, **OTHER)], [*BAD, *seeds(3, 0.5, **OTHER)], [
        rf"^{HEAD}: better on all 2 scores \(1 task on 2 datasets, 3 seeds\)\.", r"(^- .*\]\n){2}",
    ]),
}  # fmt: skip


def test_a_comparison_that_changes_two_things_says_so_in_its_first_sentence(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", attention, seed=0) for attention in ("relu", "softmax")]
    told = answer(compared(runs, "attention=relu", "attention=softmax"), StoredRuns.of(runs))
    assert "relu vs. softmax, which differ in 2 things (attention, qk_norm): " in told[0]
    one = variants(tmp_path / "one", seeds(1, 0.8), seeds(1, 0.5))
    assert told[1] == "Random weights, no pretraining: relu and softmax."
    assert "differ in" not in answer(compared(one, "stem=conv", "stem=patchify"), StoredRuns.of(one))[0]


def test_scores_on_the_data_of_the_pretraining_are_marked_and_not_counted(tmp_path: Path) -> None:
    runs = []
    for stem in ("conv", "patchify"):
        data = {"name": "toy_digits", "digest": "d" * 64}
        parent = made(tmp_path, stem, task="pretrain-dino", export=f"sha256:{stem}", dataset=data)
        for name, digest in (("toy_digits", "e" * 64), ("renamed", "d" * 64), ("other", "f" * 64)):
            given: dict[str, Any] = {"weights_id": f"sha256:{stem}", "dataset": {"name": name, "digest": digest}}
            runs.append(made(tmp_path, stem, **given))
        runs.append(parent)
    comparison, shown = compared(runs, "stem=conv", "stem=patchify"), StoredRuns.of(runs)
    told = answer(comparison, shown)
    assert "(1 score of 1 task" in told[0]  # of the dataset that the pretraining has not seen
    excluded = "knn top1 on `renamed`; knn top1 on `toy_digits`; pretrain-dino top1 on `toy_digits`"
    assert f"Counted: {COUNTED[0]}; not counted: {excluded}." in told
    named = answer(compared(runs, *(run.record.backbone["name"] for run in runs[::4])), shown)
    assert [line for line in named if line[:2] == "- "] == [line for line in told if line[:2] == "- "]
    alone = [run for run in runs if run.record.dataset["name"] == "renamed"]
    only = answer(compared(alone, "stem=conv", "stem=patchify"), StoredRuns.of(alone, runs))
    assert "1 score of 1 task" in only[0]
    assert f"Counted: {COUNTED[1]}." in only
    assert told[1].startswith("One completed seed per variant"), "below the verdict"


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_outcome_has_its_words(name: str, tmp_path: Path) -> None:
    """They claim a difference only where the corrected test does, and every number is that of a row."""
    a, b, wanted = OUTCOMES[name]
    runs = variants(tmp_path, a, b)
    comparison = compared(runs, "stem=conv", "stem=patchify")
    headline, *_ = lines = answer(comparison, StoredRuns.of(runs))
    told = "\n".join(lines)
    for pattern in wanted:
        assert re.search(pattern, told, re.MULTILINE), f"{pattern}\n{told}"
    primary = [(row, row.estimate) for row in comparison.rows if row.primary and row.estimate]
    shown = [found.estimate for row, found in primary if not row.at_chance and row.p is not None and row.p < 0.05]
    for word, sign in (("better", 1), ("worse", -1)):
        assert (word in headline) == any(sign * estimate > 0 for estimate in shown)
    for row, found in primary:
        assert interval_text(row) in told
        assert float(interval_text(row).partition(" ")[0]) == pytest.approx(100 * found.estimate, abs=0.051)


def test_a_difference_that_the_correction_takes_back_is_not_claimed(tmp_path: Path) -> None:
    comparison = compared(both(tmp_path), "stem=conv", "stem=patchify")
    (row,) = [row for row in comparison.rows if row.primary]
    other = compared(variants(tmp_path / "2", seeds(1, 0.5), seeds(1, 0.52, first=7)), "stem=conv", "stem=patchify")
    verdict = next(row.verdict for row in other.rows if row.primary)
    row.verdict, row.p = replace(verdict, breakdowns=(), why=CORRECTED), 0.2
    told = "\n".join(answer(comparison, StoredRuns.of([])))
    assert re.search(r"^- .*, not significant after correction for 1 tests$", told, re.MULTILINE)
    near = variants(tmp_path / "3", [*BAD, *seeds(3, 0.5, **OTHER)], [*seeds(3, 0.5, 9), *seeds(3, 0.5, 9, **OTHER)])
    told = "\n".join(answer(compared(near, "stem=conv", "stem=patchify", margin=20), StoredRuns.of(near)))
    assert re.search(r"intervals and equivalence are not\.[\s\S]* within 20\.0 points \(90 % interval \[-\d", told)


def test_variants_are_named_by_their_selectors_where_these_name_more_than_parts(tmp_path: Path) -> None:
    runs = [made(tmp_path, stem, lr=lr) for stem in ("conv", "patchify") for lr in (0.1, 0.2)]
    shown = StoredRuns.of(runs)
    assert versus(compared(runs, "stem=conv", "stem=patchify"), shown) == HEAD
    assert versus(compared(runs, "conv_softmax", "patchify_softmax"), shown) == HEAD
    rates = compared(runs, "stem=conv,lr=0.1", "stem=patchify,lr=0.1")
    assert versus(rates, shown) == "conv + lr 0.1 vs. patchify + lr 0.1"


def set_of(*given: dict[str, Any]) -> StoredRuns:
    return run_set([recorded(**one) for one in given])


PAIRS = [
    ([{"stem": "conv"}, {}], [("stem=conv", "stem=patchify")]),
    ([{}, {"stem": "conv"}, {"stem": "sconv"}], [("stem=conv", "stem=patchify"), ("stem=sconv", "stem=patchify")]),
    ([{"attention": "relu"}, {}], [("attention=relu", "attention=softmax")]),
    ([{"stem": "conv"}, {"stem": "sconv"}], [("stem=sconv", "stem=conv")]),
    ([{}, {"stem": "conv"}, {"stem": "conv", "attention": "relu"}],
     [(f"stem=conv,attention={name}", "stem=patchify,attention=softmax") for name in ("softmax", "relu")]),
    ([{"name": "mine"}, {"name": "tiny"}], [("tiny", "mine")]),
    ([{}, {"seed": 1}, {"lr": 0.1}], []),
]  # fmt: skip


@pytest.mark.parametrize(("given", "pairs"), PAIRS)
def test_new_parts_are_held_against_the_usual_one(given: list[dict[str, Any]], pairs: list[tuple[str, str]]) -> None:
    assert arms_to_compare(set_of(*given)) == pairs


def test_at_most_five_pairs_which_is_said_and_none_of_very_many_runs_or_of_one_variant() -> None:
    shown = set_of(*({"name": f"net{number}"} for number in range(9)))
    head, *_ = parts = sections(shown, ReportRequest(everything=True))
    assert head.note.endswith("\n\nThe first 5 of 8 pairs of variants; --compare shows any other.")
    assert sum("all metrics" in part.title for part in parts) == 5
    many = run_set(recorded(stem=("conv", "patchify")[seed % 2], seed=seed) for seed in range(sentences.MOST_RUNS + 1))
    assert arms_to_compare(many) == []
    assert "too many to compare automatically" in why_no_arms(many)
    assert "--compare stem=conv stem=patchify" in why_no_arms(many)
    assert "Add runs with another --stem, --attention or --backbone" in why_no_arms(set_of({}, {"seed": 1}))
