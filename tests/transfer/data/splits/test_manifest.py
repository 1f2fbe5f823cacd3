"""The files of a dataset: each is read once, and one that has changed since is named when a run ends."""

import hashlib
import os
from pathlib import Path

import pytest

from transfer.core import cache
from transfer.core.errors import Replaced, UserError
from transfer.data.splits import manifest
from transfer.data.splits.manifest import Manifest, named_files

NAMES = ["cat/0.jpg", "cat/1.jpg", "list.txt"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "SETTLED", -3600.0)  # as if the files were an hour old
    (tmp_path / "set" / "cat").mkdir(parents=True)
    for name in NAMES:
        (tmp_path / "set" / name).write_bytes(name.encode() * 50)
    return tmp_path / "set"


def told(folder, names=NAMES):
    return [digest.tobytes().hex() for digest in Manifest.of(folder, names, what="mine").contents]


def true(folder, names=NAMES):
    return [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]


def overwrite(path, content, *, in_place):
    """Write another file with the same time, as an archive does."""
    state = path.stat()
    written = path if in_place else path.with_suffix(".new")
    written.write_bytes(content)
    os.utime(written, ns=(state.st_atime_ns, state.st_mtime_ns))
    written.replace(path)


def test_each_file_is_read_once(folder, monkeypatch):
    read, plain = [], manifest._digest
    monkeypatch.setattr(manifest, "_digest", lambda path: read.append(Path(path).name) or plain(path))
    told(folder, NAMES[:1])
    assert told(folder) == told(folder) == true(folder)
    assert sorted(read) == ["0.jpg", "1.jpg", "list.txt"]
    some = [NAMES[2], NAMES[0]]
    assert told(folder, some) == true(folder, some)
    (folder / "new").write_bytes(b"new")
    assert told(folder, [*NAMES, "new"]) == true(folder, [*NAMES, "new"])
    assert read[3:] == ["new"]
    assert Manifest.of(folder, [], what="mine").contents.shape == (0, 32)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_of_equal_size_and_time_in_the_place_of_another_is_seen(folder, in_place):
    known = Manifest.of(folder, NAMES, what="mine")
    known.check()
    path = folder / NAMES[1]
    overwrite(path, bytes(reversed(path.read_bytes())), in_place=in_place)
    known.check([0, 2])
    with pytest.raises(Replaced, match=r"cat/1.jpg: modified while the command was running"):
        known.check()
    assert told(folder) == true(folder)
    path.unlink()
    with pytest.raises(Replaced, match=r"cat/1.jpg"):
        known.check([1])
    with pytest.raises(UserError, match=r"cat/1\.jpg: cannot be opened: No such file"):
        told(folder)


def test_a_file_that_was_copied_over_itself_has_not_changed(folder):
    known = Manifest.of(folder, NAMES, what="mine")
    path = folder / NAMES[1]
    overwrite(path, path.read_bytes(), in_place=False)
    path.chmod(0o600)
    os.utime(path)
    known.check()


def test_files_that_an_option_names_are_those_of_the_first_call(folder):
    named_files.cache_clear()
    first = named_files(folder)
    assert list(first.names) == sorted(NAMES)
    (folder / NAMES[0]).write_bytes(b"other")
    assert named_files(folder) is first
    with pytest.raises(Replaced, match=r"cat/0.jpg"):
        first.check()
