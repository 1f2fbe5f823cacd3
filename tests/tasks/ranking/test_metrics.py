"""Ranking and re-ranking."""

import itertools
import math
from math import comb

import numpy as np
import pytest
import torch

from tasks.ranking import distances, rank, rank_distances
from tasks.ranking.distances import Distances, blocks, distinct
from tasks.ranking.metrics import RANKING_ARRAYS, Ranking
from tasks.ranking.reranking import rerank
from tasks.ranking.ties import expected_ap, expected_inp
from tests.oracles.ranking import RANKS, junk, score_list
from tests.oracles.reranking import reranked


def labels(queries, gallery, *, identities, cameras, seed=0):
    """Query ids, gallery ids, query cameras, gallery cameras; some gallery images are distractors (id -1)."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(-1, identities, gallery)
    return rng.integers(0, identities, queries), ids, *(rng.integers(0, cameras, rows) for rows in (queries, gallery))


def features(queries, gallery, dim, seed=0, ids=None):
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((queries, dim)), rng.standard_normal((gallery, dim))
    if ids is not None:
        centres = rng.standard_normal((100, dim))
        arrays = tuple(array + centres[some] for array, some in zip(arrays, ids))
    return tuple(array.astype(np.float32) for array in arrays)


def squared(query, gallery):
    """In float64, one query at a time."""
    exact = gallery.astype(np.float64)
    return np.stack([((row.astype(np.float64) - exact) ** 2).sum(1) for row in query])


def assert_same(left, right):
    for name in RANKING_ARRAYS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    assert left.scores() == right.scores()
    np.testing.assert_array_equal(left.cmc, right.cmc)


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
@pytest.mark.parametrize(
    ("queries", "gallery", "dim", "identities", "cameras"),
    [(1, 3, 4, 1, 9), (80, 40, 16, 30, 3), (70, 2000, 8, 2, 2), (60, 400, 0, 90, 3)],
)
def test_scores_follow_their_definitions(queries, gallery, dim, identities, cameras, rule):
    """In float64, as the oracle, so that the same neighbours are nearer; with `dim` 0 they tie often."""
    names = labels(queries, gallery, identities=identities, cameras=cameras)
    drawn = features(queries, gallery, dim, ids=names[:2]) if dim else tied_features(queries, gallery)
    query, images = (part.astype(np.float64) for part in drawn)
    found = rank(query, images, *names, ap=rule)
    lists = []
    for row, query_id, camera in zip(squared(query, images), names[0], names[2]):
        kept = ~junk(query_id, camera, names[1], names[3])
        lists.append(score_list(row[kept], names[1][kept] == query_id, rule))
    assert found.valid.tolist() == [one is not None for one in lists]
    assert np.isnan(found.ap[~found.valid]).all()
    expected = np.array([(one.ap, one.inp, *one.cmc) for one in lists if one])
    ours = np.column_stack([found.ap, found.inp, found.cmc_of_queries[:, np.array(RANKS) - 1]])
    np.testing.assert_allclose(ours[found.valid], expected, atol=1e-12)
    summary = dict(zip(("mAP", "mINP", *(f"rank{place}" for place in RANKS)), expected.mean(0)))
    assert found.scores() == pytest.approx(summary, abs=1e-12)


def in_order(match, rule):
    """AP, mINP and CMC of a list without ties."""
    hits = np.flatnonzero(match) + 1
    precisions = np.arange(1, len(hits) + 1) / hits
    if rule == "trapezoid":
        before = [found / (place - 1) if place > 1 else 1.0 for found, place in enumerate(hits)]
        precisions = (precisions + before) / 2
    return precisions.mean(), len(hits) / hits[-1], *(float(hits[0] <= place) for place in RANKS)


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
@pytest.mark.parametrize("seed", range(4))
def test_ties_score_the_mean_over_all_their_orders(seed, rule):
    """Ours, and the oracle's."""
    random = np.random.default_rng(seed)
    distances, match = random.integers(0, 3, 7).astype(float), random.random(7) < 0.4
    match[0] = True
    orders = [order for order in itertools.permutations(range(7)) if (np.diff(distances[list(order)]) >= 0).all()]
    expected = np.mean([in_order(match[list(order)], rule) for order in orders], axis=0)
    stated = score_list(distances, match, rule)
    np.testing.assert_allclose([stated.ap, stated.inp, *stated.cmc], expected, atol=1e-12)
    found = rank_distances(distances[None], [1], np.where(match, 1, 2), [0], [1] * 7, ap=rule)
    ours = [*found.ap, *found.inp, *found.cmc_of_queries[0, np.array(RANKS) - 1]]
    np.testing.assert_allclose(ours, expected, atol=1e-12)


