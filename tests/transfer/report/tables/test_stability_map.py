from typing import Any

import numpy as np
import pytest

from tests.transfer.records.recorded import broken, classifier, made, run_set, trained
from transfer.core.errors import UsageError
from transfer.records.evidence import commonest
from transfer.records.record import Record
from transfer.report.summary.sentences import map_sentence
from transfer.report.tables.stability_map import largest_stable, stability_map
from transfer.report.tables.table import cell_text, is_missing
from transfer.report.tables.text import note_texts, terminal
from transfer.statistics.verdicts import Breakdowns


def grid(trains: dict[float, list[bool]], **given: object) -> list[Record]:
    """Runs of several rates, a seed for each entry."""
    return [
        made(lr=lr, seed=seed, scores={"mAP": 0.5}, **given) if well else broken(lr=lr, seed=seed, **given)
        for lr, seeds in trains.items()
        for seed, well in enumerate(seeds)
    ]


def test_a_cell_counts_each_way_of_ending() -> None:
    runs = [made(scores={"mAP": 0.2}), made(seed=1, scores={"mAP": 0.4})]
    runs += [broken("nonfinite", 9, seed=2), broken("at_chance", 4, seed=3), broken("at_chance", 7, seed=4)]
    (row,) = stability_map(run_set(runs)).rows
    assert cell_text(row["statuses"]) == "2 completed, 2 at_chance, 1 nonfinite"
    assert (row["seeds"], row["outcome"], row["chance"]) == (5, "at_chance", None)
    assert row["failed"] == Breakdowns("", 3, 5)
    assert (row["metric"], row["score"]) == ("mAP", pytest.approx(30.0))
    assert row["score_sd"] == pytest.approx(np.std([20, 40], ddof=1))
    assert row["run"] == tuple(run.run_id for run in runs)


ENDINGS = [
    (["completed", "completed", "diverged", "at_chance"], "diverged"),
    (["completed", "at_chance", "at_chance", "completed", "diverged", "completed"], "at_chance"),
    (["nonfinite", "diverged"], "nonfinite"),
    (["completed", "not_judged", "not_judged"], "completed"),
    (["not_judged", "not_judged", "score_at_chance", "not_judged"], "score_at_chance"),
]


@pytest.mark.parametrize(("endings", "outcome"), ENDINGS)
def test_a_cell_of_which_half_broke_down_is_not_called_completed(endings: list[str], outcome: str) -> None:
    assert commonest(endings) == outcome


def test_a_custom_part_is_named_by_its_class_and_of_several_files_the_start_of_its_content() -> None:
    files = {"files": {"attention": "ab" * 32}}
    own = [made(lr=lr, attention="/a/mine.py:Mine", backbone=files) for lr in (0.1, 0.2)]
    table = stability_map(run_set([made(lr=0.1), *own]), "lr", "attention")
    assert [*table["attention"]] == ["Mine", "Mine", "softmax"]
    other = made(lr=0.1, attention="/a/mine.py:Mine", backbone={"files": {"attention": "cd" * 32}})
    table = stability_map(run_set([*own, other]), "lr", "attention")
    assert {*table["attention"]} == {"Mine abababab", "Mine cdcdcdcd"}
    shown = terminal(table)
    assert "ab" * 5 not in shown
    assert {"score", "seeds"} <= {*shown.replace("|", " ").split()}


TWELVE = [
    *(("patchify", 1e-3, 312, "completed"), ("patchify", 5e-2, 100, "completed"), ("patchify", 0.65, 100, "at_chance")),
    *(("conv", 1e-3, 405, "completed"), ("conv", 5e-2, 150, "completed"), ("conv", 0.65, 129, "completed")),
]
"""Two stems at three rates; what has 100 of 1,000 right guesses, and 129 are not significantly more."""


def test_a_map_of_dead_trainings_says_so_and_up_to_which_rate_each_stem_trains() -> None:
    runs = [classifier(*cell, warmup_epochs=warmup) for cell in TWELVE for warmup in (0.0, 1.0)]
    told = map_sentence(stability_map(run_set(runs), by=["stem"]))
    assert told == "stem conv trains up to 0.05, not at 0.65; stem patchify trains up to 0.001, not at 0.05."
    runs = [*(classifier("conv", 0.01, 300, seed=seed) for seed in range(3)), classifier("conv", 0.1, 0, "diverged")]
    assert map_sentence(stability_map(run_set(runs))).endswith("trains up to 0.01 (3 seeds), not at 0.1 (1 seed).")
    assert map_sentence(stability_map(run_set(runs), "lr", "seed")).endswith("0.01, the largest tried with seed 2.")


