from pathlib import Path

import numpy as np
import pytest

from tasks.fewshot.features import EMPTY, Stored, locked_file, read_stored, write_stored
from transfer.core.errors import UserError

KEY = {"backbone": "b", "features": {"size": 32}, "precision": "fp32", "images": "i", "code": "c"}
ROWS = np.array([0, 3, 9])
CONTENT = Stored(ROWS, np.stack([ROWS, -ROWS], axis=1).astype(np.float32), np.array([1.0, 2.0, 3.0]))


def place(store: Path, key: dict = KEY) -> Path:
    with locked_file(store, key, lambda: None) as path:
        return path


def test_what_is_written_is_read_and_more_rows_are_merged(tmp_path: Path) -> None:
    path = place(tmp_path)
    assert read_stored(path) is EMPTY
    write_stored(path, CONTENT, {"backbone": "tiny"})
    more = Stored(np.array([1, 20]), np.ones((2, 2), np.float32), np.zeros(2))
    merged = read_stored(path).merged(more)
    assert merged.rows.tolist() == [0, 1, 3, 9, 20]
    assert merged.features.tolist() == [[0, 0], [1, 1], [3, -3], [9, -9], [1, 1]]
    assert merged.seconds.tolist() == [1, 0, 2, 3, 0]
    assert EMPTY.merged(CONTENT) is CONTENT


def test_every_part_of_the_key_counts(tmp_path: Path) -> None:
    assert place(tmp_path) == place(tmp_path, dict(reversed(KEY.items())))
    assert len({place(tmp_path, {**KEY, name: "other"}) for name in KEY} | {place(tmp_path)}) == 1 + len(KEY)


@pytest.mark.parametrize("offset", [3, -70, -10, -1])
def test_a_flipped_bit_is_found(tmp_path: Path, offset: int) -> None:
    path = place(tmp_path)
    write_stored(path, CONTENT, {})
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_stored(path)


def test_a_full_disk_names_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"No space left on device.*with --feature-cache"):
        write_stored(place(tmp_path), CONTENT, {})
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