def tied_features(queries=60, gallery=400):
    """Features of few small whole numbers: their distances are exact in float32, and tie often."""
    rng = np.random.default_rng(3)
    return tuple(rng.integers(0, 3, (rows, 4)).astype(np.float32) for rows in (queries, gallery))


@pytest.mark.parametrize("tied", [False, True])
def test_the_length_of_blocks_leaves_no_trace(monkeypatch, tied):
    names = labels(300, 400, identities=20, cameras=3)
    query, images = tied_features(300) if tied else features(300, 400, 64, ids=names[:2])
    found = rank(query, images, *names)
    for block_bytes in (1, 300_000, 700_000):
        monkeypatch.setattr("tasks.ranking.distances.BLOCK_BYTES", block_bytes)
        assert_same(rank(query, images, *names), found)


def test_scores_are_recomputed_to_the_bit_from_saved_outcomes(tmp_path):
    names = labels(60, 400, identities=90, cameras=3)
    found = rank(*tied_features(), *names, max_rank=30)
    np.savez(tmp_path / "outcomes.npz", sample=np.arange(60), **found.outcomes())
    with np.load(tmp_path / "outcomes.npz") as stored:
        again = Ranking.from_outcomes(dict(stored), max_rank=30)
    assert not found.valid.all()
    assert_same(again, found)
    assert again.degenerate == found.degenerate


def test_every_kind_of_input_scores_the_same():
    names = labels(30, 100, identities=6, cameras=3)
    query, images = tied_features(30, 100)
    found = rank(query, images, *names)
    assert_same(rank(torch.from_numpy(query), torch.from_numpy(images), *map(torch.from_numpy, names)), found)
    words = [part.astype(str).tolist() for part in names]
    images.setflags(write=False)
    assert_same(rank(query.astype(np.float64), images.astype(np.float16), *words), found)
    assert_same(rank(np.asfortranarray(query), images, *(part.tolist() for part in names)), found)


def nearly_parallel(cosine, ids, dim=192, seed=0):
    """Normalised float32 features of about this cosine with each other, nearer within an identity."""
    rng = np.random.default_rng(seed)
    common, centres = rng.standard_normal(dim), rng.standard_normal((100, dim))
    found = []
    for some in ids:
        own = (centres[some] + 1.5 * rng.standard_normal((len(some), dim))) / 1.8
        rows = common + np.sqrt(1 - cosine) * own
        found.append((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))
    return found


@pytest.mark.parametrize("lost", [1e-3, 1e-7])
def test_nearly_parallel_features_rank_as_in_float64(lost):
    names = labels(294, 886, identities=99, cameras=4)
    query, gallery = nearly_parallel(1 - lost, names[:2])
    gallery[100:110] = gallery[:10]  # copies, which tie with what they are copies of
    found, exact = rank(query, gallery, *names), rank_distances(squared(query, gallery), *names)
    np.testing.assert_allclose(found.ap, exact.ap, atol=1e-12)
    np.testing.assert_array_equal(found.tied, exact.tied)
    assert found.scores() == pytest.approx(exact.scores(), abs=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query_ids": [1, 2, 3]}, "query_ids must be 2 integers or strings"),
        ({"query_ids": ["1", "2"]}, "both be integers or both be strings"),
        ({"query_ids": [8, 9]}, "no query has a match"),
        ({"max_rank": 0}, "max_rank must be at least 1"),
        ({"ap": "triangle"}, "ap must be one of rectangle, trapezoid"),
        ({"gallery": np.zeros((4, 3), dtype=np.int64)}, "gallery features .*(floating|float16)"),
        ({"gallery": torch.zeros(4, 3, dtype=torch.int32)}, r"gallery features .*floating-point, not torch\.int32"),
        ({"gallery": np.zeros(3)}, r"gallery features .*not of shape \[3\]"),
        ({"gallery": torch.zeros(0, 3)}, r"gallery features .*not of shape \[0, 3\]"),
        ({"query": np.full((2, 3), np.nan)}, "query features .*nan"),
        ({"gallery": torch.full((4, 3), -torch.inf)}, "gallery features .*infinity"),
        ({"query": torch.full((2, 3), 1e160, dtype=torch.float64)}, "squared distances of the features overflow"),
    ],
)
def test_wrong_inputs_are_named(change, words):
    fitting = {"query": np.zeros((2, 3)), "query_ids": [1, 2], "query_cameras": [0, 0]}
    fitting |= {"gallery": np.ones((4, 3)), "gallery_ids": [1, 2, 1, 2], "gallery_cameras": [1] * 4}
    assert rank(**fitting).degenerate
    with pytest.raises(ValueError, match=words):
        rank(**fitting | change)


