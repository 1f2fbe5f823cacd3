"""Sets of runs: chosen, framed and written, and the study that the guide makes of them."""

from pathlib import Path

import pandas as pd
import pytest

import transfer
from tests.documents import files_in
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


STUDY = files_in("docs/guide/python.md")["study.py"]


def test_a_study_takes_at_most_twelve_lines() -> None:
    compile(STUDY, "study.py", "exec")
    assert len([line for line in STUDY.splitlines() if line.strip() and not line.startswith("#")]) <= 12


@pytest.mark.nightly
def test_the_study_of_the_guide_runs(here: Path) -> None:
    """With one seed instead of two and short trainings, all else as it stands there."""
    few: dict[str, object] = {"few": {"reid": {"epochs": 1}, "linear": {"epochs": 1}, "fewshot": {}}}
    names = dict(few)
    script = STUDY
    for long, short in (("seeds=[0, 1]", "seeds=[0], **few[task]"), ("name=stem", "name=stem, epochs=3")):
        assert long in script
        script = script.replace(long, short)
    exec(script, names)
    runs, table = names["runs"], names["table"]
    assert isinstance(runs, transfer.RunSet)
    assert {run.record.task for run in runs} == {"reid", "fewshot", "linear"}
    weights = {(run.record.backbone["stem"], run.record.weights_id) for run in runs}
    assert len({weights_id for _, weights_id in weights}) == 2, "each stem has the weights of its own pretraining"
    frame = table.to_frame()
    assert frame[["difference", "low", "high"]].astype(float).notna().all(axis=None)
    written = {path: path.stat().st_mtime_ns for path in here.rglob("record.json")}
    assert len(written) == len(runs) + 2, "those of the tasks and of two pretrainings"
    exec(script, dict(few))
    assert {path: path.stat().st_mtime_ns for path in here.rglob("record.json")} == written
