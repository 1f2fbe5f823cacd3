import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.runs import ended
from tests.support import context
from transfer.core.errors import UserError
from transfer.core.files import lock
from transfer.core.process import Ranks
from transfer.evaluation import evaluator
from transfer.records.record import Record, RunKey, with_checksum
from transfer.records.store import LOCK, RECORD, Store, StoredRun, damaged_files, merged, missing_files, runs_in
from transfer.report.__main__ import main as report
from transfer.verify.__main__ import main as verify_runs

CONTENT = {
    "task": "reid",
    "task_version": 1,
    "backbone": {"name": "tiny", "stem": "patchify", "files": {}},
    "weights_id": "random",
    "dataset": {"name": "toy_market", "version": None, "digest": "0" * 64},
    "options": {"lr": 0.05, "size": [64, 32], "margin": None, "rerank": False},
    "precision": "bf16",
    "seed": 0,
    "smoke": True,
    "subset": None,
}


def record(run_key: RunKey, **given: Any) -> Record:
    values: dict[str, Any] = {
        "run_id": run_key.run_id("reid", "toy_market", "tiny"), "run_key": run_key.digest,
        "config_digest": run_key.config_digest, "task": "reid", "task_version": 1,
        "dataset": {"name": "toy_market", "version": None, "counts": {}, "digest": "0" * 64},
        "backbone": {"name": "tiny"}, "weights_id": "random", "untrained": [], "options": {"lr": 0.05}, "seed": 0,
        "smoke": False, "subset": None, "outcome": ended("completed", 9), "scores": {"mAP": 0.5, "rank1": 0.75},
        "primary": "mAP", "metrics": {"mAP": {"unit": "fraction", "direction": "higher", "bounds": [0.0, 1.0]}},
        "cost": {"train_seconds": 1.0}, "environment": {},
    }  # fmt: skip
    return Record(**{**values, **given})


def test_the_identity_does_not_depend_on_order() -> None:
    assert RunKey(dict(reversed(CONTENT.items()))).digest == RunKey(CONTENT).digest


def test_a_written_record_reads_back_whole_and_stands_for_no_other_run(tmp_path: Path) -> None:
    store, run_key = Store(tmp_path), RunKey(CONTENT)
    mine = record(run_key, options={"lr": 0.05, "data": "donn\udce9es"})  # as Python names bytes that are not UTF-8
    with store.lock(mine.run_id, waiting=lambda: None) as folder:
        (folder / "state.pt").touch()
        written = store.write(mine, "lr: 0.05\n", {"ap": np.array([0.1, 0.2])})
    assert replace(written, files={}) == mine
    assert store.find(mine.run_id, run_key) == written
    with pytest.raises(UserError, match="belongs to another run"):
        store.find(mine.run_id, RunKey(CONTENT | {"seed": 1}))
    assert sorted(path.name for path in folder.iterdir()) == ["options.yaml", "outcomes.npz", "record.json"]
    with np.load(folder / "outcomes.npz") as outcomes:
        assert outcomes["ap"].tolist() == [0.1, 0.2]
    assert store.runs() == ([StoredRun(folder, written)], [])


def written(root: Path, name: str = "", **given: Any) -> StoredRun:
    """A finished run in a store, under another folder's name if one is given."""
    store, mine = Store(root), record(RunKey(CONTENT), **given)
    store.folder(mine.run_id).mkdir(parents=True, exist_ok=True)
    whole = store.write(mine, "lr: 0.05\n", {"ap": np.array([0.1, 0.2])})
    folder = store.folder(mine.run_id)
    return StoredRun(folder.rename(root / name) if name else folder, whole)


def test_nonfinite_scores_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        written(tmp_path, scores={"mAP": float("nan")})
    assert not [*tmp_path.rglob("record.json")]


def test_copies_of_a_run_are_one_and_those_that_differ_are_named(tmp_path: Path) -> None:
    late = written(tmp_path, "copy", environment={"started": "2026-01-02"})
    early = written(tmp_path, environment={"started": "2026-01-01"})
    assert Store(tmp_path).runs() == ([early], [])
    fewer = written(tmp_path, "of an earlier version", environment={"started": "2026-01-02"}, scores={"mAP": 0.5})
    assert merged([early, fewer]) == merged([fewer, early]) == ([early], [])

    other = written(tmp_path, "other", environment={"started": "2026-01-03"}, scores={"mAP": 0.6, "rank1": 0.75})
    assert merged([other, late]) == ([late], merged([late, other])[1]), "the one that started first stands"
    written(tmp_path, environment={"started": "2026-01-01"})
    runs, (problem,) = Store(tmp_path).runs()
    assert runs == [early]
    for part in (str(early.folder), str(other.folder), "mAP 0.5 and 0.6", "is taken"):
        assert part in problem
    assert "rank1" not in problem


def test_a_clean_run_comes_before_a_dirty_one_that_started_earlier(tmp_path: Path) -> None:
    dirty = written(tmp_path, "a", environment={"started": "2026-01-01", "dirty": True})
    clean = written(tmp_path, "b", environment={"started": "2026-01-02", "dirty": False})
    assert merged([dirty, clean]) == merged([clean, dirty]) == ([clean], [])
    other = written(tmp_path, "c", environment={"started": "2026-01-03", "dirty": False}, scores={"mAP": 0.9})
    kept, (dispute,) = merged([other, clean, dirty])
    assert kept == [clean], "of clean ones the one that started first"
    assert f"{clean.folder} and {other.folder}" in dispute


