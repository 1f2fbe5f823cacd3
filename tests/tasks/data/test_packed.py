import numpy as np

from tasks.data.packed import Packed

VALUES = [None, [[1.5, 2, 3.25, 4]], {"size": [3, 4], "counts": "x\\ü"}, [], [[0.1, 1e-9], [7]]]


def test_values_come_back_as_they_were() -> None:
    packed = Packed(VALUES)
    assert list(packed) == VALUES
    assert [packed[index] for index in range(-5, 0)] == VALUES
    assert len(Packed([])) == 0
    assert list(Packed([])) == []


def test_parts_share_the_memory() -> None:
    packed = Packed(VALUES)
    chosen = packed.select(np.array([4, 0, 2]))
    assert list(chosen) == [VALUES[4], VALUES[0], VALUES[2]]
    assert list(chosen.select(np.array([1]))) == [None]
    assert list(packed[1:3]) == VALUES[1:3]
    assert np.shares_memory(chosen._buffer, packed._buffer)
