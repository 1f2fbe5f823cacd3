"""Tables of the task `tokens`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.records.recorded import made
from tests.transfer.report.tables.of_records import layer_table_of, norm_table_of, said
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.sections import ReportRequest, sections


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
    table = layer_table_of([tokens(0.1, seed=0), tokens(0.2, seed=1), tokens(0.4, stem="conv")])
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


def test_norms_have_their_deviation_over_seeds() -> None:
    table = norm_table_of([tokens(0.1, pearson=0.2, seed=0), tokens(0.1, pearson=0.6, seed=1)])
    (line,) = table.rows
    assert line["weights W_c"] == "stem proj"
    assert line["pearson"] == pytest.approx(0.4)
    assert line["pearson sd"] == pytest.approx(0.08**0.5)
    assert (line["balance"], line["balance sd"]) == (0.5, 0)
    assert any("1 / s_c" in note for note in said(table))
    assert not norm_table_of([tokens(0.1)]).rows, "a stem without a last activation has none"


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
        runs.append(Run(folder, record))
    layers, norms = sections(RunSet.of(runs), ReportRequest(layers=True))
    assert layers.table is not None
    assert layers.table["epoch"] == [1, 1, 3, 3]
    assert layers.table["similarity"] == pytest.approx([0.15, 0.3, 0.45, 0.9])
    assert norms.table is not None
    assert norms.table["epoch"] == [1, 3]
