from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs import ended
from tests.transfer.comparison.test_paired_outcomes import images
from tests.transfer.records.recorded import scored
from tests.transfer.records.test_store import CONTENT, record
from transfer.comparison.compare_arms import Comparison, Family
from transfer.core.errors import UsageError, UserError
from transfer.records.record import RunKey
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store, StoredRun
from transfer.report.tables import comparison
from transfer.report.tables.table import Table, cell_text, is_number
from transfer.report.tables.text import note_texts, terminal
from transfer.statistics.verdicts import Kind

IMAGES = 300
TOY = {"name": "toy", "digest": "1", "version": "1"}
METRIC = {"unit": "fraction", "direction": "higher", "bounds": [0.0, 1.0]}
LEVELS = {("patchify", "softmax"): 0.5, ("patchify", "relu"): 0.4, ("conv", "softmax"): 0.8, ("conv", "relu"): 0.5}


def made(
    root: Path, stem: str, attention: str = "softmax", seed: int = 0, level: float | None = None, **given
) -> StoredRun:
    """A k-NN run whose images are right by chance; the same seed gives the same chances whatever the backbone.

    With `wrong`, these images are wrong and all others right.
    """
    wrong = given.pop("wrong", None)
    lr, weights_id, broke = given.pop("lr", 0.1), given.pop("weights_id", "random"), given.pop("broke", False)
    level = LEVELS[stem, attention] if level is None else level
    chance = np.random.default_rng(seed).random(IMAGES)
    rank = np.where(chance < level, 0, 7) if wrong is None else np.where(np.isin(np.arange(IMAGES), wrong), 7, 0)
    backbone = {"name": f"{stem}_{attention}", "stem": stem, "attention": attention, "qk_norm": attention == "relu"}
    run_key = RunKey({**CONTENT, "backbone": backbone, "seed": seed, "lr": lr, "weights": weights_id, **given})
    folder = root / run_key.run_id("knn", "toy", backbone["name"])
    folder.mkdir(parents=True)
    values: dict[str, Any] = {
        "run_id": folder.name, "task": "knn", "backbone": backbone, "options": {"lr": lr}, "seed": seed,
        "weights_id": weights_id, "primary": "top1",
        "scores": {} if broke else {"top1": float((rank < 1).mean()), "top5": float((rank < 5).mean())},
        "outcome": ended("diverged" if broke else "completed", 1),
        "metrics": {} if broke else dict.fromkeys(("top1", "top5"), METRIC),
    }  # fmt: skip
    whole = record(run_key, **{**values, **given})
    return StoredRun(folder, Store(root).write(whole, "lr: 0.05\n", {} if broke else images(rank=rank)))


def both(root: Path, seeds: int = 3, **given) -> list[StoredRun]:
    return [made(root, stem, seed=seed, **given) for stem in ("conv", "patchify") for seed in range(seeds)]


def compare(runs: Sequence[StoredRun], a: str, b: str, known: Sequence[StoredRun] | None = None, **how: Any) -> Table:
    shown_runs = StoredRuns.of(runs, known)
    return comparison.comparison_table(comparison.compare_variants(shown_runs, a, b, **how), shown_runs)


def compared(runs: Sequence[StoredRun], a: str, b: str, **how: Any) -> Comparison:
    return comparison.compare_variants(StoredRuns.of(runs), a, b, **how)


def interaction(runs: Sequence[StoredRun], f: str, g: str, **how: Any) -> Table:
    shown_runs = StoredRuns.of(runs)
    return comparison.comparison_table(comparison.compare_corners(shown_runs, f, g, **how), shown_runs)


def notes(table: Table) -> str:
    return "\n".join(note_texts(table.notes))


def shown(table: Table) -> list[dict[str, Any]]:
    """The rows as a reader sees them: numbers as they are, all other values as texts."""
    return [
        {name: value if value is None or is_number(value) else cell_text(value) for name, value in row.items()}
        for row in table.rows
    ]


def row(table: Table, **wanted: Any) -> dict[str, Any]:
    (found,) = [line for line in shown(table) if all(line[name] == one for name, one in wanted.items())]
    return found


