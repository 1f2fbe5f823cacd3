"""The digests of files: those of the bytes that are there, each read once."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from backbones.data.splits import contents
from backbones.data.splits.contents import file_contents
from backbones.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(contents, "SETTLED", -3600.0)  # as if the files were an hour old
    (tmp_path / "set" / "cat").mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "set" / name).write_bytes(name.encode() * 50)
    return tmp_path / "set"


NAMES = ["cat/0.jpg", "cat/1.jpg", "list.txt"]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read."""
    names: list[str] = []
    plain = contents._read

    def noted(path: str) -> bytes:
        names.append(Path(path).name)
        return plain(path)

    monkeypatch.setattr(contents, "_read", noted)
    return names


def told(folder: Path, names: list[str] = NAMES) -> list[str]:
    return [digest.tobytes().hex() for digest in file_contents(folder, names, what="mine")]


def true(folder: Path, names: list[str] = NAMES) -> list[str]:
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]


def test_each_file_is_read_once(folder: Path, read: list[str]) -> None:
    assert told(folder) == told(folder) == true(folder)
    assert sorted(read) == ["0.jpg", "1.jpg", "list.txt"]
    some = [NAMES[2], NAMES[0]]
    assert told(folder, some) == true(folder, some)
    (folder / "new").write_bytes(b"new")
    assert told(folder, [*NAMES, "new"]) == true(folder, [*NAMES, "new"])
    assert read[3:] == ["new"]


def test_a_part_first_and_then_all(folder: Path, read: list[str]) -> None:
    told(folder, NAMES[:1])
    assert told(folder) == true(folder)
    assert told(folder, NAMES[:1]) == true(folder, NAMES[:1])
    assert len(read) == 3


def test_a_file_of_equal_size_and_time_in_the_place_of_another_is_seen(folder: Path, read: list[str]) -> None:
    """As an archive does that sets all times alike: written over it (same inode), or renamed onto it."""
    before = told(folder)
    for change, path in (("over", folder / NAMES[0]), ("renamed", folder / NAMES[1])):
        state = path.stat()
        target = path if change == "over" else path.with_name("other")
        target.write_bytes(bytes(reversed(path.read_bytes())))
        os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
        target.rename(path)
        assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    assert told(folder) == true(folder)
    assert [old == new for old, new in zip(before, told(folder))] == [False, False, True]
    assert len(read) == 5


def test_files_that_have_just_been_written_are_not_vouched_for(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "SETTLED", 2.0)
    told(folder)
    told(folder)
    assert len(read) == 6


def test_an_interrupted_reading_goes_on(folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "KEPT_EVERY", 1)
    (folder / NAMES[1]).rename(folder / "away")
    (folder / NAMES[1]).symlink_to("/proc/self/mem")  # opens, and gives an error when it is read
    with pytest.raises(UserError, match=r"cat/1\.jpg: "):
        told(folder)
    (folder / NAMES[1]).unlink()
    (folder / "away").rename(folder / NAMES[1])
    read.clear()
    assert told(folder) == true(folder)
    assert read == ["1.jpg", "list.txt"]


@pytest.mark.parametrize("damage", ["garbage", "cut", "flipped", "empty"])
def test_a_damaged_index_is_not_believed(
    folder: Path, read: list[str], damage: str, tmp_path: Path, private_cache: Path
) -> None:
    told(folder)
    (index,) = [file for file in (private_cache / "contents").iterdir() if not file.name.endswith(".lock")]
    whole = index.read_bytes()
    place = whole.index(hashlib.sha256((folder / NAMES[0]).read_bytes()).digest())
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    index.write_bytes({"garbage": b"x" * 500, "cut": whole[:-9], "flipped": flipped, "empty": b""}[damage])
    assert told(folder) == true(folder)
    assert len(read) == 6


def test_a_second_reader_waits_and_reads_nothing(
    folder: Path, read: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Locks belong to processes, so the first reader is one of its own."""
    ready, go = os.pipe(), os.pipe()
    if os.fork() == 0:
        with contents._alone(folder, "mine"):
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            for name in NAMES:
                contents._read(f"{folder}/{name}")
            stamps = contents._stamps(folder, NAMES)
            digests, known = contents._Kept.load(folder).find(NAMES, stamps)
            digests[:] = [list(bytes.fromhex(text)) for text in true(folder)]
            known[:] = True
            contents._Kept.load(folder).with_files(NAMES, stamps, digests, known).keep(folder)
        os._exit(0)
    os.read(ready[0], 1)
    threading.Timer(0.3, os.write, (go[1], b"x")).start()
    assert told(folder) == true(folder)
    os.wait()
    assert read == []
    assert "another process reads the files" in capsys.readouterr().err


def test_what_is_no_file_is_named(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(UserError, match="pipe: not a regular file"):
        told(folder, ["pipe"])
    with pytest.raises(UserError, match=r"gone\.jpg: cannot be opened: No such file"):
        told(folder, ["gone.jpg"])


def test_names_that_are_no_utf8(folder: Path, read: list[str]) -> None:
    name = os.fsdecode(b"\xff\xfe.jpg")
    (folder / name).write_bytes(b"1")
    assert told(folder, [name]) == told(folder, [name]) == true(folder, [name])
    assert len(read) == 1


def test_nothing_is_asked_of_an_empty_list(folder: Path) -> None:
    assert file_contents(folder, [], what="mine").shape == (0, 32)
