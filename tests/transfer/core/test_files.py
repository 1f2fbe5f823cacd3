import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from transfer.core.errors import UserError
from transfer.core.files import (
    atomic_replacement,
    folder_replacement,
    numbered_lines,
    read_lines,
    write_arrays,
    write_atomic,
)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The kernel refuses to write files beyond `size` bytes, as a full disk would."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \t\n", "\n\n"])
def test_lines_as_windows_saves_them(tmp_path: Path, encoding: str, end: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "list.txt").write_bytes((mark + end.join(["pic 0", " caf\u00e9", ""]) + end).encode(encoding))
    assert read_lines(tmp_path / "list.txt") == ["pic 0", " caf\u00e9"]
    assert [*numbered_lines(tmp_path / "list.txt")] == [1, 3 if end == "\n\n" else 2]
    with pytest.raises(UserError, match=r"nothing\.txt: cannot be read as a list"):
        read_lines(tmp_path / "nothing.txt")


def test_a_failed_write_leaves_the_old_file_and_no_scraps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one")
    with pytest.raises(KeyboardInterrupt), atomic_replacement(path) as temporary:
        raise KeyboardInterrupt(temporary.write_bytes(b"half"))
    with files_of_at_most(100), pytest.raises(UserError, match=r"file: cannot be written .*free some space"):
        write_atomic(path, bytes(1000))
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for number in ("0", "1"):
        with folder_replacement(target) as new:
            (new / number).touch()
        assert [path.name for path in target.iterdir()] == [number]
        assert [*tmp_path.iterdir()] == [target]


def test_arrays_are_whole_or_absent_and_never_pickled(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    write_arrays(path, {"names": np.array(["a", "bc"]), "numbers": np.arange(3)})
    with np.load(path, allow_pickle=False) as file:
        assert sorted(file) == ["names", "numbers"]
        assert file["names"].tolist() == ["a", "bc"]
    before = path.read_bytes()
    with pytest.raises(TypeError, match=r"arrays\.npz: things is an array of Python objects"):
        write_arrays(path, {"things": np.array([{}])})
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
