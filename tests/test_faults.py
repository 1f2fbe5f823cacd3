"""The campaign of faults itself: it counts harm, names what repeats it, and finds a reader that checks nothing."""

import hashlib
import random
from pathlib import Path

import pytest

from tests.faults import __main__ as faults
from tests.faults.damaged import DamagedFiles, Target
from tests.faults.data import Found
from tests.faults.mutations import mutated
from tests.faults.trial import NotHeldError
from tests.support import disk_or_skip


class SometimesHarmful:
    """Half of its trials do harm, which the trial's random numbers decide."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def trial(self, rng: random.Random, folder: Path) -> str:
        assert folder.is_dir()
        if rng.random() < 0.5:
            raise NotHeldError("another result in silence")
        return "refused"


class Broken(SometimesHarmful):
    def trial(self, rng: random.Random, folder: Path) -> str:
        raise OSError("no such mount")


def test_harm_is_counted_and_repeated_by_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(faults.KINDS, "bytes", SometimesHarmful)
    monkeypatch.setitem(faults.KINDS, "disk", Broken)
    assert faults.main(["bytes", "--seconds", "0.3"]) == 1
    *failures, summary = capsys.readouterr().out.splitlines()
    assert f"{len(failures) // 2} failed (refused " in summary
    assert faults.main(failures[1].split("tests.faults ")[1].split()) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "bytes: 1 tried, 1 failed ()"
    assert faults.main(["disk", "bytes", "--seconds", "0"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  no such mount" in printed
    assert "bytes: 1 tried" in printed
    with pytest.raises(Exception, match="there is no kind 'byte'"):
        faults.FaultOptions(kinds=("byte",))


def test_every_mutation_changes_something() -> None:
    rng = random.Random(0)
    for content in (b"x", b"\0" * 3, bytes(range(256)) * 40):
        assert all(mutated(content, rng) != content for _ in range(200))


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "file").read_bytes()).hexdigest()


def test_another_result_in_silence_is_found(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "file").write_bytes(bytes(1000))
    told = Target("told", tmp_path / "whole", ("file",), lambda folder: Found([], digest(folder)))
    assert DamagedFiles(tmp_path, [told]).trial(random.Random(0), tmp_path / "a") == "told: another data set"
    for read in (digest, lambda folder: Found([digest(folder)], "the same")):
        kind = DamagedFiles(tmp_path, [Target("weights", tmp_path / "whole", ("file",), read)])
        with pytest.raises(NotHeldError, match=r"weights \(file\): another result in silence"):
            kind.trial(random.Random(0), tmp_path / read.__qualname__.replace("<", "").replace(">", ""))


def test_a_disk_that_is_full_and_read_only(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "disk", 0.1) as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk.seen / "large").write_bytes(bytes(2**20))
        disk.set("size 10")
        (disk.seen / "large").write_bytes(bytes(2**20))
        assert not (tmp_path / "disk" / "large").exists()
        disk.set("read-only")
        with pytest.raises(OSError, match="Read-only"):
            (disk.seen / "more").touch()


@pytest.mark.nightly
@pytest.mark.parametrize("kind", faults.KINDS)
def test_faults_of_each_kind_do_no_harm(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert faults.main([kind, "--seconds", "8", "--seed", "1"]) == 0, capsys.readouterr().out
