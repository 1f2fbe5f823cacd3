import warnings

import numpy as np
import pytest
import torch

from tasks.ranking.metrics import rank_distances
from tasks.ranking.reranking import rerank
from tests.oracles.reranking import reranked


def features(queries, gallery, dim=32, identities=12, seed=0):
    """float64, so that no two distances tie."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((identities, dim))
    return tuple(
        centres[rng.integers(0, identities, rows)] + rng.standard_normal((rows, dim)) for rows in (queries, gallery)
    )


SETTINGS = [(20, 6, 0.3), (7, 3, 0.0), (5, 1, 0.5), (3, 6, 1.0), (50, 15, 0.3)]


@pytest.mark.parametrize(("k1", "k2", "lambda_value"), SETTINGS)
@pytest.mark.parametrize(("queries", "gallery"), [(40, 100), (3, 9)])
def test_distances_follow_the_paper(queries, gallery, k1, k2, lambda_value):
    query, images = features(queries, gallery)
    found = rerank(query, images, k1=k1, k2=k2, lambda_value=lambda_value)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reranked(query, images, k1=k1, k2=k2, weight=lambda_value), atol=1e-6)


@pytest.mark.parametrize(("k1", "k2", "lambda_value"), SETTINGS[:2])
def test_torchreid_gives_the_same_distances(k1, k2, lambda_value):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = pytest.importorskip("torchreid.reid.utils.rerank")
    query, images = (torch.from_numpy(rows) for rows in features(50, 250, seed=1))
    # it squares the distances that it is given
    parts = [torch.cdist(one, other).numpy() for one, other in ((query, images), (query, query), (images, images))]
    expected = reference.re_ranking(*parts, k1=k1, k2=k2, lambda_value=lambda_value)
    found = rerank(query, images, k1=k1, k2=k2, lambda_value=lambda_value)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("spread", [1e-3, 1e-4])
def test_clusters_of_nearly_parallel_features_have_the_neighbourhoods_of_float64(spread):
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((3, 32)) / np.sqrt(32)
    rows = (centres[rng.integers(0, 3, 120)] + spread * rng.standard_normal((120, 32))).astype(np.float32)
    given = rows[:20], rows[20:]
    exact = (part.astype(np.float64) for part in given)
    np.testing.assert_allclose(rerank(*given, k1=8, k2=4), reranked(*exact, k1=8, k2=4, weight=0.3), atol=1e-5)


def test_the_length_of_blocks_leaves_no_trace(monkeypatch):
    given = features(70, 200)
    found = rerank(*given)
    for block_bytes in (1, 200_000):
        monkeypatch.setattr("tasks.ranking.distances.BLOCK_BYTES", block_bytes)
        np.testing.assert_array_equal(rerank(*given), found)


def test_equal_features_stay_degenerate():
    distances = rerank(np.ones((4, 3), dtype=np.float32), np.ones((30, 3), dtype=np.float32))
    assert rank_distances(distances, [0] * 4, [0, 1] * 15, [0] * 4, [1] * 30).degenerate


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"k1": 0}, "k1 and k2 must be at least 1"),
        ({"lambda_value": 1.5}, r"lambda_value in \[0, 1\]"),
        ({"query": np.ones((2, 4))}, "same channels"),
        ({"gallery": np.full((5, 3), np.nan)}, "gallery features hold nan"),
    ],
)
def test_wrong_inputs_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        rerank(**{"query": np.ones((2, 3)), "gallery": np.ones((5, 3))} | arguments)
