"""`python -m transfer.doctor store`: what it lists of a folder of real runs, what it mends, what it leaves alone."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from backbones.runtime.files import scraps_in
from tests.processes import Command, wait_for
from tests.runs import steps
from transfer.doctor.__main__ import main
from transfer.doctor.store import ASIDE
from transfer.records.store import LOCK, RECORD, STATE, Store
from transfer.run import main as run

REID = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0", "--checkpoint-seconds", "0"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run and an interrupted one."""
    out = tmp_path_factory.mktemp("whole") / "runs"
    command = Command("transfer.run", [*REID, "--epochs", "1000", "--out", str(out)], out.parent / "log")
    wait_for(lambda: steps(out) >= 2)
    command.kill(signal.SIGKILL)
    for scrap in scraps_in(interrupted(out)):  # of a state that was being written
        scrap.unlink()
    assert run([*REID, "--epochs", "1", "--out", str(out)]) == 0
    return out


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "runs")


def store(out: Path, *words: str) -> int:
    return main(["store", str(out), *words])


def finished(out: Path) -> Path:
    return Store(out).runs()[0][0].folder


def interrupted(out: Path) -> Path:
    return Store(out).unfinished()[0].folder


def contents(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}


def test_runs_in_order_are_left_alone(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(interrupted(out))
    before = contents(out)
    assert store(out, "--repair") == 0
    assert capsys.readouterr().out == f"{out}: 1 finished runs\n"
    assert contents(out) == before


def test_a_run_that_can_go_on_is_listed_and_left(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(out)
    assert store(out, "--repair") == 1
    assert "interrupted: the same command goes on from its last saved state" in capsys.readouterr().out
    assert contents(out) == before


SCRAPS = (".record.json.77.tmp", ".export-a1b2c3d4.tmp/model.safetensors", ".export.77.old/config.json", ".probe.77")


def test_scraps_and_leftovers_are_deleted_when_asked(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(interrupted(out))
    before = contents(out)
    folder = finished(out)
    for name in (*SCRAPS, LOCK, STATE):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"half")
    (out / "empty-0123").mkdir()
    assert store(out) == 1
    listed = capsys.readouterr().out
    assert listed.count("--repair mends it") == len(SCRAPS) + 3
    assert "stale lock" in listed
    assert store(out, "--repair") == 0
    assert contents(out) == before
    assert not (out / "empty-0123").exists()
    assert store(out) == 0


def test_the_only_copy_of_a_folder_and_hidden_folders_of_the_user_are_no_scraps(tmp_path: Path) -> None:
    for name in (".export.77.old", ".vscode-settings", ".git", ".tmp", "a.77.tmp"):
        (tmp_path / name).mkdir()
    assert scraps_in(tmp_path) == []
    (tmp_path / "export").mkdir()
    assert scraps_in(tmp_path) == [tmp_path / ".export.77.old"]


@pytest.mark.parametrize("harm", ["record", "file", "cut", "export"])
def test_a_damaged_run_is_set_aside_and_made_anew(harm: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(interrupted(out))
    folder = finished(out)
    before = Store(out).runs()[0][0].record
    if harm == "record":
        (folder / RECORD).write_bytes((folder / RECORD).read_bytes()[:-9])
    elif harm == "cut":
        os.truncate(folder / "outcomes.npz", 7)
    else:
        (folder / {"file": "outcomes.npz", "export": "export/model.safetensors"}[harm]).unlink()
    assert store(out) == 1
    assert folder.exists()
    assert store(out, "--repair") == 0
    assert f"set aside in {out / ASIDE}" in capsys.readouterr().out
    assert (out / ASIDE / folder.name).is_dir()
    assert Store(out).runs() == ([], [])
    assert run([*REID, "--epochs", "1", "--out", str(out)]) == 0
    assert Store(out).runs()[0][0].record.scores == before.scores
    assert store(out) == 0


def test_a_run_without_a_state_is_set_aside_beside_an_earlier_one(out: Path) -> None:
    folder = interrupted(out)
    for state in folder.glob("state*"):
        state.unlink()
    (out / ASIDE / folder.name).mkdir(parents=True)
    assert store(out, "--repair") == 0
    assert (out / ASIDE / f"{folder.name}.2").is_dir()


def test_what_is_being_written_is_left_alone(out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (finished(out), interrupted(out)):
        shutil.rmtree(folder)
    command = Command("transfer.run", [*REID, "--epochs", "1000", "--out", str(out)], tmp_path / "log")
    wait_for(lambda: steps(out) >= 1)
    (out / ".probe.77").touch()  # of a command that begins just now
    try:
        assert store(out, "--repair") == 0
    finally:
        command.kill(signal.SIGKILL)
    assert capsys.readouterr().out == f"{out}: 0 finished runs, 1 under way\n"
    assert (interrupted(out) / STATE).exists()
    assert (out / ".probe.77").exists()
    hour_ago = time.time() - 4000
    os.utime(out / ".probe.77", (hour_ago, hour_ago))
    store(out, "--repair")
    assert not (out / ".probe.77").exists()


def test_weights_whose_record_is_elsewhere_are_listed_and_left(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(interrupted(out))
    shutil.copytree(finished(out) / "export", tmp_path / "weights" / "tiny")
    words = ["--weights", str(tmp_path / "weights"), "--repair"]
    assert store(out, *words) == 0
    shutil.rmtree(finished(out))
    assert store(out, *words) == 1
    assert "weights without a record" in capsys.readouterr().out
    assert (tmp_path / "weights" / "tiny").is_dir()


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert store(tmp_path / "nowhere") == 1
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["of a later version", "unreadable"])
def test_a_run_whose_record_may_be_whole_is_never_set_aside(
    fault: str, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished(out)
    record = run / RECORD
    if fault == "unreadable":
        record.unlink()
        record.symlink_to("/proc/self/mem")  # of which the first byte cannot be read, as on a failing disk
    else:
        record.write_bytes(record.read_bytes().replace(b'"schema": 2', b'"schema": 3', 1))
    assert store(out, "--repair") == 1
    assert run.is_dir()
    assert not (out / ASIDE).exists()
    printed = capsys.readouterr().out
    assert ("schema 3, but this version reads 2" if fault == "of a later version" else "cannot be read") in printed
