"""`python -m transfer.doctor clean`: it removes what killed runs left, and nothing that is of use."""

import fcntl
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.verify.test_bundle import made
from transfer.core.files import scraps_in
from transfer.doctor.__main__ import main
from transfer.engine.history import STATE
from transfer.records.store import ERROR, LOCK, OPTIONS

SCRAPS = (".record.json.77.tmp", ".export-a1b2c3d4.tmp/model.safetensors", ".export.77.old/config.json", ".probe.77")
UNFINISHED = "knn-toy_digits-tiny-0123456789ab"


def contents(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}


def unfinished(out: Path, *names: str) -> Path:
    folder = out / UNFINISHED
    for name in (OPTIONS, *names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")
    return folder


def test_what_killed_runs_left_is_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, mine = made(tmp_path).folder, tmp_path / "mine"
    mine.mkdir()
    (run / "export").mkdir()
    (run / "export" / "config.json").touch()
    before = contents(tmp_path)
    for name in (*SCRAPS, LOCK, STATE, ERROR):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(b"half")
    nothing_saved = unfinished(tmp_path, LOCK, ERROR)
    left = contents(tmp_path)
    assert main(["clean", str(tmp_path), "--dry-run"]) == 0
    assert contents(tmp_path) == left
    listed = capsys.readouterr().out
    assert listed.count("left by a run") == len(SCRAPS) + 4
    assert f"{nothing_saved}: left by a run" in listed
    assert main(["clean", str(tmp_path)]) == 0
    assert contents(tmp_path) == before
    assert not nothing_saved.exists()
    assert mine.exists()
    capsys.readouterr()
    assert main(["clean", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kept", [STATE, "export/model.safetensors"])
def test_runs_that_are_of_use_stay_unless_asked_for(kept: str, tmp_path: Path) -> None:
    folder = unfinished(tmp_path, kept, ".state.pt.77.tmp")
    assert main(["clean", str(tmp_path)]) == 0
    assert sorted(contents(folder)) == sorted([OPTIONS, kept])
    assert main(["clean", str(tmp_path), "--unfinished"]) == 0
    assert not folder.exists()


def hold(path: Path, held: Any, done: Any) -> None:
    with path.open("a") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        held.set()
        done.wait(30)


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    folder, processes = unfinished(tmp_path, ".options.yaml.77.tmp", LOCK), multiprocessing.get_context("fork")
    (tmp_path / ".probe.77").touch()  # of a command that begins just now
    held, done = processes.Event(), processes.Event()
    process = processes.Process(target=hold, args=(folder / LOCK, held, done))
    process.start()
    assert held.wait(30)
    before = contents(tmp_path)
    assert main(["clean", str(tmp_path), "--unfinished"]) == 0
    assert contents(tmp_path) == before
    done.set()
    process.join()
    hour_ago = time.time() - 4000
    os.utime(tmp_path / ".probe.77", (hour_ago, hour_ago))
    assert main(["clean", str(tmp_path)]) == 0
    assert contents(tmp_path) == {}


def test_of_a_sweep_its_weights_and_runs_are_cleaned(tmp_path: Path) -> None:
    run = made(tmp_path / "runs").folder
    scraps = [tmp_path / "weights" / ".tiny-a1b2c3d4.tmp", tmp_path / "features" / "a" / ".0.safetensors.77.tmp"]
    for scrap in [*scraps, run / ".record.json.77.tmp"]:
        scrap.mkdir(parents=True)
        os.utime(scrap, (0, 0))
    assert main(["clean", str(tmp_path)]) == 0
    assert not any(scrap.exists() for scrap in scraps)
    assert scraps_in(run) == []


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", str(tmp_path / "runs")]) == 1
    assert "runs: directory not found" in capsys.readouterr().err
