"""Recompute re-identification from the trained weights: every query ranked against the whole gallery."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backbones.backbone import create
from backbones.data.loading.images import ReidTestTransform
from backbones.data.loading.read_image import read_image
from tasks.data.reid_layouts import Sample
from tasks.reference.metrics.ranking import RANKS, TieGroup, expected_cmc, junk, score_list
from tasks.reference.metrics.reranking import reranked
from tasks.reference.recomputed import Recomputed, SampleScores, compare_mean
from tasks.reference.run_inputs import RunInputs, encode_images, in_float64, load_strictly

NAMES = ("mAP", "mINP", *(f"rank{rank}" for rank in RANKS))
RERANKED = 0.01
"""Tolerance of scores after re-ranking: the last digit of a distance decides on the last image of a neighbourhood."""


def recompute(run: RunInputs) -> Recomputed:
    """Recompute mAP, mINP and CMC of the queries."""
    places = run.sample_indices()
    query, gallery = _features(run, places)
    values = {name: SampleScores() for name in NAMES}
    distances = _reranked(run, query, gallery) if run.options.rerank else None
    samples = run.dataset.gallery
    ids, cameras = (np.array([getattr(sample, kind) for sample in samples]) for kind in ("identity", "camera"))
    for row, place in enumerate(places):
        sample = run.dataset.query[place]
        squared = ((gallery - query[row]) ** 2).sum(1) if distances is None else distances[row]
        counts = ~junk(sample.identity, sample.camera, ids, cameras)
        _add(values, squared[counts], ids[counts] == sample.identity, run)
    per_sample = _per_sample(run.outcomes)
    comparisons = []
    for name in NAMES:
        compared = compare_mean(
            name, run.scores.get(name), per_sample[name], values[name], places, run.outcomes["sample"], run.precision
        )
        # after re-ranking no sample has bounds of its own
        comparisons += [
            replace(row, tolerance=RERANKED, differing_samples="") if run.options.rerank else row for row in compared
        ]
    return Recomputed(f"weights: {len(places)} queries, {len(gallery)} gallery images", comparisons)


def _features(run: RunInputs, places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the L2-normalised features of the queries [S, D] and of the gallery [G, D]."""
    learned = run.trained_tensors()
    backbone = create(run.spec_without_weights, img_size=run.options.size)
    load_strictly(
        backbone, {name.removeprefix("backbone."): x for name, x in learned.items() if name.startswith("backbone.")}
    )
    backbone = in_float64(backbone)
    transform = ReidTestTransform(run.options.size)

    def encode(images: Tensor) -> Tensor:
        features = backbone.pooled(images)
        return _behind_the_neck(features, learned) if run.options.feature == "after" else features

    def both(images: Tensor) -> Tensor:
        return encode(images) + encode(images.flip(-1)) if run.options.flip_test else encode(images)

    def unit(samples: list[Sample], chosen: NDArray[Any], label: str) -> NDArray[Any]:
        features: NDArray[Any] = encode_images(
            both, lambda place: transform(read_image(samples[place].path)), chosen, label
        )
        normalised: NDArray[Any] = features / np.maximum(np.sqrt((features**2).sum(1, keepdims=True)), 1e-12)
        return normalised

    everything = np.arange(len(run.dataset.gallery))
    if run.options.rerank:  # neighbours are looked for among all queries, too
        places = np.arange(len(run.dataset.query))
    return unit(run.dataset.query, places, "queries"), unit(run.dataset.gallery, everything, "gallery")


def _behind_the_neck(features: Tensor, learned: dict[str, Tensor]) -> Tensor:
    """Apply the neck's batch norm in evaluation mode, with epsilon 1e-5."""
    mean, var, weight, bias = (
        learned[f"neck.norm.{name}"].double() for name in ("running_mean", "running_var", "weight", "bias")
    )
    return (features - mean) / torch.sqrt(var + 1e-5) * weight + bias


def _reranked(run: RunInputs, query: NDArray[Any], gallery: NDArray[Any]) -> NDArray[Any]:
    """Return the re-ranked distances [S, G] of the recomputed queries."""
    options = run.options
    k1, k2, weight = options.rerank_k1, options.rerank_k2, options.rerank_lambda
    distances: NDArray[Any] = reranked(query, gallery, k1=k1, k2=k2, weight=weight)[run.sample_indices()]
    return distances


def _add(values: dict[str, SampleScores], distances: NDArray[Any], match: NDArray[Any], run: RunInputs) -> None:
    """Score a ranked list as it is, and with all matches as far and as near as their errors allow.

    |q - g|^2 of unit vectors that are off by e each is off by 4 e |q - g| + 4 e^2.
    """
    error = 4 * run.feature_error * np.sqrt(np.maximum(distances, 0)) + 4 * run.feature_error**2
    away = np.where(match, error, -error)
    scored = [score_list(distances + shift, match, run.options.ap) for shift in (0 * away, away, -away)]
    for place, name in enumerate(NAMES):
        columns = [np.nan if scores is None else (scores.ap, scores.inp, *scores.cmc)[place] for scores in scored]
        values[name].add(*columns)


def _per_sample(outcomes: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the scores [Q] of every query, by name, from the recorded outcomes."""
    first = zip(*(outcomes[name].tolist() for name in ("before", "tied", "hits")))
    groups = [TieGroup(before, tied, 0, hits) for before, tied, hits in first]
    per_sample = {"mAP": outcomes["ap"], "mINP": outcomes["inp"]}
    for rank in RANKS:
        per_sample[f"rank{rank}"] = np.array(
            [expected_cmc(group, rank) if group.matches else np.nan for group in groups]
        )
    return per_sample
