"""`python -m transfer.doctor store`: what it lists of a folder of real runs, what it mends, what it leaves alone."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backbones.errors import UserError
from backbones.runtime.files import scraps_in
from tests.processes import Command, wait_for
from tests.runs import steps
from transfer.doctor.__main__ import main
from transfer.doctor.store import ASIDE, findings_in, set_aside
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
    empty = out / "knn-toy_digits-tiny-0123456789ab"
    empty.mkdir()
    assert store(out) == 1
    listed = capsys.readouterr().out
    assert listed.count("--repair mends it") == len(SCRAPS) + 3
    assert "stale lock" in listed
    assert store(out, "--repair") == 0
    assert contents(out) == before
    assert not empty.exists()
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


def test_what_this_suite_has_not_written_is_left_alone(tmp_path: Path) -> None:
    """A folder that is no store: whatever it holds is the user's, of any age."""
    for name in ("empty/", "thesis/options.yaml", "thesis/thesis.tex", "thesis/error.txt", "a/b/.x.tmp", ".notes.tmp"):
        path = tmp_path / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text("mine")
            os.utime(path, (1e9, 1e9))
    (tmp_path / "a" / ".b.77.tmp").touch()
    os.utime(tmp_path / "a" / ".b.77.tmp", (1e9, 1e9))
    before = sorted(tmp_path.rglob("*"))
    assert store(tmp_path, "--repair") == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_begins_after_it_was_found_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "knn-toy_digits-tiny-0123456789ab"
    folder.mkdir()
    (folder / "options.yaml").touch()
    (finding,) = findings_in(Store(tmp_path))
    code = f"""
import time
from pathlib import Path
from transfer.records.store import Store
with Store(Path({str(tmp_path)!r})).lock({folder.name!r}, lambda: None):
    print("locked", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        assert finding.repair is not None
        with pytest.raises(UserError, match="a run has begun in it"):
            finding.repair()
        process.kill()
    assert folder.is_dir()
    finding.repair()
    assert not folder.exists()
    assert (tmp_path / ASIDE / folder.name / "options.yaml").exists()


def test_a_run_that_waits_for_the_lock_of_a_repair_begins_in_a_folder_of_its_own(tmp_path: Path) -> None:
    runs = Store(tmp_path)
    folder = tmp_path / "knn-toy_digits-tiny-0123456789ab"
    folder.mkdir()
    (folder / LOCK).touch()
    code = f"import fcntl; f = open({str(folder / LOCK)!r}, 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True)"
    code += "; input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as repair:
        assert repair.stdout is not None
        repair.stdout.readline()

        def move_and_end() -> None:
            set_aside(folder)
            repair.communicate(b"\n")

        with runs.lock(folder.name, move_and_end) as held:
            assert (held / LOCK).exists()


@pytest.mark.parametrize("place", ["export", "."])
def test_files_that_cannot_be_looked_at_are_not_missing(
    place: str, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a folder of another user, or of mode 000; this test may run as a user to whom modes mean nothing."""
    shutil.rmtree(interrupted(out))
    forbidden = (finished(out) / place / "x").parent
    real = Path.stat

    def stat(path: Path, **words: bool) -> os.stat_result:
        if path.parent == forbidden and path.name not in (LOCK, RECORD, STATE, "state.previous.pt", "error.txt"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **words)

    monkeypatch.setattr(Path, "stat", stat)
    assert store(out, "--repair") == 1
    assert "cannot be read (Permission denied)" in capsys.readouterr().out
    assert not (out / ASIDE).exists()


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
        record.write_bytes(record.read_bytes().replace(b'"schema": 1', b'"schema": 3', 1))
    assert store(out, "--repair") == 1
    assert run.is_dir()
    assert not (out / ASIDE).exists()
    printed = capsys.readouterr().out
    assert ("schema 3, but this version reads 1" if fault == "of a later version" else "cannot be read") in printed