def test_a_row_is_the_difference_of_means_in_percent(tmp_path: Path) -> None:
    runs = both(tmp_path)
    table = compare(runs, "stem=conv", "stem=patchify")
    top1 = row(table, score="top1")
    means = [100 * np.mean([run.record.scores["top1"] for run in runs[part]]) for part in (slice(3), slice(3, None))]
    assert (top1["a"], top1["b"]) == pytest.approx(tuple(means))
    assert top1["difference"] == pytest.approx(means[0] - means[1])
    assert top1["low"] < 30 < top1["high"]
    assert top1["verdict"] == "a better (random weights)"
    assert (top1["seeds"], top1["clusters"], top1["method"]) == ("3 in pairs", IMAGES, "t")
    assert top1["failed a"] == "0 of 3 (0 to 56 %)"
    assert row(compare(runs, "stem=patchify", "stem=conv"), score="top1")["verdict"] == "b better (random weights)"


def test_a_terminal_shows_a_row_per_primary_score_with_what_distinguishes_it(tmp_path: Path) -> None:
    runs = [run for lr in (0.1, 0.2) for run in both(tmp_path / str(lr), seeds=2, lr=lr, dataset=TOY, wrong=range(9))]
    runs = [*runs, *both(tmp_path, seeds=1, lr=0.2, dataset=TOY | {"name": "other"})]
    chosen = compared(runs, "stem=conv", "stem=patchify")
    table = comparison.comparison_table(chosen, StoredRuns.of(runs))
    primary = comparison.in_brief(chosen, table)
    assert primary.names == ["task", "dataset", "lr", "score", "difference", "low", "high", "verdict"]
    assert primary["lr"] == [None, 0.1, 0.2]
    assert {*primary["score"]} == {"top1"}
    assert ("'se of seeds' is 0" in str(table.notes), "'se of" in str(primary.notes)) == (True, False)
    assert all(name in terminal(primary) for name in ("| other ", "| 0.1 |"))
    wide = Table(primary.columns, [line | {"task": at, "lr": 60 * at} for at, line in zip("abc", primary.rows)])
    assert "Not shown in 100 columns: lr (" in terminal(wide)
    assert len(texts := note_texts(primary.notes)) == len({text.rpartition(": ")[2] for text in texts}) <= 10


