"""Few-shot probes anew: features in float64, or those that the store holds, and every draw's probe solved plainly.

Letters: S test images looked at, M training images, D channels, C classes.
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
from tasks.probing.shards import DamagedShard, read_shard
from tasks.reference.metrics.accuracy import top, top_bounds
from tasks.reference.metrics.knn import similarities, votes
from tasks.reference.metrics.probes import Linear, logistic, ridge
from tasks.reference.recomputed import ERRORS, Recomputed, Row, Values, compare
from tasks.reference.run_inputs import InputsUnavailable, RunInputs, rows

UNCONVERGED = 0.05
"""Tolerance of the log-odds of logistic regression: the suite's fit ends before its last digits are right."""


@dataclass(frozen=True)
class Features:
    """Of the images that are needed."""

    train: dict[int, NDArray[Any]]
    """Index among the training images -> [D]."""
    test: NDArray[Any]
    """[S, D]."""
    error: float
    """As a share of their length, against those of the run."""


def recompute(run: RunInputs) -> Recomputed:
    """`accuracy_<k>shot` over the draws."""
    options = run.options
    sets = options.support_sets(run.dataset)
    if run.weights:
        features, source = _computed(run, sets.needed()), run.weights
    else:
        features, source = _stored(run, sets), "features of the store"
    found: list[Row] = []
    for shots in options.shots:
        name, values = f"accuracy_{shots}shot", Values()
        of_draws = [_draw(run, features, sets, draw, shots) for draw in range(options.draws)]
        for column in zip(*of_draws):
            values.add(*(float(np.mean(kind)) for kind in zip(*column)))
        per_sample = run.outcomes[f"correct_{shots}shot"].mean(1)
        found += compare(
            name, run.scores.get(name), per_sample, values, run.places(), run.outcomes["sample"], run.precision
        )
        found += _strengths(run, features, sets, shots)
    return Recomputed(f"{source}: {options.draws} draws, {len(run.places())} images", found)


def _computed(run: RunInputs, needed: NDArray[Any]) -> Features:
    """From the images."""
    options = run.options
    backbone, steps = run.frozen(options.size), options.features().steps()

    def pixels(split: Split, place: int) -> Tensor:
        image = split.read(place)
        for step in steps:
            image = step(image)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).double() / 255

    def encode(images: Tensor) -> Tensor:
        return _pooled(backbone, images, options.block)

    train = rows(encode, lambda place: pixels(run.dataset.train, place), needed, "training images")
    test = rows(encode, lambda place: pixels(run.dataset.val, place), run.places(), "images")
    return Features(dict(zip(needed.tolist(), train)), test, run.error)


def _pooled(backbone: Backbone, images: Tensor, block: int | None) -> Tensor:
    """[B, D]: the network's own features, or tokens behind a block, pooled as at its end; the mean in other models."""
    if block is None:
        return backbone.pooled(images)
    if isinstance(backbone.model, VisionTransformer):
        return backbone.model.forward_head(backbone.tokens(images, norm=True)[2:][block], pre_logits=True)
    return backbone.maps(images, [block])[0].mean((2, 3))


def _stored(run: RunInputs, sets: object) -> Features:
    """Those that the run probed, from the store. Raises InputsUnavailable."""
    entries = run.details.get("features", {}).get("entries", [])
    if run.store is None or len(entries) != 2:
        raise InputsUnavailable(run.note)
    train, test = (_entry(run, entry, contents) for entry, contents in zip(entries, (sets.train, sets.test)))  # type: ignore[attr-defined]
    needed = sets.needed().tolist()  # type: ignore[attr-defined]
    try:
        found = np.stack([test[place] for place in run.places().tolist()])
        return Features({place: train[place] for place in needed}, found, ERRORS["fp64"])
    except KeyError:
        raise InputsUnavailable(f"{run.note}; nor are its features whole in {run.store}") from None


def _entry(run: RunInputs, name: str, contents: tuple[bytes, ...]) -> dict[int, NDArray[Any]]:
    """Image -> feature, of an entry, whose rows are the different contents in order."""
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
    return np.stack([features.train[place] for place in places.tolist()]), run.dataset.train.labels[places]


def _draw(run: RunInputs, features: Features, sets: object, draw: int, shots: int) -> list[tuple[float, float, float]]:
    """Of every test image whether it is right, and at worst and best, under the strength that the run took."""
    support, labels = _support(run, features, sets.support(draw, shots))  # type: ignore[attr-defined]
    strength = run.details[f"accuracy_{shots}shot"]["strengths"][draw]
    return _right(run, features.error, support, labels, strength, features.test, run.dataset.val.labels[run.places()])


def _right(
    run: RunInputs,
    error: float,
    support: NDArray[Any],
    labels: NDArray[Any],
    strength: float,
    tested: NDArray[Any],
    truth: NDArray[Any],
) -> list[tuple[float, float, float]]:
    """(found, low, high) of every tested image."""
    options, classes = run.options, len(run.dataset.classes)
    found = []
    if options.probe == "knn":
        k = min(int(strength), len(support))
        for feature, label in zip(tested, truth):
            cosines, shift = similarities(support, feature), np.where(labels == label, 2, -2) * error
            kinds = [votes(cosines + s * shift, labels, k, options.temperature, classes).argmax() for s in (0, -1, 1)]
            exact, low, high = (float(kind == label) for kind in kinds)
            found.append((exact, min(exact, low), max(exact, high)))
        return found
    probe = (ridge if options.probe == "ridge" else logistic)(support, labels, strength, classes)
    floor = UNCONVERGED if options.probe == "logistic" else 1e-9
    for feature, label in zip(tested, truth):
        outputs, off = probe.outputs(feature), _off(probe, support, feature, error) + floor
        exact, bounds = float(outputs.argmax() == label), top_bounds(outputs, int(label), 1, off)
        low, high = (float(np.floor(bounds[0])), float(np.ceil(bounds[1])))
        found.append((exact, low, high) if top(outputs, int(label), 1) in (0, 1) else (exact, 0.0, 1.0))
    return found


def _off(probe: Linear, support: NDArray[Any], feature: NDArray[Any], error: float) -> float:
    """By how much an output may be off: through the feature itself, and through those that the probe was fitted to."""
    longest = np.sqrt(max((support**2).sum(1).max(), (feature**2).sum()))
    return float(4 * error * longest * probe.steepness)


def _strengths(run: RunInputs, features: Features, sets: object, shots: int) -> list[Row]:
    """A row where a draw took a strength that is not the best on its selection images."""
    strengths = run.options.strengths
    if len(strengths) < 2:
        return []
    found = []
    for draw, taken in enumerate(run.details[f"accuracy_{shots}shot"]["strengths"]):
        support, labels = _support(run, features, sets.support(draw, shots))  # type: ignore[attr-defined]
        chosen, truth = _support(run, features, sets.selection(draw))  # type: ignore[attr-defined]
        hits = {s: _right(run, features.error, support, labels, s, chosen, truth) for s in strengths}
        counts = {s: [sum(kind) for kind in zip(*right)] for s, right in hits.items()}
        best = sorted(s for s, (exact, _, _) in counts.items() if exact == max(count[0] for count in counts.values()))
        middle = best[(len(best) - 1) // 2]
        unsure = any(low < high for right in hits.values() for _, low, high in right)
        if taken != middle and not (unsure and counts[taken][2] >= max(count[1] for count in counts.values())):
            found.append(Row(f"strength of draw {draw}, {shots} shots", taken, middle, 0.0))
    return found
