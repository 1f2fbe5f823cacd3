"""The oracles: against definitions where these are simple, and the fast forms of the tasks against them."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from backbones.pretrain.accuracy import accuracies, true_class_ranks
from backbones.pretrain.knn import weighted_knn
from tasks.detection.coco.scores import evaluate
from tasks.detection.coco.scores import scores as coco_scores
from tasks.probes import Logistic, ridge
from tasks.ranking.metrics import rank
from tasks.ranking.reranking import rerank
from tasks.token_diagnostics.statistics import (
    ATTENTION_FIELDS,
    TOKEN_FIELDS,
    attention_statistics,
    token_statistics,
)
from tests.oracles.accuracy import top_k
from tests.oracles.detection import NAMES, coco_numbers
from tests.oracles.knn import class_rank, similarities, votes
from tests.oracles.probes import logistic
from tests.oracles.probes import ridge as plain_ridge
from tests.oracles.ranking import RANKS, junk, score_list
from tests.oracles.reranking import reranked
from tests.oracles.tokens import attention_facts, similarity, token_facts
from tests.tasks.detection.coco.cases import drawn


def in_order(match: np.ndarray, rule: str) -> tuple[float, ...]:
    """AP, mINP and CMC of a list without ties."""
    hits = np.flatnonzero(match) + 1
    precisions = np.arange(1, len(hits) + 1) / hits
    if rule == "trapezoid":
        before = [found / (rank - 1) if rank > 1 else 1.0 for found, rank in enumerate(hits)]
        precisions = (precisions + before) / 2
    return precisions.mean(), len(hits) / hits[-1], *(float(hits[0] <= rank) for rank in RANKS)


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
@pytest.mark.parametrize("seed", range(3))
def test_ties_score_the_mean_over_all_their_orders(seed: int, rule: str) -> None:
    random = np.random.default_rng(seed)
    distances, match = random.integers(0, 3, 7).astype(float), random.random(7) < 0.4
    match[0] = True
    orders = [order for order in itertools.permutations(range(7)) if (np.diff(distances[list(order)]) >= 0).all()]
    expected = np.mean([in_order(match[list(order)], rule) for order in orders], axis=0)
    found = score_list(distances, match, rule)
    assert found
    np.testing.assert_allclose([found.ap, found.inp, *found.cmc], expected, atol=1e-12)
    assert score_list(np.arange(3.0), np.zeros(3, bool), rule) is None


@pytest.mark.parametrize("rule", ["rectangle", "trapezoid"])
def test_rankings(rule: Any) -> None:
    random = np.random.default_rng(0)
    query, gallery = (random.integers(0, 3, (count, 3)).astype(np.float32) for count in (12, 60))
    ids, cameras = ([random.integers(0, most, count) for count in (12, 60)] for most in (6, 3))
    ids[0][5] = 9  # nobody matches
    found = rank(query, gallery, ids[0], ids[1], cameras[0], cameras[1], ap=rule)
    lists = []
    for row, feature in enumerate(query):
        counts = ~junk(ids[0][row], cameras[0][row], ids[1], cameras[1])
        lists.append(score_list(((gallery - feature) ** 2).sum(1)[counts], ids[1][counts] == ids[0][row], rule))
    scored = [scores for scores in lists if scores]
    assert [scores is not None for scores in lists] == found.valid.tolist()
    assert len(scored) == 11
    expected = {"mAP": np.mean([scores.ap for scores in scored]), "mINP": np.mean([scores.inp for scores in scored])}
    expected |= {f"rank{r}": np.mean([scores.cmc[place] for scores in scored]) for place, r in enumerate(RANKS)}
    assert found.scores() == pytest.approx(expected)


def test_re_ranking() -> None:
    random = np.random.default_rng(0)
    query, gallery = (random.normal(size=(count, 6)) for count in (7, 25))
    found = reranked(query, gallery, k1=6, k2=3, weight=0.3)
    np.testing.assert_allclose(found, rerank(query, gallery, k1=6, k2=3, lambda_value=0.3), atol=1e-6)
    assert not reranked(np.ones((2, 3)), np.ones((4, 3)), k1=2, k2=1, weight=0.3).any()


def test_equal_outputs_share_the_first_places() -> None:
    outputs = np.random.default_rng(0).integers(0, 3, (40, 8)).astype(float)
    labels = np.arange(40) % 8
    ranks = true_class_ranks(torch.from_numpy(outputs), torch.from_numpy(labels)).numpy()
    outcomes = {"rank": ranks[:, 0], "ties": ranks[:, 1]}
    expected = {f"top{k}": np.mean([top_k(row, label, k) for row, label in zip(outputs, labels)]) for k in (1, 5)}
    assert accuracies(outcomes) == pytest.approx(expected)
    assert top_k(np.array([1.0, 1, 0]), 0, 1) == 0.5


def test_votes_of_neighbours() -> None:
    train = np.array([[1.0, 0], [3, 4], [0, 2], [0, 0]])
    cosines = similarities(train, np.array([2.0, 0]))
    np.testing.assert_allclose(cosines, [1, 0.6, 0, 0])
    found = votes(cosines, np.array([1, 0, 0, 2]), 3, 0.5, 3)
    np.testing.assert_allclose(found, [np.exp(-0.8) + np.exp(-2), 1, 0])
    assert [class_rank(found, label, 2) for label in range(3)] == [1, 0, 2]
    random = np.random.default_rng(0)
    train, test, labels = random.normal(size=(50, 4)), random.normal(size=(20, 4)), random.integers(0, 7, 50)
    ranked = weighted_knn(
        torch.from_numpy(train), torch.from_numpy(labels), torch.from_numpy(test), k=[9], temperature=0.1, classes=7
    )[9]
    for feature, classes in zip(test, ranked.tolist()):
        totals = votes(similarities(train, feature), labels, 9, 0.1, 7)
        voted = [label for label in classes if totals[label]]
        assert [class_rank(totals, label, 5) for label in voted] == [*range(len(voted))]


def test_probes() -> None:
    random = np.random.default_rng(0)
    x, test, labels = random.normal(size=(12, 5)) * 3 + 1, random.normal(size=(200, 5)) * 3 + 1, np.arange(12) % 3
    probe, weights = plain_ridge(x, labels, 4.0, 3), ridge(x, labels, l2=4.0, classes=3).numpy()
    np.testing.assert_allclose(weights[:-1], probe.weights, atol=1e-10)
    np.testing.assert_allclose(100 * weights[-1], probe.bias, atol=1e-8)
    probe = logistic(x, labels, 2.0, 3)
    z, own = (x - x.mean(0)) / (x.std(0) + 1e-5), (labels[:, None] == np.arange(3)).astype(float)
    rest = softmax([probe.outputs(row) for row in x], axis=1) - own
    np.testing.assert_allclose(z.T @ rest + 2 * probe.weights, 0, atol=1e-5)
    np.testing.assert_allclose(rest.sum(0), 0, atol=1e-5)
    fast = Logistic(torch.from_numpy(x), torch.from_numpy(labels), 3).predict(torch.from_numpy(test), 2.0)
    assert np.mean([probe.outputs(row).argmax() for row in test] == fast.numpy()) > 0.98


def test_tokens_and_weights() -> None:
    random = np.random.default_rng(0)
    tokens, weights = random.normal(size=(9, 5)) + 0.3, random.normal(size=(2, 4, 6))
    tokens[3], weights[0, 1] = 0, 0
    found = dict(zip(TOKEN_FIELDS, token_statistics(torch.from_numpy(tokens)[None])[0].tolist(), strict=True))
    assert {"similarity": similarity(tokens), **token_facts(tokens)} == pytest.approx(found)
    found = dict(zip(ATTENTION_FIELDS, attention_statistics(torch.from_numpy(weights)[None])[0].tolist(), strict=True))
    assert attention_facts(weights) == pytest.approx(found)
    pairs = [0, 1 / np.sqrt(2), 1 / np.sqrt(2)]
    assert similarity(np.array([[3.0, 0], [0, 2], [1, 1], [0, 0]])) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_detections(kind: Any) -> None:
    truth, results = drawn(0)
    images = [image["id"] for image in truth["images"]]
    prefix = {"bbox": "box", "segm": "mask"}[kind]
    found = {f"{prefix}_{name}": value for name, value in coco_numbers(truth, results, kind, images).items()}
    assert found == pytest.approx(coco_scores(evaluate(truth, results, kind)))
    assert {*found} == {f"{prefix}_{name}" for name in NAMES}
    assert coco_numbers(truth, [], "bbox", images)["AP"] == 0
    unmasked = truth | {"annotations": [dict(item) for item in truth["annotations"]]}
    del unmasked["annotations"][0]["segmentation"]
    assert coco_numbers(unmasked, results, "segm", images)["AP"] > 0


def test_the_oracles_know_nothing_of_the_suite() -> None:
    for path in sorted(Path(__file__).parent.glob("[!t]*.py")):
        assert not re.search(r"^ *(from|import) (backbones|tasks|transfer)", path.read_text(encoding="utf-8"), re.M), (
            path
        )
