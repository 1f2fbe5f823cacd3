import numpy as np

from tasks.data.coco_split import Segmentations

VALUES = [
    None,
    [[1.5, 2, 3.25, 4, 0.1, 7]],
    {"size": [3, 4], "counts": [12]},
    [[1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4, 3, 2]],
    None,
    {"size": [3, 4], "counts": "<0"},
    [[0.1, 1e-9, 1e300, 2**52 + 1, 5, 6]],
]


def test_values_come_back_as_they_were() -> None:
    segmentations = Segmentations.collect(VALUES)
    assert list(segmentations) == VALUES
    assert segmentations.present.tolist() == [value is not None for value in VALUES]
    assert list(Segmentations.collect([])) == []
    assert list(Segmentations.collect([[], None])) == [None, None]


def test_parts_share_the_coordinates() -> None:
    segmentations = Segmentations.collect(VALUES)
    chosen = segmentations.select(np.array([6, 0, 2, 3]))
    assert list(chosen) == [VALUES[row] for row in (6, 0, 2, 3)]
    assert list(chosen.select(np.array([3]))) == [VALUES[3]]
    assert np.shares_memory(chosen.coordinates, segmentations.coordinates)


def test_arrays_hold_everything() -> None:
    assert list(Segmentations.from_arrays(Segmentations.collect(VALUES).arrays())) == VALUES
