"""The table of a paper: means by plain numpy, marks, and that it fits 100 columns."""

import numpy as np
import pytest

from tests.transfer.records.recorded import broken, classifier, made, run_set, trained
from transfer.core.errors import UsageError
from transfer.report.tables.pivot import names_of_runs, pivot_tables
from transfer.report.tables.table import MeanInterval, Note, Table, cell_text, with_numbers
from transfer.report.tables.text import csv, latex, note_texts, terminal

STEMS = ("patchify", "conv")
TASKS = {"reid": "mAP", "fewshot": "accuracy_10shot", "detect": "box_AP"}


def pivot(variants: int = 12) -> Table:
    """Three tasks, two seeds: of the first variant one fine-tuning failed, of the last one task was not run."""
    names = ["patchify", *(f"/a/mine.py:Stem{number}" for number in range(1, variants))]
    runs = [broken(stem="patchify", seed=2)]
    for place, stem in enumerate(names):
        for task, score in TASKS.items():
            if (place, task) != (variants - 1, "detect"):
                given = {"dataset": {"name": "market1501"}, "primary": score} if task != "reid" else {}
                given["metrics"] = {score: {"bounds": [0, 1]}}
                seeds = range(1 if place == 1 else 2)
                runs += [made(task, stem=stem, seed=s, scores={score: place / 20 + s / 10}, **given) for s in seeds]
    (table,) = pivot_tables(run_set(runs))
    return table


def test_variants_are_rows_and_tasks_columns_the_baseline_first() -> None:
    table = pivot()
    assert table["variant"][:3] == ["patchify", "Stem1", "Stem10"]
    reid = table["reid mAP on toy_market"]
    assert reid[0] == MeanInterval(pytest.approx(100 * np.mean([0.0, 0.1])), mark="!?")
    assert reid[1] == MeanInterval(pytest.approx(100 / 20), mark="*?")
    assert table["detect box_AP on market1501"][table["variant"].index("Stem11")].mark == "-"
    told = " ".join(note.text for note in table.notes)
    assert all(text in told for text in ("* one seed", "! failed training runs excluded", "? no interval", "- no run"))
    assert with_numbers(table)["reid mAP on toy_market"][0] == pytest.approx(5.0)
    (of_one,) = pivot_tables(run_set([made(), made("knn", stem="conv", scores={"top1": 0.5})]), ["mAP"])
    assert [cell_text(cell) for cell in of_one["reid mAP on toy_market"]] == ["50.0*?", "-"]
    data = {"dataset": {"name": "new", "counts": {"val": {"images": 60, "classes": 5}}}}
    given = [("knn", "top1"), ("probe", "accuracy"), ("reid", "mAP")]
    runs = [made(task, scores={name: 0.5}, primary=name, **data) for task, name in given]
    (of_all,) = pivot_tables(run_set(runs))
    assert "knn top1 on new; probe accuracy on new: chance level 20 %" in note_texts(of_all.notes)
    with pytest.raises(UsageError, match=r"--scores must be among .*did you mean 'mAP'"):
        pivot_tables(run_set([made()]), ["mapp"])


def test_a_variant_whose_pretrainings_all_failed_has_a_row() -> None:
    runs = [trained("sha256:1", stem="patchify"), made(weights_id="sha256:1", scores={"mAP": 0.5})]
    runs += [broken(task="pretrain-dino", dataset={"name": "toy_digits"}, stem="conv")]
    (table,) = pivot_tables(run_set(runs))
    shown = [[cell_text(cell) for cell in row.values()] for row in table.rows]
    assert shown == [["patchify", "50.0*?"], ["conv", "no weights"]]
    assert "pretraining of rows with scores: dino toy_digits" in note_texts(table.notes)
    runs += [broken(task="pretrain-dino", dataset={"name": "toy_digits"}, stem="patchify", lr=0.2)]
    (table,) = pivot_tables(run_set(runs))
    assert table["variant"] == ["patchify", "patchify, dino toy_digits, lr 0.2", "conv"], "beside the one that lasts"
    assert [cell_text(cell) for cell in table["reid mAP on toy_market"]] == ["50.0*?", "no weights", "no weights"]
    assert "pretraining of rows with scores: dino toy_digits, lr 0.05" in note_texts(table.notes)


def test_variants_that_ran_on_unlike_machines_share_a_column() -> None:
    runs = [made(stem=stem, environment={"device_type": "cpu", "threads": n}) for n, stem in enumerate(STEMS, 1)]
    (table,) = pivot_tables(run_set(runs))
    assert [cell_text(cell) for cell in table["reid mAP on toy_market"]] == ["50.0*?"] * 2
    assert "reid mAP on toy_market: 1 thread or 2 threads" in note_texts(table.notes)
    (table,) = pivot_tables(run_set([classifier("conv", 0.1, 400, "not_judged")]))
    assert any("1 of 1 training run not checked for failure" in note for note in note_texts(table.notes))