def test_a_reused_run_says_how_it_was_made_otherwise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"sync_bn": False, "epochs": 1}
    spec = {"name": "tiny", "arch": "vit_tiny", "stem": "conv", "ffn": "mlp"}
    run = written(tmp_path, options=options, backbone=spec, environment={"world_size": 8})
    batch_norm, images = " (made by 8 processes, each of which sees batch norm by itself)", " (made when 0 images were "
    for world, skipped, said in (1, 0, batch_norm), (8, 0, ""), (8, 1, f"{images}unreadable, now 1)"):
        cell: Any = SimpleNamespace(run_id=run.record.run_id, run_key=RunKey(CONTENT), options=options)
        cell.dataset = SimpleNamespace(skipped=skipped)
        evaluator._record(cell, context(ranks=Ranks(0, world)), Store(tmp_path))
        assert capsys.readouterr().err.strip().endswith(f"has a record, reused{said}")


def test_an_export_that_lacks_its_weights_is_damaged_and_one_that_was_deleted_is_missing(tmp_path: Path) -> None:
    run = written(tmp_path)
    files = {f"export/{name}": {"sha256": "a", "size": 2} for name in ("config.json", "model.safetensors")}
    run = replace(run, record=replace(run.record, files=files))
    assert (damaged_files(run), missing_files(run)) == ([], [*files])
    (run.folder / "export").mkdir()
    (run.folder / "export/config.json").write_text("{}")
    assert (damaged_files(run), missing_files(run)) == (["export/model.safetensors"],) * 2
    (run.folder / "export/model.safetensors").write_text("cut off")
    assert (damaged_files(run), missing_files(run)) == (["export/model.safetensors"], [])


@contextlib.contextmanager
def locked_elsewhere(path: Path) -> Iterator[None]:
    """Another process holds the lock of this file, in a folder that is made."""
    path.parent.mkdir()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with path.open("a") as file:
            lock(file, path)
            os.write(writer, b"x")
            time.sleep(60)
    os.read(reader, 1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_unfinished_runs_say_how_they_stand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path)
    for name, files in {"a": ["state.pt"], "b": ["error.txt", "lock"], "c": ["options.yaml"], "notes": ["x"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("Traceback\nMemoryError: it was too much\n")
    with locked_elsewhere(tmp_path / "d" / LOCK):
        found = {left.folder.name: (left.state, left.reason) for left in Store(tmp_path).unfinished()}
    assert found.pop("d") == ("under way", "")
    assert found.pop("b") == ("failed", "MemoryError: it was too much")
    assert {name: state for name, (state, _) in found.items()} == {"a": "interrupted", "c": "interrupted"}
    assert "last checkpoint" in found["a"][1]
    assert "nothing was saved" in found["c"][1]
    for command in (report, verify_runs):
        assert command([str(tmp_path / "a")]) == 1
        assert f"{tmp_path}/a: interrupted (the same command resumes" in capsys.readouterr().err


def test_a_disk_that_takes_nothing_is_said_with_what_mends_it() -> None:
    with pytest.raises(UserError, match="choose another folder with --out"), Store(Path("/sys/runs")).lock("a", list):
        pass


def test_a_record_that_cannot_be_read_just_now_is_not_to_be_deleted(tmp_path: Path) -> None:
    """It may be whole: the disk fails, as the first byte of this file does, or it is another user's."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RECORD).symlink_to("/proc/self/mem")
    runs, (problem,) = Store(tmp_path).runs()
    assert runs == []
    assert "cannot be read (Input/output error)" in problem
    assert "delete" not in problem


def test_the_record_lists_the_files_of_the_run_and_no_others(tmp_path: Path) -> None:
    mine = record(RunKey(CONTENT), export="sha256:" + 64 * "0")
    folder = Store(tmp_path).folder(mine.run_id)
    for name in ("export", "pictures"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a file").write_text(name)
    for name in ("history.jsonl", "support.csv", "state.pt", "lock", "error.txt", ".x.1.tmp", "events.out.tfevents.1"):
        (folder / name).write_text(name)
    told = Store(tmp_path).write(mine, "lr: 0.05\n", {"ap": np.array([0.1])}).files
    assert list(told) == ["export/a file", "history.jsonl", "options.yaml", "outcomes.npz", "support.csv"]
    for name, entry in told.items():
        content = (folder / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def test_an_edited_record_is_refused_and_named(tmp_path: Path) -> None:
    path = written(tmp_path).folder / "record.json"
    content = json.loads(path.read_text())
    without = json.dumps({key: value for key, value in content.items() if key != "digest"}, indent=1)
    for edited in (path.read_text() + "\n", without):
        path.write_text(edited)
        for runs, (problem,) in (Store(tmp_path).runs(), runs_in([path.parent])):
            assert not runs
            assert f"{path}: edited" in problem
        assert Record.read(path, edited=True).task == "reid"


ENTRIES = asdict(record(RunKey(CONTENT)))


NO_RECORDS = [
    (b"[1]", "not a readable record"),
    (b'{"schema": 99}', "schema 99, but this version reads 1; update the suite"),
    (with_checksum(ENTRIES | {"surprise": 1}), "unexpected keyword argument 'surprise'"),
    (with_checksum({name: ENTRIES[name] for name in ENTRIES if name != "scores"}), "missing .* 'scores'"),
]


@pytest.mark.parametrize(("raw", "says"), NO_RECORDS)
def test_a_file_that_holds_no_record_is_named(raw: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(raw)
    with pytest.raises(UserError, match=rf"record\.json: .*{says}"):
        Record.read(tmp_path / "record.json")