@pytest.mark.filterwarnings("ignore")
def test_torchreid_gives_the_same_scores():
    reference = pytest.importorskip("torchreid.reid.metrics.rank")
    names = labels(120, 800, identities=30, cameras=4)
    query, images = features(120, 800, 32, ids=names[:2])
    distances = squared(query, images)
    cmc, mean_ap = reference.eval_market1501(distances, *names, max_rank=50)
    for found in (rank(query, images, *names), rank_distances(distances, *names)):
        assert found.mAP == pytest.approx(mean_ap, abs=1e-12)
        np.testing.assert_allclose(found.cmc, cmc, atol=1e-7)  # torchreid's curve is float32


def plain_nearest(distances, names, k):
    """The first k columns of each list, equal distances in the gallery's order, -1 behind its end."""
    query_ids, gallery_ids, query_cameras, gallery_cameras = names
    found = []
    for row, query_id, camera in zip(distances, query_ids, query_cameras):
        kept = np.flatnonzero(~junk(query_id, camera, gallery_ids, gallery_cameras))
        ranked = kept[np.argsort(row[kept], kind="stable")][:k].tolist()
        found.append(ranked + [-1] * (min(k, len(gallery_ids)) - len(ranked)))
    return np.array(found)


@pytest.mark.parametrize("levels", [1, 3, 1000])
@pytest.mark.parametrize(("gallery", "keep"), [(40, 10), (6, 10), (40, 1)])
def test_the_first_places_of_each_list_with_equal_distances_in_the_gallerys_order(levels, gallery, keep):
    names = labels(60, gallery, identities=3, cameras=2, seed=levels)
    distances = np.random.default_rng(levels).integers(0, levels, (60, gallery)).astype(np.float32)
    found = rank_distances(distances, *names, keep=keep)
    nearest = plain_nearest(distances, names, keep)
    np.testing.assert_array_equal(found.nearest, nearest)
    expected = np.where(nearest < 0, np.nan, np.take_along_axis(distances, nearest, 1))
    np.testing.assert_allclose(found.nearest_distances, expected)
    assert "nearest_distances" not in found.outcomes()
    assert_same(found, rank_distances(distances, *names))
    assert rank_distances(distances, *names).nearest is None


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


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
def test_a_single_match_scores_its_precision_exactly(rule):
    b = np.arange(1, 90_000, 7)
    one, m = np.ones_like(b), b // 3
    expected = (m + 1) / (b + 1)
    if rule == "trapezoid":
        expected = (expected + m / b) / 2
    np.testing.assert_array_equal(expected_ap(b, one, m, one, rule=rule), expected)


def test_two_tied_matches_far_down_lose_no_digits():
    b, m = 82_000, 25
    share = expected_ap(np.array([b]), np.array([2]), np.array([m]), np.array([2]))
    assert share[0] == pytest.approx((26 / 82_001 + 27 / 82_002) / 2, rel=1e-9)


def test_a_tie_of_a_whole_large_gallery():
    n, k = 20_000, 17
    zero, tied, hits = (np.array([value]) for value in (0, n, k))
    inp = math.fsum(comb(x - 1, k - 1) / comb(n, k) * k / x for x in range(k, n + 1))
    assert expected_inp(zero, tied, hits, hits)[0] == pytest.approx(inp, rel=1e-12)
    share = expected_ap(zero, tied, zero, hits)
    assert share[0] == pytest.approx(np.mean([(1 + u * (k - 1) / (n - 1)) / (1 + u) for u in range(n)]), rel=1e-12)


def in_clusters(queries, gallery, dim=32, identities=12, seed=0):
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
    query, images = in_clusters(queries, gallery)
    found = rerank(query, images, k1=k1, k2=k2, lambda_value=lambda_value)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, reranked(query, images, k1=k1, k2=k2, weight=lambda_value), atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("k1", "k2", "lambda_value"), SETTINGS[:2])
def test_torchreid_gives_the_same_distances(k1, k2, lambda_value):
    reference = pytest.importorskip("torchreid.reid.utils.rerank")
    query, images = (torch.from_numpy(rows) for rows in in_clusters(50, 250, seed=1))
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


def test_the_length_of_blocks_leaves_no_trace_in_reranking(monkeypatch):
    given = in_clusters(70, 200)
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
def test_wrong_inputs_of_reranking_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        rerank(**{"query": np.ones((2, 3)), "gallery": np.ones((5, 3))} | arguments)