def test_weights_and_runs_are_selectors(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", options={"lr": 0.1, "weights": "/a/weights/w/seed0"}), made(tmp_path, "patchify")]
    for weights in ("weights/w", "weights/tiny"):
        table = compare(runs, f"./{weights}/", runs[1].record.run_id)
        assert row(table, score="top1")["verdict"] == "a better (one seed, random weights)"
        runs[0].record.options |= {"weights": "config"}
        runs[0].record.backbone |= {"weights": "weights/tiny"}  # found by the backbone's name


def test_one_broken_seed_of_three_leaves_two_pairs(tmp_path: Path) -> None:
    runs = [*both(tmp_path)[:5], made(tmp_path / "broke", "patchify", seed=2, broke=True)]
    table = compare(runs, "stem=conv", "stem=patchify")
    found = row(table, score="top1")
    scores = {(run.record.backbone["stem"], run.record.seed): run.record.scores.get("top1") for run in runs}
    pairs = [100 * (scores["conv", seed] - scores["patchify", seed]) for seed in (0, 1)]
    assert found["difference"] == pytest.approx(np.mean(pairs))
    assert "excluded: seed 2 of a, which failed in b" in notes(table)
    assert found["failed b"] == "1 of 3 (6 to 79 %)"
    assert "seeds are not paired: seed 0 of a, seed 1 of b" in notes(compare(runs[:5:4], "stem=conv", "stem=patchify"))
    given: dict[str, Any] = {"root": tmp_path / "w", "weights_id": "sha256:a"}
    frozen = [made(stem=stem, origin={"seed": seed}, **given) for seed, stem in enumerate(("conv", "patchify"))]
    assert "pretraining 0 of a, pretraining 1 of b" in notes(compare(frozen, "stem=conv", "stem=patchify"))


def test_other_protocols_are_not_paired(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", lr=0.1), made(tmp_path, "patchify", lr=0.2)]
    nearest = " and ".join(run.record.run_id for run in runs)
    said = rf"compared: knn on toy_market: not compared: the nearest runs, {nearest}, differ in lr \(0.1 vs. 0.2\)"
    with pytest.raises(UserError, match=said) as refused:
        compare([*runs, made(tmp_path, "conv", lr=0.3, task_version=9)], "stem=conv", "stem=patchify")
    assert "not in the table" not in str(refused.value)
    runs += [made(tmp_path, "patchify", lr=0.1), made(tmp_path, "conv", lr=0.3, broke=True)]
    table = compare(runs, "stem=conv", "stem=patchify")
    assert len(table) == 2
    assert "1 of which failed: the nearest runs of 'stem=patchify' do not share their lr (0.3)" in notes(table)
    # what chooses the variants may differ
    chosen = compare(runs[1:3], "lr=2e-1", "lr=0.1")
    assert row(chosen, score="top1")["verdict"].startswith("inconclusive; no difference on any sample (one seed, ")


def test_what_arms_can_share_must_be_equal_and_the_rest_is_said(tmp_path: Path) -> None:
    runs = [made(tmp_path, stem, attention) for stem, attention in LEVELS]
    table = compare(runs, "stem=conv", "stem=patchify")
    assert list(zip(table["attention"], table["qk_norm"]))[::2] == [("relu", True), ("softmax", False)]
    assert "besides" not in notes(table)
    differences = [row(table, score="top1", attention=one)["difference"] for one in ("relu", "softmax")]
    assert differences[0] < 15 < differences[1]
    by_attention = compare(runs, "attention=softmax", "attention=relu")
    assert by_attention["stem"][::2] == ["conv", "patchify"]
    assert "differences that were not selected: qk_norm no vs. qk_norm yes" in notes(by_attention)
    assert "the variants differ in attention, qk_norm" in notes(by_attention)
    assert "the variants differ in attention, stem, qk_norm" in notes(compare(runs[1:3], "attention=relu", "stem=conv"))


def test_selectors_that_mean_nothing_or_the_same(tmp_path: Path) -> None:
    runs = both(tmp_path, seeds=1)
    for selector, message in {
        "stem=convv": "no run has stem=convv; did you mean 'conv'",
        "conv_softmx": "neither a run nor a backbone of these runs; did you mean 'conv_softmax'",
        "conv_softmax": "both mean",
    }.items():
        with pytest.raises(UsageError, match=message):
            compare(runs, selector, "stem=conv")


def test_p_values_are_adjusted_in_two_families(tmp_path: Path) -> None:
    runs = both(tmp_path, seeds=1, level=None)
    assert "Holm" not in notes(compare(runs, "stem=conv", "stem=patchify"))  # one test in each family
    data = {"name": "other"}
    runs += [made(tmp_path, "conv", dataset=data, level=0.52), made(tmp_path, "patchify", dataset=data, level=0.5)]
    table = compare(runs, "stem=conv", "stem=patchify")
    top1 = sorted((line for line in table.rows if line["score"] == "top1"), key=lambda line: line["p"])
    adjusted = [line["adjusted p"] for line in top1]
    assert adjusted == pytest.approx([2 * top1[0]["p"], top1[1]["p"]], abs=1e-12)
    assert "(Holm 1979) among 2 primary scores and among 2 other scores" in notes(table)


def test_interaction_of_a_two_by_two(tmp_path: Path) -> None:
    runs = [made(tmp_path, *corner, seed=seed) for corner in LEVELS for seed in range(3)]
    table = interaction(runs, "stem", "attention=softmax/relu")
    assert len(table) == 10
    effects = {line["effect"]: line["difference"] for line in shown(table) if line["score"] == "top1"}
    planted = {
        "stem: conv less patchify, attention softmax": 30, "stem: conv less patchify, attention relu": 10,
        "attention: softmax less relu, stem conv": 30, "attention: softmax less relu, stem patchify": 10,
        "interaction of stem and attention": 20,
    }  # fmt: skip
    assert effects == {name: pytest.approx(value, abs=4) for name, value in planted.items()}
    last = row(table, effect="interaction of stem and attention", score="top1")
    assert last["verdict"] == "above 0 (random weights)"
    assert last["failed"] == "0 of 12 (0 to 24 %)"
    assert "knn on toy_market: the corners differ in attention, stem, qk_norm" in notes(table)
    for line in interaction(runs[:-1], "stem", "attention").rows:  # a seed that one corner lacks is left out of all
        signs = [1, -1, -1, 1] if "interaction" in line["effect"] else [1, -1]
        means = [float(mean) for mean in line["means"].split(", ")]
        assert line["difference"] == pytest.approx(np.dot(signs, means), abs=0.02)


def test_pretraining_runs_are_no_tests_of_an_interaction_beside_tasks(tmp_path: Path) -> None:
    runs = [made(tmp_path / task, *corner, task=task) for task in ("knn", "pretrain-dino") for corner in LEVELS]
    rows = comparison.compare_corners(StoredRuns.of(runs), "stem", "attention").rows
    counted = {(row.matched.first.task, row.family) for row in rows if row.primary}
    assert counted == {("knn", Family.PRIMARY), ("pretrain-dino", Family.NOT_COUNTED)}


def test_nothing_is_better_of_trainings_at_chance(tmp_path: Path) -> None:
    counts = {"name": "toy", "counts": {"train": {"classes": 2}, "val": {"classes": 2, "images": IMAGES}}}
    options = {"lr": 0.1, "epochs": 3}
    corners = [(*corner, level) for corner, level in zip(LEVELS, (0.3, 0.5, 0.4, 0.52))]
    for status in ("completed", "not_judged"):
        given: dict[str, Any] = {"dataset": counts, "options": options, "outcome": ended(status, 9)}
        runs = [made(tmp_path / status, stem, attention, level=level, **given) for stem, attention, level in corners]
        rows = compared(runs, "stem=conv", "stem=patchify").rows
        rows += comparison.compare_corners(StoredRuns.of(runs), "stem", "attention").rows
        assert {row.verdict.kind for row in rows} == {Kind.AT_CHANCE}
        assert all(row.estimate for row in rows), "the numbers are shown all the same"


def test_an_interaction_needs_four_corners(tmp_path: Path) -> None:
    runs = [made(tmp_path, *corner) for corner in LEVELS]
    with pytest.raises(UsageError, match=r"no run has attention=relu with the other values \(there is softmax\)"):
        interaction([run for run in runs if run.record.backbone["name"] != "conv_relu"], "stem", "attention")
    broken = [made(tmp_path / "b", *corner, broke=corner == ("conv", "relu")) for corner in LEVELS]
    with pytest.raises(UserError, match="all runs failed with stem=conv,attention=relu"):
        interaction(broken, "stem", "attention")
    with pytest.raises(UsageError, match="an interaction takes two: seed=ONE/OTHER"):
        interaction(runs, "stem", "seed")


def test_damaged_outcomes_leave_means_and_the_other_rows(tmp_path: Path) -> None:
    whole = both(tmp_path)
    damaged = both(tmp_path, dataset={"name": "other"})
    path = damaged[4].folder / "outcomes.npz"
    path.write_bytes(path.read_bytes()[:100])
    alone = row(compare(whole, "stem=conv", "stem=patchify"), score="top1")
    table = compare([*whole, *damaged], "stem=conv", "stem=patchify")
    kept = row(table, score="top1", dataset="toy_market")
    assert (kept["low"], kept["p"], kept["adjusted p"]) == (alone["low"], alone["p"], alone["adjusted p"])
    lost = row(table, score="top1", dataset="other")
    assert lost["a"] == pytest.approx(alone["a"])
    assert lost["verdict"] == "no interval"
    assert lost["low"] is None
    assert str(path) in notes(table)
    alone = compare(damaged, "stem=conv", "stem=patchify")
    assert [line["verdict"] for line in shown(alone)] == ["no interval"] * 2


def test_scores_of_another_unit_are_compared_in_it(tmp_path: Path) -> None:
    runs = []
    for stem, shift in (("conv", 0.2), ("patchify", 0.0)):
        values = np.random.default_rng(1).uniform(-0.3, 0.3, IMAGES) + shift
        values[:5] = np.nan  # two tokens that are zero have no angle
        given = {"backbone": {"name": stem, "stem": stem}, "scores": {"similarity_stem": float(np.nanmean(values))}}
        given["metrics"] = {"similarity_stem": {"unit": "cosine", "direction": "lower", "bounds": [-1.0, 1.0]}}
        runs.append(scored(tmp_path, "tokens", images(similarity_stem=values), stem, **given))
    table = compare(runs, "stem=conv", "stem=patchify")
    line = row(table, score="similarity_stem")
    described = {one.name: one for one in table.columns}
    assert described["difference"].significant_digits == 4, "two decimals are for percent"
    assert line["difference"] == pytest.approx(0.2), "not in percent"
    assert line["verdict"] == "b better (one seed, random weights)"
