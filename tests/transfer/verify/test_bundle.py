"""Runs go from one store to another by way of a file, without paths, and nothing that was changed gets in."""

import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.transfer.comparison.test_paired_outcomes import ranked
from tests.transfer.records.test_store import CONTENT, record
from transfer.core.errors import UserError
from transfer.records.record import RunKey, with_checksum
from transfer.records.store import Store, StoredRun
from transfer.task import load_task
from transfer.verify.__main__ import main as verify
from transfer.verify.bundle import bundle, import_bundle

Captured = pytest.CaptureFixture[str]

HOME = "/home/me/some place"
OPTIONS = {
    "lr": 0.05, "size": [64, 32], "margin": None, "rerank": False, "backbone": "hf-hub:owner/name",
    "data": f"{HOME}/data", "out": f"{HOME}/runs", "feature_cache": "features", "weights": f"{HOME}/weights/mine",
    "stem": f"{HOME}/my_stem.py:Mine", "dataset": [f"{HOME}/people.yaml"],
}  # fmt: skip


def made(
    root: Path, seed: int = 0, sample: str = "query/0.jpg", command: str = "python -m transfer.run reid", **given: Any
) -> StoredRun:
    """A finished run of ReID whose scores are those of its outcomes."""
    outcomes = ranked(seed)
    outcomes["sample"] = np.array([sample, *outcomes["sample"][1:]])
    backbone = {**CONTENT["backbone"], "stem": f"sha256:{64 * 'a'}:Mine"}
    run_key = RunKey(CONTENT | {"seed": seed, "backbone": backbone})
    values: dict[str, Any] = {
        "run_key_content": run_key.content,
        "seed": seed,
        "smoke": True,
        "scores": load_task("reid").rescore(outcomes),
        "options": OPTIONS,
        "backbone": {"name": "tiny", "stem": OPTIONS["stem"], "files": {"stem": 64 * "a"}},
        "environment": {"precision": "bf16", "started": "2026-01-01"},
        "origin": {"smoke": True, "dirty": True, "subset": None},
        "notes": [f"the weights in {HOME}/weights/mine were pretrained with --smoke", "see /etc/x/y, or a/b and 1 / 2"],
    }
    mine = record(run_key, **(values | given))
    store = Store(root)
    store.folder(mine.run_id).mkdir(parents=True, exist_ok=True)
    (store.folder(mine.run_id) / "history.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (store.folder(mine.run_id) / "detections.json").write_text("[]")
    options = f"# {command}\n" + json.dumps(OPTIONS)
    return StoredRun(store.folder(mine.run_id), store.write(mine, options, outcomes))


def test_a_bundle_keeps_one_in_so_many_steps_and_all_validations_however_often_it_is_made(tmp_path: Path) -> None:
    run = made(tmp_path / "runs")
    steps = [json.dumps({"step": step, "epoch": step / 4, "loss": 2.0}) for step in range(1, 9)]
    lines = [*steps[:4], '{"step": 4, "epoch": 1, "top1": 0.5}', *steps[4:]]
    (run.folder / "history.jsonl").write_text("\n".join(lines))
    run = StoredRun(run.folder, Store(tmp_path / "runs").write(replace(run.record, files={}), "# x\n{}", ranked()))
    for name in ("one", "two"):
        bundle([run], tmp_path / f"{name}.zip", every=3)
        assert import_bundle(tmp_path / f"{name}.zip", Store(tmp_path / name)).added == [run.record.run_id]
        run = Store(tmp_path / name).runs()[0][0]
        kept = [json.loads(line) for line in (run.folder / "history.jsonl").read_text().splitlines()]
        assert [(line["step"], "top1" in line) for line in kept] == [(1, False), (4, False), (4, True), (7, False)]
    assert verify([str(tmp_path / "two")]) == 0


CODE = {"file": f"{HOME}/my_task.py:TASK", "sha256": 64 * "b"}


@pytest.fixture
def runs(tmp_path: Path) -> list[StoredRun]:
    command = f"python -m transfer.run '{HOME}/my_task.py:TASK' --config options.yaml"
    return [
        made(tmp_path / "runs", 0, "Katzen (Süd)/Foto 14, 'übung'.JPG"),
        made(tmp_path / "runs", 1, command=command, user_code={"part": CODE}),
    ]


@pytest.fixture
def file(runs: list[StoredRun], tmp_path: Path) -> Path:
    assert bundle(runs, tmp_path / "runs.zip") == sorted(run.record.run_id for run in runs)
    return tmp_path / "runs.zip"


def test_runs_come_through_whole_and_verify(runs: list[StoredRun], file: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "other")
    result = import_bundle(file, store)
    assert sorted(result.added) == sorted(run.record.run_id for run in runs)
    assert verify([str(store.root)]) == 0
    found = {run.record.run_key: run for run in store.runs()[0]}
    for run in runs:
        other = found[run.record.run_key]
        for name in ("scores", "seed", "outcome", "run_key_content", "config_digest", "cost", "environment", "origin"):
            assert getattr(other.record, name) == getattr(run.record, name)
        for name in ("outcomes.npz", "history.jsonl"):
            assert (other.folder / name).read_bytes() == (run.folder / name).read_bytes()
        assert other.record.shared
        assert other.record.shared["left_out"] == ["detections.json"]
    assert len(list(store.root.iterdir())) == 2


def test_no_path_of_the_machine_gets_into_a_bundle(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist() if not name.endswith(".npz")}
    for text in texts.values():
        for part in ("/home", "some place", "/etc", str(Path.home()) + "/", str(file.parent)):
            assert part not in text
    shared, users = sorted(
        (json.loads(text) for name, text in texts.items() if name.endswith("record.json")),
        key=lambda content: len(content["user_code"]),
    )
    assert users["user_code"] == {"part": CODE | {"file": "my_task.py:TASK"}}
    assert shared["options"] == {
        "lr": 0.05, "size": [64, 32], "margin": None, "rerank": False, "backbone": "hf-hub:owner/name",
        "weights": "mine", "stem": "my_stem.py:Mine", "dataset": ["people.yaml"],
    }  # fmt: skip
    assert shared["backbone"]["files"] == {"stem": 64 * "a"}
    assert shared["notes"] == ["the weights in mine were pretrained with --smoke", "see y, or a/b and 1 / 2"]
    options = {text.partition("\n")[0]: text for name, text in texts.items() if name.endswith("options.yaml")}
    users_command = "# python -m transfer.run 'my_task.py:TASK' --config options.yaml"
    assert options.keys() == {"# python -m transfer.run reid", users_command}
    assert not any("data:" in text for text in options.values())


def test_equal_runs_and_bundles_of_bundles_make_equal_bytes(runs: list[StoredRun], file: Path, tmp_path: Path) -> None:
    bundle(runs[::-1], tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == file.read_bytes()
    import_bundle(file, Store(tmp_path / "other"))
    bundle(Store(tmp_path / "other").runs()[0], tmp_path / "copy.zip")
    assert (tmp_path / "copy.zip").read_bytes() == file.read_bytes()


def test_runs_that_are_there_stay_and_conflicts_are_named(runs: list[StoredRun], file: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    result = import_bundle(file, store)
    assert (len(result.added), len(result.equal), result.conflicts) == (0, 2, [])
    mine = replace(runs[0].record, scores=runs[0].record.scores | {"mAP": 0.001})
    (runs[0].folder / "record.json").write_bytes(with_checksum(asdict(mine)))
    result = import_bundle(file, store)
    assert (len(result.added), len(result.equal)) == (0, 1)
    assert all(part in result.conflicts[0] for part in ("mAP", "of the bundle", "the existing run is kept"))
    (runs[0].folder / "record.json").unlink()
    assert "unfinished" in import_bundle(file, store).conflicts[0]
    assert len(list(store.root.iterdir())) == 2


Files = dict[str, bytes]


def forged(files: Files) -> None:
    """A record with another score, and a digest to match."""
    name = next(name for name in files if name.endswith("record.json"))
    record = json.loads(files[name])
    del record["digest"]
    files[name] = with_checksum(record | {"scores": record["scores"] | {"mAP": 0.99}})


STRANGE = (lambda files: files.update({"../record.json": b""}), "does not belong in a bundle")


@pytest.mark.parametrize(("change", "said"), [STRANGE, (forged, "mAP: 0.99 in the record")])
def test_a_bad_bundle_is_refused(file: Path, change: Callable[[Files], Any], said: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(UserError, match=f"(?s){said}"):
        import_bundle(file, Store(tmp_path / "other"))
    assert list((tmp_path / "other").iterdir()) == []


def test_torn_and_damaged_files_are_no_bundles(file: Path, tmp_path: Path, capsys: Captured) -> None:
    whole = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        start = next(entry.header_offset + 120 for entry in archive.infolist() if entry.filename.endswith("d.json"))
    for content in (b"", whole[:2000], whole[:start] + bytes(200) + whole[start + 200 :]):
        file.write_bytes(content)
        with pytest.raises(UserError, match="not a readable bundle"):
            import_bundle(file, Store(tmp_path / "other"))
    assert verify([str(file)]) == 1
    assert f"`python -m transfer.report import {file}` verifies a bundle" in capsys.readouterr().err


def test_what_does_not_verify_is_not_shared(runs: list[StoredRun], tmp_path: Path) -> None:
    (runs[0].folder / "history.jsonl").write_text("")
    with pytest.raises(UserError, match=r"history\.jsonl: not the file that the run wrote"):
        bundle(runs, tmp_path / "runs.zip")
    assert not (tmp_path / "runs.zip").exists()


@pytest.mark.parametrize("sample", ["/home/me/0.jpg", "~/0.jpg", "D:\\me\\0.jpg", "\\\\server\\share\\0.jpg"])
def test_samples_that_are_named_by_paths_are_not_shared(sample: str, tmp_path: Path) -> None:
    run = made(tmp_path / "runs", sample=sample)
    with pytest.raises(UserError, match="named by paths"):
        bundle([run], tmp_path / "runs.zip")
    content = CONTENT | {"options": {"lr": 0.05, "labels": "/home/me/labels"}}
    run = made(tmp_path / "others", run_key_content=content)
    with pytest.raises(UserError, match="its identity names /home/me/labels"):
        bundle([run], tmp_path / "runs.zip")
    assert not list(tmp_path.glob("*.zip"))
