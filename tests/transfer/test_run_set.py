"""Sets of runs: chosen, framed and written."""

from pathlib import Path

import pandas as pd
import pytest

import transfer
from tests.transfer.modules import tiny_net
from transfer.core.files import ROOT
from transfer.records.run_set import COLUMNS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    short = {"smoke": True, "threads": 1, "progress": False, "epochs": 1, "warmup_epochs": 0, "out": out}
    for stem in ("conv", "patchify"):
        transfer.evaluate("reid", backbone="tiny", stem=stem, seeds=[0, 1], **short)
    transfer.evaluate("reid", backbone="tiny", lr=1e30, **short)
    options = {"smoke": True, "threads": 1, "progress": False, "out": out}
    transfer.evaluate("fewshot", backbone=tiny_net(), name="mine", dataset="toy_cub200", **options)
    return out


def test_the_frame_has_every_score_and_a_row_for_a_failed_training(folder: Path) -> None:
    runs = transfer.load(folder)
    frame = runs.to_frame()
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == COLUMNS
    assert len(frame) == sum(max(len(run.scores), 1) for run in runs)
    for run in runs:
        rows = frame[frame.run_id == run.run_id].set_index("metric")
        assert rows.value.dropna().to_dict() == run.scores
    failed = frame[~frame.outcome.isin(("completed", "not_judged"))]
    assert failed.metric.tolist() == ["mAP"]
    assert failed.value.isna().all()
    assert frame.groupby("run_id").primary.sum().eq(1).all()


def test_the_guide_names_every_column() -> None:
    guide = (ROOT / "docs" / "guide" / "python.md").read_text()
    assert [name for name in COLUMNS if f"`{name}`" not in guide] == []


def test_filter_takes_fields_and_lists_of_values(folder: Path) -> None:
    runs = transfer.load(folder)
    assert len(runs.filter(task="reid", lr=0.05)) == 4
    assert {run.seed for run in runs.filter(stem="patchify")} == {0, 1}
    assert len(runs[:2] + runs[1:3]) == 3
    assert len(runs.filter(task="reid", stem=["conv", "patchify"], seed=0)) == 3
    with pytest.raises(transfer.UsageError, match="unknown field 'steem'; did you mean 'stem'"):
        runs.filter(steem="conv")


def test_files_hold_what_the_frame_holds(folder: Path, tmp_path: Path) -> None:
    runs = transfer.load(folder)
    runs.to_parquet(tmp_path / "runs.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), runs.to_frame(), check_dtype=False)