def test_costs_are_those_of_the_pretraining_in_the_place_of_a_score() -> None:
    """Of runs that differ in size; hours of a CPU are those of 3 cores."""
    runs, of_task = [], {"gflops": 1.0, "params": 1e6, "device_hours": 0.1}
    for stem, shares in (("patchify", (1, 3)), ("conv", (1.5, 1.5))):
        for seed, share in enumerate(shares):
            cost = {"params": 5.7e6 * share, "gflops": 2.5 * share, "device_hours": 2.0 * share}
            runs.append(trained(f"sha256:{stem}{seed}", stem=stem, seed=seed, size=224, cost=cost))
            given = {"stem": stem, "weights_id": f"sha256:{stem}{seed}", "seed": seed, "scores": {"mAP": 0.5}}
            runs += [made(task, size=[384, 128], cost=of_task, **given) for task in ("reid", "knn", "segment")]
    first, second = pivot_tables(run_set(runs), cost=True)
    costs = ["params (M)", "GFLOPs", "core hours"]
    assert [table.names[:4] for table in (first, second)] == [["variant", *costs]] * 2
    assert [len(table.names) for table in (first, second)] == [6, 5], "two scores beside costs, then one"
    assert first["variant"] == second["variant"] == ["patchify", "conv"]
    for name, expected in zip(costs, ([11.4, 8.55], [5.0, 3.75], [12.0, 9.0]), strict=True):
        assert first[name] == second[name] == pytest.approx(expected)
    assert "costs are those of pretrain-dino at 224x224 px; two FLOPs per multiply-add" in note_texts(first.notes)
    assert r"\shortstack[r]{params\\(M)} & GFLOPs & \shortstack[r]{core\\hours}" in latex(first)
    assert max(map(len, terminal(first).splitlines())) <= 100


def test_hours_of_gpus_and_cores_are_not_mixed_and_unknown_costs_are_empty() -> None:
    cost = {"gflops": 1.0, "params": 1e6, "device_hours": 0.1}
    on_gpu = made(stem="relu4", cost=cost, environment={"device_type": "cuda"}, scores={"mAP": 0.5})
    (table,) = pivot_tables(run_set([on_gpu, made(cost={}, scores={"mAP": 0.5})]), cost=True)
    assert table.names[:5] == ["variant", "params (M)", "GFLOPs", "core hours", "GPU hours"]
    assert csv(table).splitlines()[1:] == ["patchify,,,,,50.0*?", "relu4,1.0,1.0,,0.1,50.0*?"]


def test_a_completed_run_without_its_primary_score_shows_its_own() -> None:
    shots = {"accuracy_1shot": 0.2, "accuracy_5shot": 0.3}
    (table,) = pivot_tables(run_set([made("fewshot", scores=shots, primary="accuracy_10shot")]))
    assert [cell_text(cell) for cell in table.rows[0].values()][1:] == ["30.0*?"]


def test_unlike_protocols_have_tables_of_their_own() -> None:
    runs = [made("knn", stem="conv", size=[64, 64]), made("fewshot"), made("reid")]
    runs += [made("knn", size=[64, side]) for side in (32, 64)]
    expected = [(["patchify", "conv"], 4, "size 64 64"), (["patchify"], 2, "size 64 32")]
    for table, (variants, columns, protocol) in zip(pivot_tables(run_set(runs)), expected, strict=True):
        assert (table["variant"], len(table.names)) == (variants, columns)
        assert Note(f"{protocol}; other protocols have tables of their own", "knn mAP on toy_market") in table.notes


def test_variants_are_named_by_what_differs() -> None:
    stems = ("patchify", "/a/mine.py:LapStem", "conv")
    records = [made(stem=stem, backbone={"qk_norm": stem == "conv"}) for stem in stems]
    assert [*names_of_runs(run_set(records)).values()] == ["patchify", "LapStem", "conv"]
    both = run_set([*records, made("classify", attention="relu", backbone={"qk_norm": False})])
    names = ["patchify + softmax", "LapStem + softmax", "conv + softmax", "patchify + relu"]
    assert sorted(names_of_runs(both).values()) == sorted(names)


def test_twelve_variants_and_three_tasks_fit_a_screen_and_break_long_names_in_a_paper() -> None:
    table = pivot()
    for row in table.rows:
        row |= {name: MeanInterval(40.85, 38.1, 43.6, "*") for name in table.names[1:]}
    lines = terminal(table).splitlines()
    assert max(map(len, lines)) <= 100
    assert "40.9* [38.1, 43.6]" in lines[4]
    table.rows[1]["variant"] = "LaplacianPyramidStem, squared_relu"
    assert r"{similarity\_\\stem}" in latex(Table.from_rows([{"similarity_stem": MeanInterval(1.0)}]))
    text = latex(table)
    assert r"\shortstack[l]{LaplacianPyramidStem,\\squared\_relu} &" in text
    assert text.startswith(r"{\footnotesize\setlength{\tabcolsep}{3pt}%")
