"""The study that the guide shows in Python runs as it stands there."""

from pathlib import Path

import pytest

import transfer
from tests.documents import files_in

STUDY = files_in("docs/guide/python.md")["study.py"]


def test_a_study_takes_at_most_twelve_lines() -> None:
    compile(STUDY, "study.py", "exec")
    assert len([line for line in STUDY.splitlines() if line.strip() and not line.startswith("#")]) <= 12


@pytest.mark.nightly
def test_the_study_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one seed instead of two and short trainings, all else as it stands there."""
    monkeypatch.chdir(tmp_path)
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
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")}
    assert len(written) == len(runs) + 2, "those of the tasks and of two pretrainings"
    exec(script, dict(few))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("record.json")} == written
