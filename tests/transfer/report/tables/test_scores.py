"""Tables of scores: of runs, configurations, datasets, classes and layers."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tasks.segment.task import resampled
from tests.runs import ended
from tests.tasks.detect.coco.cases import official_by_class
from tests.transfer.comparison.test_paired_outcomes import coco_run, drawn_coco
from tests.transfer.records.recorded import broken, made, run_set, scored, trained
from transfer.core.errors import UserError
from transfer.data.coco.scoring import COCO
from transfer.records.grouping import Comparability
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.formats import data_frame, file_content
from transfer.report.page.html import Section
from transfer.report.sections import ReportRequest, sections
from transfer.report.tables.columns import protocol_tables
from transfer.report.tables.scores import each_run, layer_table, norm_table, over_datasets, summary
from transfer.report.tables.table import Column, Endings, Note, Table, cell_text
from transfer.report.tables.text import markdown, note_texts, run_table
from transfer.task import load_task

FAILED = "with failed runs: failed runs counted at chance level, or at 0 where it is not known"


def runs() -> list[Record]:
    """Three seeds at one rate, and two at another, of which one broke down."""
    return [
        made(lr=lr, seed=seed, scores={"mAP": score, "rank1": 0.9}) if score else broken(lr=lr, seed=seed)
        for lr, scores in ((0.05, (0.5, 0.6, 0.7)), (0.1, (0.2, None)))
        for seed, score in enumerate(scores)
    ]


def test_the_summary_averages_seeds_and_names_what_differs() -> None:
    rows = summary(run_set(runs()))
    assert rows["protocol"] == [Comparability((("lr", 0.05),)), Comparability((("lr", 0.1),))]
    assert note_texts(rows.notes) == [FAILED]
    tables = protocol_tables(rows)
    assert [(text, table["mAP"]) for text, table in tables.items()] == [("lr 0.05", [60.0]), ("lr 0.1", [20.0])]
    assert rows["mAP with failed runs"] == pytest.approx([60.0, 10.0])
    assert rows["seeds"] == [3, 1], "with a score"
    assert rows["mAP"] == pytest.approx([60.0, 20.0])
    assert rows["mAP sd"][0] == pytest.approx(10.0)
    assert pd.isna(rows["mAP sd"][1])
    assert rows["statuses"][1] == Endings(("completed", "diverged"))
    assert [*map(cell_text, rows["statuses"])] == ["3 completed", "1 completed, 1 diverged"]
    short = broken(lr=0.1, seed=1, cost={"train_seconds": 0.1})
    assert summary(run_set([made(lr=0.1), short]))["train_seconds"] == [1.0], "of the completed run"
    assert "statuses 3 completed" in run_table(runs()[:3], Path("runs"))
    kept = broken(lr=0.1, details={"failed_scores": {"mAP": 0.3}})
    said = {text: note_texts(table.notes) for text, table in protocol_tables(summary(run_set([made(), kept]))).items()}
    assert said == {"lr 0.05": [], "lr 0.1": [f"{kept.run_id}: diverged; its scores are excluded from means: mAP 30.0"]}


def test_the_chance_level_is_shown_and_no_score_that_is_always_1() -> None:
    few = {"counts": {"val": {"images": 60, "classes": 5}}}
    record = made("knn", dataset=few, scores={"top1": 0.5, "top5": 1.0}, primary="top1")
    for table in (summary(run_set([record])), each_run(run_set([record]))):
        assert (table["chance"], table["top1"], "top5" in table) == (["20 %"], [50.0], False)


def test_markdown_has_the_form_of_tabulate_and_nothing_leaves_its_cell() -> None:
    rows = Table.from_rows(
        [{"a": "x", "number": 1.0, "n": 1, "none": None}, {"a": "longer text", "number": np.nan, "n": 2, "none": "y"}]
    )
    shown = rows.to_frame().assign(number=["1.00", ""], none=["", "y"])
    assert markdown(rows) == shown.to_markdown(index=False, disable_numparse=True)
    hostile = markdown(Table.from_rows([{"a": "x | y\nz"}]))
    assert len(hostile.splitlines()) == 3
    assert "x \\| y z" in hostile


def test_the_mean_over_data_sets_is_unweighted_in_the_unit_of_its_metric_with_its_own_error() -> None:
    metrics = {"accuracy_10shot": {"averaged": True}, "error": {"unit": "px", "direction": "lower"}}
    given: dict[str, Any] = {"primary": "accuracy_10shot", "metrics": metrics}
    given["details"] = {"accuracy_10shot": {"standard_error": 0.03}}
    scores = [{"accuracy_10shot": score, "error": 10 * score} for score in (0.2, 0.4, 0.9)]
    records = [made("fewshot", dataset={"name": f"set{n}"}, scores=ones, **given) for n, ones in enumerate(scores)]
    (row,) = over_datasets(run_set(records)).rows
    assert row["datasets"] == "set0, set1, set2"
    assert (row["accuracy_10shot"], row["error"]) == pytest.approx((50.0, 5.0))
    assert row["accuracy_10shot se"] == pytest.approx(100 * np.sqrt(3 * 0.03**2) / 3)


def test_means_over_data_sets_tell_options_and_pretraining_apart() -> None:
    parents = [trained("sha256:a"), trained("sha256:b", seed=1), trained("sha256:c", epochs=5, smoke=True)]
    given = {"primary": "accuracy", "metrics": {"accuracy": {"averaged": True}}, "scores": {"accuracy": 0.5}}
    records = [
        made("fewshot", weights_id=parent.export, dataset={"name": name, "digest": name * 20}, lr=lr, **given)
        for parent in parents
        for lr in (1.0, 2.0)
        for name in ("one", "two")
    ]
    rows = over_datasets(run_set(records, [*records, *parents]))
    assert len({(row["pretraining"], row["pretraining seed"], row["protocol"]) for row in rows.rows}) == 6
    assert [*map(cell_text, rows["datasets"])].count("one, two (pretraining smoke)") == 2


def test_the_tables_of_a_report_are_one_table_for_programs() -> None:
    group = Comparability((("lr", 1), ("epochs", 5)))
    notes = [Note("one seed\nonly", rows=(0,))]
    cells = [{"name": "data #1", "protocol": None, "score": 1.5}, {"name": "=two", "protocol": group, "score": -2.5}]
    rows = Table([Column("name"), Column("protocol"), Column("score")], cells, notes)
    others = Table([Column("name"), Column("rank1")], [{"name": "three", "rank1": 3}])
    parts = [Section(title="One", table=rows, note="more"), Section(title="none"), Section(title="Two", table=others)]
    frame = data_frame(parts)
    assert list(frame.columns) == ["table", "name", "protocol", "score", "rank1", "notes"]
    back = pd.read_csv(io.BytesIO(file_content(frame, "csv")))
    assert back["name"].tolist() == ["data #1", "=two", "three"]
    assert back["protocol"][1] == "lr 1, epochs 5"
    assert back["score"].tolist()[:2] == [1.5, -2.5]
    assert "one seed" in back["notes"][0]
    assert "one seed" not in str(back["notes"][1])
    stored = pd.read_parquet(io.BytesIO(file_content(frame, "parquet")))
    assert stored["score"].tolist()[:2] == [1.5, -2.5]
    assert (str(stored["rank1"].dtype), stored["rank1"][2]) == ("Int64", 3)


def test_classes_with_fewer_images_than_shots_are_named_in_the_table() -> None:
    support = {"classes_with_fewer": {"1": 0, "25": 7}}
    few = made("fewshot", dataset={"name": "toy_cub200"}, details={"support": support})
    for row, table in ((1, each_run(run_set([made(), few]))), (0, summary(run_set([made(), few])))):
        (note,) = [note for note in table.notes if note.rows]
        assert note.text == "7 classes with fewer than 25 training images, all of them used"
        assert (note.about, note.rows) == ("accuracy_25shot on toy_cub200", (row,))


NAMES = {"1": "ant", "3": "bee", "7": "cow", "18": "dog"}


def test_every_class_has_its_score_with_an_interval_or_that_asked_for_by_name(tmp_path: Path) -> None:
    run = coco_run(tmp_path / "a", 0)
    run.record.details["classes"] = NAMES
    (section,) = sections(StoredRuns.of([run]), ReportRequest(per_class=True))
    table = section.table
    assert table["class"] == ["ant", "bee", "cow"]
    for kind, score in (("bbox", "box_AP"), ("segm", "mask_AP")):
        expected = official_by_class(*drawn_coco(0), kind, COCO)["AP"]
        assert table[score] == pytest.approx((100 * expected[:3]).tolist())
        assert np.mean(table[score]) == pytest.approx(run.record.shown(score))
        for value, low, high in zip(table[score], table[f"{score} low"], table[f"{score} high"], strict=True):
            assert 0 <= low < value < high < 100
    assert note_texts(table.notes) == ["toy_market: not in the test images, so no score: dog"]
    (section,) = sections(StoredRuns.of([run]), ReportRequest(per_class=True, scores=("box_AP50",)))
    assert ("box_AP50" in section.table, "box_AP" in section.table) == (True, False)
    with pytest.raises(UserError, match="--per-class: no run has this score by class"):
        sections(StoredRuns.of([run]), ReportRequest(per_class=True, scores=("top1",)))


def test_a_seed_that_failed_hides_no_class_of_the_others(tmp_path: Path) -> None:
    run = coco_run(tmp_path / "a", 0)
    failed = replace(run.record, run_id="failed", run_key="0" * 64, scores={}, outcome=ended("diverged"))
    (section,) = sections(StoredRuns.of([StoredRun(tmp_path, failed), run]), ReportRequest(per_class=True))
    assert section.table["class"] == ["1", "3", "7"]


def test_an_interval_of_a_class_is_over_the_images_in_which_it_occurs(tmp_path: Path) -> None:
    """A class in one of 40 images has none; one in five, of which no pixel is right, may be up to 45 % better."""
    labelled = np.zeros((40, 3))
    labelled[:, 0], labelled[3, 1], labelled[:5, 2] = 60, 10, 30
    right = labelled * np.array([0.7, 0, 0]) + np.random.default_rng(0).integers(0, 9, (40, 1)) * np.array([1, 0, 0])
    outcomes = {"intersection": right, "union": 1.2 * labelled, "labelled": labelled}
    outcomes |= {"sample": np.array([f"{place}.png" for place in range(40)]), "cluster": np.arange(40)}
    outcomes |= resampled(outcomes)
    run = scored(tmp_path, "segment", outcomes, "a", scores=load_task("segment").rescore(outcomes))
    (section,) = sections(StoredRuns.of([run]), ReportRequest(per_class=True))
    rows = [[row.get(name) for name in ("class", "mIoU low", "mIoU high")] for row in section.table.rows]
    assert rows[0][2] - rows[0][1] < 10
    assert rows[1:] == [["1", None, None], ["2", 0.0, pytest.approx(100 * (1 - 0.05 ** (1 / 5)))]]


def tokens(similarity: float, pearson: float | None = None, **given: Any) -> Record:
    layers = [
        {"place": "stem", "kind": "stem", "similarity": similarity, "operator_norm": 2.0, "norm": 1.0},
        {"place": "block 1", "kind": "block", "similarity": 2 * similarity, "operator_norm": None, "norm": 3.0},
    ]
    reading = {"of": "stem proj", "norm": [1.0, 2.0], "pearson": pearson, "spearman": 1.0, "balance": 0.5}
    last = {"activation": "conv.8", "norm": "conv.7", "weights": [reading]} if pearson is not None else None
    attention = [{"place": "block 1", "row_sum": 1.0, "entropy": 0.7}]
    details = {"layers": layers, "attention": attention, "stem": {"norms": [], "last_activation": last}}
    return made("tokens", scores={"similarity_stem": similarity}, details=details, **given)


def test_layers_are_means_over_seeds_beside_the_attention_of_their_block() -> None:
    table = layer_table(run_set([tokens(0.1, seed=0), tokens(0.2, seed=1), tokens(0.4, stem="conv")]))
    assert table["backbone"] == ["tiny, patchify"] * 2 + ["tiny, conv"] * 2
    assert table["place"] == ["stem", "block 1"] * 2
    assert table["seeds"] == [2, 2, 1, 1]
    assert table["similarity"] == pytest.approx([0.15, 0.3, 0.4, 0.8])
    stem, block = table.rows[:2]
    assert (stem["operator_norm"], block["entropy"]) == (2.0, 0.7)
    assert math.isnan(stem["entropy"])
    assert math.isnan(block["operator_norm"]), "one value that could not be had is no mean of the others"
    assert "effective_rank" not in table, "measured nowhere"
    assert len(table["run"][0]) == 2


def test_looks_at_one_pretraining_are_one_seed_of_a_layer_table() -> None:
    parents = [trained(f"sha256:{seed}", seed=seed) for seed in (0, 1)]
    given = [(0.1, 0, 0), (0.3, 0, 1), (0.6, 1, 0)]
    looks = [tokens(value, weights_id=f"sha256:{parent}", seed=seed) for value, parent, seed in given]
    table = layer_table(run_set(looks, [*looks, *parents]))
    assert table["seeds"] == [2, 2]
    assert table["similarity"] == pytest.approx([0.4, 0.8])


def test_norms_have_their_deviation_over_seeds() -> None:
    table = norm_table(run_set([tokens(0.1, pearson=0.2, seed=0), tokens(0.1, pearson=0.6, seed=1)]))
    (line,) = table.rows
    assert line["weights W_c"] == "stem proj"
    assert line["pearson"] == pytest.approx(0.4)
    assert line["pearson sd"] == pytest.approx(0.08**0.5)
    assert (line["balance"], line["balance sd"]) == (0.5, 0)
    assert any("1 / s_c" in note for note in note_texts(table.notes))
    assert not norm_table(run_set([tokens(0.1)])).rows, "a stem without a last activation has none"


def test_trainings_that_were_looked_at_have_rows_by_epoch(tmp_path: Path) -> None:
    runs = []
    for seed in (0, 1):
        record = made("pretrain-supervised", seed=seed)
        record.details["tokens_at"] = [1, 3]
        looks = [tokens(0.1 * epoch * (1 + seed), pearson=0.5).details for epoch in (1, 3)]
        lines = [{"step": 1, "epoch": 0.5, "loss": 2.0}]
        lines += [{"step": 2 * epoch, "epoch": epoch, **look} for epoch, look in zip((1, 3), looks, strict=True)]
        folder = tmp_path / record.run_id
        folder.mkdir()
        (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        runs.append(StoredRun(folder, record))
    layers, norms = sections(StoredRuns.of(runs), ReportRequest(layers=True))
    assert layers.table["epoch"] == [1, 1, 3, 3]
    assert layers.table["similarity"] == pytest.approx([0.15, 0.3, 0.45, 0.9])
    assert norms.table["epoch"] == [1, 3]
