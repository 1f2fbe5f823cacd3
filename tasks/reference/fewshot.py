"""Recompute few-shot probes: features in float64 or from the feature store, and every draw's probe solved plainly.

Letters: S recomputed test images, M training images, D channels, C classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from backbones.backbone import Backbone
from backbones.data.splits.split import Split
from tasks.fewshot import feature_settings
from tasks.probing.shards import DamagedShard, read_shard
from tasks.reference.metrics.accuracy import top_k, top_k_bounds
from tasks.reference.metrics.knn import similarities, votes
from tasks.reference.metrics.probes import LinearProbe, logistic, ridge
from tasks.reference.recomputed import FEATURE_ERRORS, Recomputed, SampleScores, ScoreComparison, compare_mean
from tasks.reference.run_inputs import InputsUnavailable, RunInputs, encode_images

UNCONVERGED = 0.05
"""Tolerance of the log-odds of logistic regression: the fit of a run ends before its last digits are right."""


@dataclass(frozen=True)
class Features:
    """Features of the training and test images that the draws use."""

    train: dict[int, NDArray[Any]]
    """Feature [D] of each training image, by its index."""
    test: NDArray[Any]
    """Features [S, D] of the test images."""
    error: float
    """Error of the run's features as a fraction of their norm."""


def recompute(run: RunInputs) -> Recomputed:
    """Recompute `accuracy_<k>shot` over the draws."""
    options = run.options
    sets = options.support_sets(run.dataset)
    if run.weights_description:
        features, source = _computed(run, sets.needed()), run.weights_description
    else:
        features, source = _stored(run, sets), "features of the store"
    comparisons: list[ScoreComparison] = []
    for shots in options.shots:
        name, values = f"accuracy_{shots}shot", SampleScores()
        of_draws = [_draw(run, features, sets, draw, shots) for draw in range(options.draws)]
        for column in zip(*of_draws):
            values.add(*(float(np.mean(kind)) for kind in zip(*column)))
        per_sample = run.outcomes[f"correct_{shots}shot"].mean(1)
        comparisons += compare_mean(
            name, run.scores.get(name), per_sample, values, run.sample_indices(), run.outcomes["sample"], run.precision
        )
        comparisons += _strengths(run, features, sets, shots)
    return Recomputed(f"{source}: {options.draws} draws, {len(run.sample_indices())} images", comparisons)


def _computed(run: RunInputs, needed: NDArray[Any]) -> Features:
    """Compute the features of the needed training images and of the test images."""
    options = run.options
    backbone, steps = run.initial_backbone(options.size), feature_settings(options).steps()

    def pixels(split: Split, place: int) -> Tensor:
        image = split.read(place)
        for step in steps:
            image = step(image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).double() / 255

    def encode(images: Tensor) -> Tensor:
        return _pooled(backbone, images, options.block)

    train = encode_images(encode, lambda place: pixels(run.dataset.train, place), needed, "training images")
    test = encode_images(encode, lambda place: pixels(run.dataset.val, place), run.sample_indices(), "images")
    return Features(dict(zip(needed.tolist(), train)), test, run.feature_error)


def _pooled(backbone: Backbone, images: Tensor, block: int | None) -> Tensor:
    """Return pooled features [B, D] of the network or, if given, of a block (their mean in other models than ViTs)."""
    if block is None:
        return backbone.pooled(images)
    if isinstance(backbone.model, VisionTransformer):
        return backbone.model.forward_head(backbone.tokens(images, norm=True)[2:][block], pre_logits=True)
    return backbone.maps(images, [block])[0].mean((2, 3))


def _stored(run: RunInputs, sets: object) -> Features:
    """Read the features that the run probed from the store. Raises InputsUnavailable."""
    entries = run.details.get("features", {}).get("entries", [])
    if run.store is None or len(entries) != 2:
        raise InputsUnavailable(run.missing_weights)
    train, test = (_entry(run, entry, contents) for entry, contents in zip(entries, (sets.train, sets.test)))  # type: ignore[attr-defined]
    needed = sets.needed().tolist()  # type: ignore[attr-defined]
    try:
        tested = np.stack([test[place] for place in run.sample_indices().tolist()])
        return Features({place: train[place] for place in needed}, tested, FEATURE_ERRORS["fp64"])
    except KeyError:
        raise InputsUnavailable(f"{run.missing_weights}; nor are its features whole in {run.store}") from None


