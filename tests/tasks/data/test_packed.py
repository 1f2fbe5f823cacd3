import numpy as np

from tasks.data.packed import Packed

VALUES = [None, [[1.5, 2, 3.25, 4]], {"size": [3, 4], "counts": "x\\ü"}, [], [[0.1, 1e-9], [7]]]


def test_values_come_back_as_they_were() -> None:
    packed = Packed(VALUES)
    assert list(packed) == VALUES
    assert [packed[index] for index in range(-5, 0)] == VALUES
    assert packed[1:3] == VALUES[1:3]
    assert len(Packed([])) == 0
    assert list(Packed([])) == []


def test_arrays_hold_everything() -> None:
    packed = Packed(VALUES)
    arrays = packed.arrays()
    again = Packed.from_arrays(arrays["text"], arrays["ends"])
    assert list(again) == VALUES
    assert np.shares_memory(again.arrays()["text"], arrays["text"])