SENTENCES = [
    ([(0.01, 300, "completed"), (0.65, 300, "completed")], "trains up to 0.65, the largest tried"),
    ([(0.01, 100, "completed"), (0.65, 0, "at_chance")], "trains at no lr tried"),
    ([(1e-6, 0, "at_chance"), (1e-3, 300, "completed"), (0.1, 0, "diverged")], "trains at 0.001, not at 0.1"),
    ([(1e-6, 0, "diverged"), (1e-3, 300, "completed")], "trains at 0.001, the largest tried"),
    ([(0.01, 300, "not_judged"), (0.65, 100, "not_judged")], "was not checked for failure"),
]


@pytest.mark.parametrize(("cells", "told"), SENTENCES)
def test_a_sentence_says_where_a_panel_trains(cells: list[tuple[float, int, str]], told: str) -> None:
    rows = stability_map(run_set([classifier("conv", *cell) for cell in cells]))
    assert map_sentence(rows) == f"pretrain-supervised · cifar10 (version 1) · tiny {told}."


def test_trainings_that_were_not_judged_count_apart() -> None:
    runs = [classifier("conv", 0.1, 400, "not_judged", seed=seed) for seed in range(2)]
    runs += [classifier("conv", 0.1, 400, seed=2), classifier("conv", 0.1, 0, "diverged", seed=3)]
    (row,) = (table := stability_map(run_set(runs))).rows
    assert cell_text(row["failed"]) == "1 of 2 (9 to 91 %), 2 not judged"
    (note,) = (note for note in note_texts(table.notes) if "not checked" in note)
    assert note.startswith("2 of 4 training runs not checked for failure: 12 steps, and ")
    older = classifier("conv", 0.1, 400)
    older.outcome["rule"] = 1
    assert "older version of the rule" in note_texts(stability_map(run_set([older])).notes)[-1]


def test_seeds_of_a_map_are_those_of_pretraining() -> None:
    """Two pretrainings, fine-tuned four times at 30 and once at 60, and three that broke down."""
    known = [trained("sha256:0"), trained("sha256:1", seed=1)]
    known += [broken("nonfinite", task="pretrain-dino", dataset={"name": "toy_digits"}, seed=n) for n in (2, 3, 4)]
    runs = [made(weights_id="sha256:0", seed=seed, scores={"mAP": 0.3}) for seed in range(4)]
    runs.append(made(weights_id="sha256:1", scores={"mAP": 0.6}))
    known += runs
    (row,) = stability_map(run_set(runs, known)).rows
    assert (row["seeds"], cell_text(row["statuses"])) == (2, "2 completed, 3 nonfinite in pretraining")
    assert (row["outcome"], row["score"]) == ("completed", pytest.approx(45.0))
    (row,) = stability_map(run_set(runs, known), "pretraining.lr", "lr").rows
    assert (row["seeds"], cell_text(row["statuses"]), row["outcome"]) == (5, "3 nonfinite, 2 completed", "nonfinite")
    assert row["failed"] == Breakdowns("", 3, 5)


def test_a_seed_whose_pretraining_failed_has_no_half_score_rate() -> None:
    """It was tried at no rate of the tasks; at those of the pretraining it was."""
    known = [trained("sha256:0", lr=0.01), trained("sha256:1", lr=0.01, seed=1)]
    lost = broken(task="pretrain-dino", dataset={"name": "toy_digits"}, lr=0.01, seed=2)
    scores = {0.01: 0.6, 0.1: 0.6, 1.0: 0.0}
    runs = [
        made(lr=lr, weights_id=parent.export, seed=parent.seed, scores={"mAP": score})
        for parent in known
        for lr, score in scores.items()
    ]
    (row,) = largest_stable(stability_map(run_set(runs, [*known, lost, *runs]))).rows
    assert [row[name] for name in ("half_score", "half_low", "half_high")] == pytest.approx([0.1**0.5] * 3)
    (cell,) = stability_map(run_set(runs[::3], [*known, lost, *runs]), "pretraining.lr", "lr").scores.values()
    assert sorted(cell.values()) == pytest.approx([0, 60, 60])


