import numpy as np
import pytest
import torch

from tasks.ranking import distances
from tasks.ranking.distances import Distances, as_matrix, blocks, distinct


@pytest.mark.parametrize("copies", [5, 100])
def test_equal_gallery_features_tie_to_the_bit(copies):
    query, one = torch.randn(1000, 384), torch.randn(1, 384)
    found = Distances(query, one.repeat(copies, 1)).block(slice(0, 1000))
    assert torch.equal(found, found[:, :1].expand_as(found))


def test_distinct_tells_equal_rows():
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, -0.0], [2.0, 1e-30], [2.0, 0.0]])
    first, copies = distinct(rows)
    assert first.tolist() == [0, 1, 3]
    assert copies.tolist() == [0, 1, 0, 2, 1]


@pytest.mark.parametrize("rows", [1, 65, 3368])
@pytest.mark.parametrize("row_bytes", [1, 100_000, 10**9])
def test_blocks_cover_all_rows_and_are_never_short(rows, row_bytes):
    parts = blocks(rows, row_bytes, torch.device("cpu"))
    assert [index for part in parts for index in range(rows)[part]] == list(range(rows))
    assert min(part.stop - part.start for part in parts) >= min(rows, 32)
    assert max(part.stop - part.start for part in parts) <= max(distances.BLOCK_BYTES // row_bytes, 64)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 3), dtype=np.int64), "floating|float16"),
        (torch.zeros(2, 3, dtype=torch.int32), "floating-point, not torch.int32"),
        (np.zeros(3), r"not of shape \[3\]"),
        (torch.zeros(0, 3), r"not of shape \[0, 3\]"),
        (np.array([[1.0, np.nan]]), "nan"),
        (torch.tensor([[1.0, -torch.inf]]), "infinity"),
    ],
)
def test_wrong_matrices_are_named(values, words):
    with pytest.raises(ValueError, match=f"gallery features .*({words})"):
        as_matrix(values, "gallery features")


def test_overflow_and_unlike_shapes_are_refused():
    with pytest.raises(ValueError, match="squared distances of the features overflow"):
        Distances(torch.full((2, 4), 1e160, dtype=torch.float64), torch.ones(3, 4))
    with pytest.raises(ValueError, match="same channels"):
        Distances(torch.ones(2, 4), torch.ones(3, 5))
