from pathlib import Path

import numpy as np
import pytest

from tasks.fewshot.feature_store import DamagedShard, Entry, key_digest, read_shard
from transfer.core.errors import UserError

KEY = {"backbone": "b", "features": {"size": 32}, "precision": "fp32", "images": "i", "code": "c"}


def opened(store: Path, key: dict = KEY) -> Entry:
    return Entry.open(store, key, {"backbone": "tiny", "images": "toy train", "rows": 20})


def values(rows) -> np.ndarray:
    return np.stack([np.asarray(rows), -np.asarray(rows)], axis=1).astype(np.float32)


def filled(store: Path) -> Entry:
    """Rows 0 to 9 and 14 to 19 in two shards."""
    entry = opened(store)
    for rows in (np.arange(10), np.arange(14, 20)):
        entry.write(rows, values(rows), 1.0)
    assert entry.missing(np.arange(20)).tolist() == [10, 11, 12, 13]
    return entry


def test_rows_come_back_in_any_order_and_as_often_as_asked(tmp_path: Path) -> None:
    entry = filled(tmp_path)
    rows = np.array([15, 3, 3, 0, 19, 9, 14])
    found = entry.read(rows)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values(rows))
    np.testing.assert_array_equal(opened_again(tmp_path).read(rows), values(rows))


def opened_again(store: Path) -> Entry:
    entry = opened(store)
    entry.missing(np.arange(20))
    return entry


@pytest.mark.parametrize("name", list(KEY))
def test_every_part_of_the_key_counts(tmp_path: Path, name: str) -> None:
    filled(tmp_path)
    assert key_digest(KEY) == key_digest(dict(reversed(KEY.items())))
    other = opened(tmp_path, {**KEY, name: "other"})
    assert len(other.missing(np.arange(20))) == 20


@pytest.mark.parametrize("place", ["first", "rows", "features", "last"])
def test_a_flipped_bit_is_found_and_costs_its_shard_alone(tmp_path: Path, place: str, capsys) -> None:
    entry = filled(tmp_path)
    path = min(entry.shards)
    content = bytearray(path.read_bytes())
    start = len(content) - 10 * 16  # 10 rows: 8 bytes of two features, 8 bytes of the number
    offset = {"first": 3, "rows": start, "features": start + 85, "last": len(content) - 1}[place]
    content[offset] ^= 4
    path.write_bytes(content)
    with pytest.raises(DamagedShard):
        read_shard(path)
    entry = opened_again(tmp_path)
    if path in entry.shards:  # what is damaged lies behind the row numbers
        assert entry.read(np.arange(3)) is None
    assert not path.exists()
    assert set(range(10)) <= set(entry.missing(np.arange(20)).tolist())
    np.testing.assert_array_equal(entry.read(np.arange(14, 20)), values(np.arange(14, 20)))
    assert f"{path}: damaged" in capsys.readouterr().err


def test_a_full_disk_names_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = filled(tmp_path)

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"No space left on device.*with --feature-cache"):
        entry.write(np.arange(10, 14), values(np.arange(10, 14)), 1.0)
    assert not list(entry.folder.glob(".*.tmp"))


def test_rows_took_their_share_of_their_shards(tmp_path: Path) -> None:
    entry = opened(tmp_path)
    for rows, seconds in ((np.arange(10), 5.0), (np.arange(14, 20), 6.0)):
        entry.write(rows, values(rows), seconds)
    first = min(entry.made)
    entry = opened_again(tmp_path)
    assert entry.extraction_seconds(np.array([0, 3, 15])) == 2
    assert entry.extraction_seconds(np.array([0, 3, 15]), exclude=[first]) == 1
