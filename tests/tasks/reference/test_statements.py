"""The plain statements against definitions: orders of ties one by one, sums of images, gradients that vanish."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from tasks.reference.metrics.accuracy import top_k, top_k_bounds
from tasks.reference.metrics.detection import NAMES, box_iou, coco_numbers
from tasks.reference.metrics.knn import class_rank, similarities, votes
from tasks.reference.metrics.probes import logistic, ridge
from tasks.reference.metrics.ranking import RANKS, score_list
from tasks.reference.metrics.reranking import reranked
from tasks.reference.metrics.tokens import attention_facts, similarity, token_facts
from tests.test_imports import ROOT, imported, module_of

ROOM = Path("tasks/reference")
RANDOM = np.random.default_rng(0)
# What scores here, and must not be heard of there.
SCORES = {
    *("ranking", "ties", "matches", "distances", "reranking", "probes", "fewshot_probe", "draws", "diagnostics"),
    *("tokens_recorder", "neighbours", "accuracy", "coco_scores", "coco_matching", "coco_averages", "coco_tables"),
}


def in_order(match: np.ndarray, rule: str) -> tuple[float, ...]:
    """AP, mINP and CMC of a list without ties."""
    hits = np.flatnonzero(match) + 1
    precisions = np.arange(1, len(hits) + 1) / hits
    if rule == "trapezoid":
        before = [found / (rank - 1) if rank > 1 else 1.0 for found, rank in enumerate(hits)]
        precisions = (precisions + before) / 2
    return precisions.mean(), len(hits) / hits[-1], *(float(hits[0] <= rank) for rank in RANKS)


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
@pytest.mark.parametrize("seed", range(6))
def test_ties_score_the_mean_over_all_their_orders(seed: int, rule: str) -> None:
    random = np.random.default_rng(seed)
    distances, match = random.integers(0, 3, 7).astype(float), random.random(7) < 0.4
    match[0] = True
    orders = [order for order in itertools.permutations(range(7)) if (np.diff(distances[list(order)]) >= 0).all()]
    expected = np.mean([in_order(match[list(order)], rule) for order in orders], axis=0)
    found = score_list(distances, match, rule)
    assert found
    np.testing.assert_allclose([found.ap, found.inp, *found.cmc], expected, atol=1e-12)


def test_a_list_without_a_match_has_no_score() -> None:
    assert score_list(np.arange(3.0), np.zeros(3, bool), "rectangle") is None


@pytest.mark.parametrize("k", [1, 5])
def test_equal_outputs_share_the_first_places(k: int) -> None:
    outputs = RANDOM.integers(0, 3, 8).astype(float)
    for label in range(8):
        others = np.delete(outputs, label)
        orders = range((others > outputs[label]).sum(), (others >= outputs[label]).sum() + 1)
        assert top_k(outputs, label, k) == pytest.approx(np.mean([rank < k for rank in orders]))
        low, high = top_k_bounds(outputs, label, k, 0.6)
        shifts = np.random.default_rng(label).choice([-0.6, 0, 0.6], size=(500, 8))
        found = [top_k(outputs + shift, label, k) for shift in shifts]
        assert low <= min(found) <= max(found) <= high
        away = np.where(np.arange(8) == label, -0.6, 0.6)
        assert (low, high) == (top_k(outputs + away, label, k), top_k(outputs - away, label, k))


def test_votes_of_neighbours() -> None:
    train = np.array([[1.0, 0], [3, 4], [0, 2], [0, 0]])
    cosines = similarities(train, np.array([2.0, 0]))
    np.testing.assert_allclose(cosines, [1, 0.6, 0, 0])
    found = votes(cosines, np.array([1, 0, 0, 2]), 3, 0.5, 3)
    np.testing.assert_allclose(found, [np.exp(-0.8) + np.exp(-2), 1, 0])
    assert [class_rank(found, label, 2) for label in range(3)] == [1, 0, 2]
    assert votes(cosines, np.array([1, 0, 0, 2]), 4, 1e-3, 3).argmax() == 1  # and nothing underflows


def test_probes_are_where_their_losses_have_no_slope() -> None:
    x, labels = RANDOM.normal(size=(12, 5)) * 3 + 1, np.arange(12) % 3
    own = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    probe = ridge(x, labels, 4.0, 3)
    z = (x - x.mean(0)) / (x.std(0) + 1e-5)
    rest = np.stack([probe.outputs(row) for row in x]) - own
    np.testing.assert_allclose(z.T @ rest + 4 * probe.weights, 0, atol=1e-9)
    np.testing.assert_allclose(100 * rest.sum(0) + 4 * probe.bias / 100, 0, atol=1e-8)
    probe = logistic(x, labels, 2.0, 3)
    rest = softmax([probe.outputs(row) for row in x], axis=1) - (own + 1) / 2
    np.testing.assert_allclose(z.T @ rest + 2 * probe.weights, 0, atol=1e-5)
    np.testing.assert_allclose(rest.sum(0), 0, atol=1e-5)


def test_tokens_and_weights() -> None:
    tokens = np.array([[3.0, 0], [0, 2], [1, 1], [0, 0]])
    pairs = [0, 1 / np.sqrt(2), 1 / np.sqrt(2)]
    assert similarity(tokens) == pytest.approx(np.mean(pairs))
    assert np.isnan(similarity(tokens[2:]))
    found = token_facts(tokens)
    values = np.sqrt(np.linalg.eigvalsh(tokens.T @ tokens))
    shares = values / values.sum()
    assert found["operator_norm"] == pytest.approx(values.max())
    assert found["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert found["bound"] == pytest.approx((values.max() ** 2 / 2 - 1) / 2)
    assert found["zero_rows"] == 0.25
    weights = attention_facts(np.array([[[0.5, 0.5], [0, 0]], [[-1, 3], [0.25, 0.25]]]))
    halves = -0.25 * np.log(0.25) - 0.75 * np.log(0.75)
    assert weights == pytest.approx(
        {"row_sum": 0.875, "row_sum_smallest": 0, "row_sum_largest": 2, "entropy": (2 * np.log(2) + halves) / 3}
        | {"zero_rows": 0.25}
    )


def test_re_ranking_agrees_with_the_suites_own() -> None:
    from tasks.ranking.reranking import rerank

    query, gallery = (RANDOM.normal(size=(count, 6)) for count in (7, 25))
    found = reranked(query, gallery, k1=6, k2=3, weight=0.3)
    np.testing.assert_allclose(found, rerank(query, gallery, k1=6, k2=3, lambda_value=0.3), atol=1e-6)
    assert not reranked(np.ones((2, 3)), np.ones((4, 3)), k1=2, k2=1, weight=0.3).any()


def test_detections_that_are_the_truth_score_one_and_none_score_nothing() -> None:
    boxes = [[0.0, 0, 40, 40], [50.0, 50, 100, 100]]
    truth = {
        "images": [{"id": 1, "width": 200, "height": 200, "file_name": "a"}],
        "categories": [{"id": 3, "name": "x"}],
        "annotations": [
            {"id": n + 1, "image_id": 1, "category_id": 3, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            for n, box in enumerate(boxes)
        ],
    }
    results = [{"image_id": 1, "category_id": 3, "bbox": box, "score": 0.9} for box in boxes]
    assert coco_numbers(truth, results, "bbox", [1])["AP"] == pytest.approx(1)
    assert set(coco_numbers(truth, results, "bbox", [1])) == {*NAMES} - {"APs", "ARs"}
    assert coco_numbers(truth, [], "bbox", [1])["AP"] == 0
    assert box_iou([0, 0, 2, 2], [1, 0, 2, 2]) == pytest.approx(1 / 3)


def test_the_statements_know_nothing_that_scores() -> None:
    files = sorted(ROOM.rglob("*.py"))
    assert len(files) > 15
    for path in files:
        modules = {
            line.split()[1] for line in path.read_text().splitlines() if line.lstrip().startswith(("from", "import"))
        }
        outside = {name for name in modules if not name.startswith("tasks.reference")}
        assert not {name.rpartition(".")[2] for name in outside} & SCORES, path
        if path.parent.name == "metrics":
            allowed = {
                "numpy",
                "scipy",
                "pycocotools",
                "math",
                "typing",
                "dataclasses",
                "collections",
                "contextlib",
                "io",
            }
            assert {name.partition(".")[0] for name in imported(module_of(ROOT / path))} <= allowed, path