def test_panels_are_apart_by_parts_protocol_and_the_fields_asked_for() -> None:
    runs = [made(stem=stem, optimizer=optimizer) for stem in ("conv", "patchify") for optimizer in ("sgd", "adamw")]
    rows = stability_map(run_set(runs), by=["stem", "optimizer"])
    assert sorted((row["stem"], row["optimizer"]) for row in rows.rows) == [
        ("conv", "adamw"), ("conv", "sgd"), ("patchify", "adamw"), ("patchify", "sgd"),
    ]  # fmt: skip
    assert {*rows["backbone"]} == {"tiny"}
    other = stability_map(run_set([*runs, made(stem="conv", epochs=5)]), by=["stem", "optimizer"])
    assert ({*map(cell_text, other["protocol"])}, len(other)) == ({"epochs 5", "epochs 20"}, 5)
    shares = [made(options={"lr": 0.1, "label_fraction": x}, dataset={"digest": str(x)}) for x in (0.1, 1.0)]
    assert len(stability_map(run_set(shares), "lr", "label_fraction").panels()) == 1


def test_wrong_axes_and_runs_that_train_nothing_are_said() -> None:
    for words, message in ((("lrr", "epochs"), "did you mean 'lr'"), (("lr", "lr"), "different fields")):
        with pytest.raises(UsageError, match=message):
            stability_map(run_set([made()]), *words)
    with pytest.raises(UsageError, match="no run has both"):  # of no epochs, which train nothing
        stability_map(run_set([made(options={"lr": 0.1, "warmup_epochs": 5, "epochs": 0})]))


def test_a_cell_without_any_other_score_has_those_that_records_of_failed_runs_keep() -> None:
    kept = ({"failed_scores": {"mAP": score}} for score in (0.2, 0.3))
    runs = [broken("at_chance", seed=seed, details=details) for seed, details in enumerate(kept)]
    (row,) = (table := stability_map(run_set(runs))).rows
    assert (row["outcome"], row["score"]) == ("at_chance", 25.0)
    assert note_texts(table.notes)[0].startswith("score: of failed runs only where")
    assert stability_map(run_set([*runs, made(seed=2)]))["score"] == [50.0]


NONE = float("nan")


GRIDS = [
    ({0.01: [True] * 2, 0.1: [True] * 2, 0.05: [True] * 2, 1.0: [False] * 2}, 0.1, [0.1**0.5] * 3, 1.0, ()),
    ({0.01: [True] * 3, 0.1: [True, False, True], 1.0: [False, False, True]}, 0.1, [NONE, 0.1**1.5, NONE], 1.0, ()),
    ({0.01: [True] * 2, 1.0: [True, False], 2.0: [False] * 2}, 0.01, [0.1**0.5 * 2**0.25, 0.1, 2**0.5], 1.0, ()),
    # that two seeds were never tried at the deadly rates says nothing
    ({0.001: [True] * 3, 0.05: [False], 0.65: [False]}, 0.001, [0.00005**0.5] * 3, 0.05, ()),
    ({0.01: [True], 1.0: [False], 2.0: [True]}, 0.01, [NONE, 0.1, NONE], 1.0, (2.0,)),
]


@pytest.mark.parametrize(("trains", "stable", "half", "failed", "violations"), GRIDS)
def test_the_largest_stable_rate(trains: Any, stable: float, half: list[float], failed: float, violations: Any) -> None:
    """It is the last before half of the seeds break down."""
    (row,) = largest_stable(stability_map(run_set(grid(trains)))).rows
    assert (row["largest_stable"], row["smallest_failed"], row["violations"]) == (stable, failed, violations)
    assert [row[name] for name in ("half_score", "half_low", "half_high")] == pytest.approx(half, nan_ok=True)
    assert (row["cells"], row["seeds"]) == (len(trains), max(map(len, trains.values())))


@pytest.mark.parametrize("trains", [{0.1: [True]}, {0.1: [False], 1.0: [False]}])
def test_a_single_rate_or_failures_alone_do_not_bound_the_half_score_rate(trains: dict[float, list[bool]]) -> None:
    (row,) = largest_stable(stability_map(run_set(grid(trains)))).rows
    assert all(is_missing(row[name]) for name in ("half_score", "half_low", "half_high"))
