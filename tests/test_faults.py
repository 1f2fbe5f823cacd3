"""The campaign of faults itself: it counts harm, names what repeats it, and finds a reader that checks nothing."""

import csv
import hashlib
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import __main__ as faults
from tests.faults.damaged.data import Found
from tests.faults.damaged.files import DamagedFiles, Target
from tests.faults.damaged.mutations import mutated
from tests.faults.damaged.written_files import SWEEPS, plan_sweep
from tests.faults.hostile import refused
from tests.faults.trial import NotHeldError, NotReachedError
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


def test_harm_is_counted_and_repeated_by_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(faults.KINDS, "bytes", SometimesHarmful)
    assert faults.main(["bytes", "--seconds", "0.3"]) == 1
    *failures, summary = capsys.readouterr().out.splitlines()
    command = failures[1].split("tests.faults ")[1].split()
    assert summary.startswith("bytes: ")
    assert f"{len(failures) // 2} failed (refused " in summary
    assert faults.main(command) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "bytes: 1 tried, 0 held, 1 failed ()"


def test_a_bug_of_a_trial_is_counted_and_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(SometimesHarmful):
        def trial(self, rng: random.Random, folder: Path) -> str:
            raise OSError("no such mount")

    monkeypatch.setitem(faults.KINDS, "bytes", Broken)
    monkeypatch.setitem(faults.KINDS, "disk", SometimesHarmful)
    assert faults.main(["bytes", "disk", "--seconds", "0"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  no such mount" in printed
    assert "bytes: 1 tried, 0 held, 1 failed" in printed
    assert "disk: 1 tried" in printed


def test_a_fault_that_did_not_come_about_is_not_counted_as_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Missed(SometimesHarmful):
        def trial(self, rng: random.Random, folder: Path) -> str:
            raise NotReachedError("ENOSPC of write")

    monkeypatch.setitem(faults.KINDS, "disk", Missed)
    assert faults.main(["disk", "--seconds", "0"]) == 0
    assert capsys.readouterr().out == "disk: 0 tried, 0 held, 0 failed (not reached 1)\n"


def test_every_mutation_changes_something() -> None:
    rng = random.Random(0)
    for content in (b"x", b"\0" * 3, bytes(range(256)) * 40):
        assert all(mutated(content, rng) != content for _ in range(200))


def test_a_reader_that_checks_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "tensor").write_bytes(bytes(1000))

    def digest(folder: Path) -> str:
        return hashlib.sha256((folder / "tensor").read_bytes()).hexdigest()

    kind = DamagedFiles(tmp_path, [Target("weights", tmp_path / "whole", ("tensor",), digest)])
    with pytest.raises(NotHeldError, match=r"weights \(tensor\): another result in silence"):
        kind.trial(random.Random(0), tmp_path)


@pytest.mark.parametrize("covered", [True, False])
def test_other_values_need_another_digest(covered: bool, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "labels").write_bytes(bytes(1000))

    def read(folder: Path) -> Found:
        content = (folder / "labels").read_bytes()
        return Found([content], hashlib.sha256(content).hexdigest() if covered else "the same")

    kind = DamagedFiles(tmp_path, [Target("set", tmp_path / "whole", ("labels",), read)])
    if covered:
        assert kind.trial(random.Random(0), tmp_path) == "set: another data set"
    else:
        with pytest.raises(NotHeldError, match="another result in silence"):
            kind.trial(random.Random(0), tmp_path)


def test_a_reader_that_fails_with_a_traceback_is_found(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "text").write_bytes(b"12345678")
    kind = DamagedFiles(
        tmp_path,
        [Target("number", tmp_path / "whole", ("text",), lambda folder: str(int((folder / "text").read_bytes(), 9)))],
    )
    with pytest.raises(NotHeldError, match="number"):
        kind.trial(random.Random(0), tmp_path)


def test_unknown_kinds_and_repetition_of_several_are_refused() -> None:
    with pytest.raises(Exception, match="there is no kind 'byte'"):
        faults.FaultOptions(kinds=("byte",))
    with pytest.raises(Exception, match="--only repeats a trial of one kind"):
        faults.FaultOptions(only=3)


@pytest.mark.parametrize(("read", "harm"), [(dict, "x: taken"), (lambda: 1 / 0, "x: a traceback: ZeroDivisionError")])
def test_a_hostile_file_that_is_taken_or_ends_in_a_traceback_is_found(read: Callable[[], object], harm: str) -> None:
    with pytest.raises(NotHeldError, match=harm):
        refused("x", read)


def test_a_disk_that_is_full_read_only_and_gone(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "disk", 0.1) as disk:
        (disk.seen / "kept").write_bytes(b"kept")
        assert not (tmp_path / "disk" / "kept").exists()
        with pytest.raises(OSError, match="No space left"):
            (disk.seen / "large").write_bytes(bytes(2**20))
        disk.set("size 10")
        (disk.seen / "large").write_bytes(bytes(2**20))
        disk.set("read-only")
        with pytest.raises(OSError, match="Read-only"):
            (disk.seen / "more").touch()
        disk.set("writable")
        disk.set("gone")
        assert not (disk.seen / "kept").exists()
        disk.set("back")
        assert (disk.seen / "kept").read_bytes() == b"kept"


def test_a_disk_of_nothing_can_grow(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "disk", 0.0001) as disk:
        with pytest.raises(OSError, match="No space left"):
            (disk.seen / "large").write_bytes(bytes(2**20))
        disk.set("size 10")
        (disk.seen / "large").write_bytes(bytes(2**20))


def test_the_guide_quotes_the_campaign() -> None:
    """Its table is the sum over the seeds that it names."""
    text = (faults.TABLE.parents[2] / "docs" / "trust.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"seeds ([\d, and]+) of", text)
    seeds = re.findall(r"\d+", named)
    with faults.TABLE.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] in seeds]
    quoted = {kind: (tried, held) for kind, tried, held in re.findall(r"\| `(\w+)` \| ([\d,]+) \| ([\d,]+) \|", text)}
    assert quoted == {
        kind: tuple(f"{sum(int(row[name]) for row in rows if row['kind'] == kind):,}" for name in ("tried", "held"))
        for kind in faults.KINDS
    }


@pytest.mark.parametrize("name", SWEEPS)
def test_the_sweeps_that_are_damaged_are_planned_while_they_are_whole(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(SWEEPS[name], encoding="utf-8")
    plan_sweep(tmp_path / name)