def _entry(run: RunInputs, name: str, contents: tuple[bytes, ...]) -> dict[int, NDArray[Any]]:
    """Read the features of an entry by image index; the rows of an entry are the distinct contents in sorted order."""
    of_content: dict[bytes, NDArray[Any]] = {}
    order = sorted({*contents})
    assert run.store is not None
    for path in sorted((run.store / name).glob("*.safetensors")):
        try:
            held, features = read_shard(path)
        except DamagedShard:
            continue
        of_content |= {order[row]: feature.astype(np.float64) for row, feature in zip(held.tolist(), features)}
    return {place: of_content[content] for place, content in enumerate(contents) if content in of_content}


def _support(run: RunInputs, features: Features, places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the features [M, D] and labels [M] of training images by their indices."""
    return np.stack([features.train[place] for place in places.tolist()]), run.dataset.train.labels[places]


def _draw(run: RunInputs, features: Features, sets: object, draw: int, shots: int) -> list[tuple[float, float, float]]:
    """Return whether each test image is classified correctly, with bounds, at the strength that the run chose."""
    support, labels = _support(run, features, sets.support(draw, shots))  # type: ignore[attr-defined]
    strength = run.details[f"accuracy_{shots}shot"]["strengths"][draw]
    return _correct_with_bounds(
        run, features.error, support, labels, strength, features.test, run.dataset.val.labels[run.sample_indices()]
    )


def _correct_with_bounds(
    run: RunInputs,
    error: float,
    support: NDArray[Any],
    labels: NDArray[Any],
    strength: float,
    test: NDArray[Any],
    truth: NDArray[Any],
) -> list[tuple[float, float, float]]:
    """Return (correct, low, high) of every tested image."""
    options, classes = run.options, len(run.dataset.classes)
    results = []
    if options.probe == "knn":
        k = min(int(strength), len(support))
        for feature, label in zip(test, truth):
            cosines, shift = similarities(support, feature), np.where(labels == label, 2, -2) * error
            kinds = [votes(cosines + s * shift, labels, k, options.temperature, classes).argmax() for s in (0, -1, 1)]
            exact, low, high = (float(kind == label) for kind in kinds)
            results.append((exact, min(exact, low), max(exact, high)))
        return results
    probe = (ridge if options.probe == "ridge" else logistic)(support, labels, strength, classes)
    floor = UNCONVERGED if options.probe == "logistic" else 1e-9
    for feature, label in zip(test, truth):
        outputs, off = probe.outputs(feature), _output_error(probe, support, feature, error) + floor
        exact, bounds = float(outputs.argmax() == label), top_k_bounds(outputs, int(label), 1, off)
        low, high = (float(np.floor(bounds[0])), float(np.ceil(bounds[1])))
        results.append((exact, low, high) if top_k(outputs, int(label), 1) in (0, 1) else (exact, 0.0, 1.0))
    return results


def _output_error(probe: LinearProbe, support: NDArray[Any], feature: NDArray[Any], error: float) -> float:
    """Return a bound on the error of an output, from the errors of the feature and of the support features."""
    longest = np.sqrt(max((support**2).sum(1).max(), (feature**2).sum()))
    return float(4 * error * longest * probe.lipschitz)


def _strengths(run: RunInputs, features: Features, sets: object, shots: int) -> list[ScoreComparison]:
    """Return a comparison for each draw whose strength is not the best on its selection images."""
    strengths = run.options.strengths
    if len(strengths) < 2:
        return []
    comparisons = []
    for draw, taken in enumerate(run.details[f"accuracy_{shots}shot"]["strengths"]):
        support, labels = _support(run, features, sets.support(draw, shots))  # type: ignore[attr-defined]
        chosen, truth = _support(run, features, sets.selection(draw))  # type: ignore[attr-defined]
        hits = {s: _correct_with_bounds(run, features.error, support, labels, s, chosen, truth) for s in strengths}
        counts = {s: [sum(kind) for kind in zip(*right)] for s, right in hits.items()}
        best = sorted(s for s, (exact, _, _) in counts.items() if exact == max(count[0] for count in counts.values()))
        middle = best[(len(best) - 1) // 2]
        unsure = any(low < high for right in hits.values() for _, low, high in right)
        if taken != middle and not (unsure and counts[taken][2] >= max(count[1] for count in counts.values())):
            comparisons.append(ScoreComparison(f"strength of draw {draw}, {shots} shots", taken, middle, 0.0))
    return comparisons
