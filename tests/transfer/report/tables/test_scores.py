import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.transfer.records.recorded import broken, made, trained
from tests.transfer.report.tables.of_records import each_run_of, over_datasets_of, said, summary_of, texts
from transfer.records.comparability import Comparability
from transfer.records.record import Record
from transfer.report.formats import data_frame, file_content
from transfer.report.page.section_types import Section
from transfer.report.tables.columns import protocol_tables
from transfer.report.tables.table import Column, Endings, Note, Table
from transfer.report.tables.terminal import run_table
from transfer.report.tables.text import markdown

FAILED = "with failed runs: failed runs counted at chance level, or at 0 where it is not known"


def runs() -> list[Record]:
    """Three seeds at one rate, and two at another, of which one broke down."""
    return [
        made(lr=lr, seed=seed, scores={"mAP": score, "rank1": 0.9}) if score else broken(lr=lr, seed=seed)
        for lr, scores in ((0.05, (0.5, 0.6, 0.7)), (0.1, (0.2, None)))
        for seed, score in enumerate(scores)
    ]


def test_the_summary_averages_seeds_and_names_what_differs() -> None:
    rows = summary_of(runs())
    assert rows["protocol"] == [Comparability((("lr", 0.05),)), Comparability((("lr", 0.1),))]
    assert said(rows) == [FAILED]
    tables = protocol_tables(rows)
    assert [(text, table["mAP"]) for text, table in tables.items()] == [("lr 0.05", [60.0]), ("lr 0.1", [20.0])]
    assert rows["mAP with failed runs"] == pytest.approx([60.0, 10.0])
    assert rows["seeds"] == [3, 2]
    assert rows["mAP"] == pytest.approx([60.0, 20.0])
    assert rows["mAP sd"][0] == pytest.approx(10.0)
    assert pd.isna(rows["mAP sd"][1])
    assert rows["statuses"][1] == Endings((("completed", 1), ("diverged", 1)))
    assert texts(rows, "statuses") == ["3 completed", "1 completed, 1 diverged"]
    assert "statuses 3 completed" in run_table(runs()[:3], Path("runs"))


def test_the_chance_level_is_shown_and_no_score_that_is_always_1() -> None:
    few = {"counts": {"val": {"images": 60, "classes": 5}}}
    record = made("knn", dataset=few, scores={"top1": 0.5, "top5": 1.0}, primary="top1")
    for table in (summary_of([record]), each_run_of([record])):
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


def probes(*scores: float) -> list[Record]:
    """Few-shot records of several datasets."""
    given: dict[str, Any] = {"primary": "accuracy_10shot", "metrics": {"accuracy_10shot": {"averaged": True}}}
    given["details"] = {"accuracy_10shot": {"standard_error": 0.03}}
    shots = [{"accuracy_10shot": score, "accuracy_1shot": score / 2} for score in scores]
    return [made("fewshot", dataset={"name": f"set{n}"}, scores=ones, **given) for n, ones in enumerate(shots)]


def test_the_mean_over_data_sets_is_unweighted_and_has_its_own_error() -> None:
    (row,) = over_datasets_of(probes(0.2, 0.4, 0.9)).rows
    assert row["datasets"] == "set0, set1, set2"
    assert row["accuracy_10shot"] == pytest.approx(50.0)
    assert row["accuracy_1shot"] == pytest.approx(25.0)
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
    rows = over_datasets_of(records, [*records, *parents])
    assert len({(row["pretraining"], row["pretraining seed"], row["protocol"]) for row in rows.rows}) == 6
    assert texts(rows, "datasets").count("one, two (pretraining smoke)") == 2


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
    few = made(
        "fewshot", dataset={"name": "toy_cub200"}, details={"support": {"classes_with_fewer": {"1": 0, "25": 7}}}
    )
    for row, table in ((1, each_run_of([made(), few])), (0, summary_of([made(), few]))):
        (note,) = [note for note in table.notes if note.rows]
        assert note.text == "7 classes with fewer than 25 training images, all of them used"
        assert (note.about, note.rows) == ("accuracy_25shot on toy_cub200", (row,))
