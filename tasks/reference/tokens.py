"""Recompute token diagnostics: tokens and attention weights in float64, image by image."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backbones.backbone import Backbone
from backbones.data.loading.floats import to_floats
from backbones.pretrain.augment import eval_transform
from tasks.reference.metrics.tokens import attention_facts, similarity, token_facts
from tasks.reference.recomputed import Recomputed, SampleScores, ScoreComparison, compare_mean, first_difference
from tasks.reference.run_inputs import BATCH, RunInputs
from tasks.token_diagnostics.attention import weights_shown
from tasks.token_diagnostics.hook_points import HookPoint, find_hook_points

SCORED = {"stem": "similarity_stem", "positions": "similarity_positions", "block": "similarity_last"}
Facts = dict[str, list[dict[str, float]]]
"""Measurements of each image, by the name of the place."""


def recompute(run: RunInputs) -> Recomputed:
    """Recompute the three similarities, and the means at every place if no image is left out."""
    options, split = run.options, run.dataset.val
    backbone = run.initial_backbone(options.size)
    transform = eval_transform(options.size, options.resize)
    total = options.images or len(split)
    chosen = (np.arange(total) * len(split) // total)[run.sample_indices(total)]
    tokens: Facts = {}
    weights: Facts = {}
    with ExitStack() as hooks, torch.inference_mode():
        last = _watch(backbone, options.class_token, tokens, weights, run, hooks)
        for start in range(0, len(chosen), BATCH):
            backbone(
                torch.stack(
                    [to_floats(transform(split.read(int(place)))).double() for place in chosen[start : start + BATCH]]
                )
            )
    comparisons: list[ScoreComparison] = []
    for kind, name in SCORED.items():
        if name not in run.outcomes:
            continue
        values, error = SampleScores(), 4 * run.feature_error
        for measured in tokens[last[kind]]:
            cosine = measured["similarity"]
            values.add(cosine, cosine - error, cosine + error)
        places = run.sample_indices(total)
        if not np.isnan(values.scores).all():
            per_sample = run.outcomes[name]
            comparisons += compare_mean(
                name, run.scores.get(name), per_sample, values, places, run.outcomes["sample"], run.precision
            )
    if len(chosen) < total:
        return Recomputed(
            f"{run.weights_description}: {len(chosen)} images",
            comparisons,
            ["the means at every place: they are of all"],
        )
    return Recomputed(f"{run.weights_description}: {total} images", comparisons + _compare_places(run, tokens, weights))


def _watch(
    backbone: Backbone, class_token: bool, tokens: Facts, weights: Facts, run: RunInputs, hooks: ExitStack
) -> dict[str, str]:
    """Register hooks that fill in the measurements; return the name of the last place of each kind."""
    last = {}
    for place in find_hook_points(backbone):
        last[place.kind] = place.name
        if place.kind == "activation":
            record = _token_recorder(place, f"{place.name} before", class_token, tokens)
            hooks.callback(place.module.register_forward_pre_hook(_input(record)).remove)
        after = " after" if place.kind == "activation" else ""
        record = _token_recorder(place, f"{place.name}{after}", class_token, tokens)
        hooks.callback(place.module.register_forward_hook(_output(record)).remove)
        if any(entry["place"] == place.name for entry in run.details.get("attention", [])):
            hooks.enter_context(weights_shown(place.module.attn, _attention_recorder(place.name, weights)))
    return last


def _input(record: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, inputs: record(inputs[0])


def _output(record: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, inputs, output: record(output)


def _token_recorder(place: HookPoint, name: str, class_token: bool, tokens: Facts) -> Callable[[Tensor], None]:
    def record(x: Tensor) -> None:
        place_tokens = place.tokens(x, class_token)
        for image in [] if place_tokens is None else place_tokens.numpy():
            tokens.setdefault(name, []).append({"similarity": similarity(image), **token_facts(image)})

    return record


def _attention_recorder(name: str, weights: Facts) -> Callable[[Tensor], None]:
    def record(attention: Tensor) -> None:
        weights.setdefault(name, []).extend(attention_facts(image) for image in attention.double().numpy())

    return record


def _compare_places(run: RunInputs, tokens: Facts, weights: Facts) -> list[ScoreComparison]:
    """Return a comparison for each place at which a recomputed mean differs from the recorded one."""
    share, comparisons = 100 * run.feature_error, []
    for kind, recorded, images in (
        ("tokens", run.details["layers"], tokens),
        ("attention", run.details["attention"], weights),
    ):
        for entry in recorded:
            measured = images.get(entry["place"], [])
            if len(measured) != len(run.outcomes["sample"]):
                continue  # an image passes this module more than once, or its output has no tokens
            means = {name: _mean(name, [image[name] for image in measured]) for name in measured[0]}
            if difference := first_difference(entry, means, means, share):
                comparisons.append(ScoreComparison(f"{kind} of {entry['place']}", None, None, share, difference))
    return comparisons


def _mean(name: str, values: list[float]) -> Any:
    """Return the mean over images; the extreme for the smallest and largest row sum."""
    extreme = {"row_sum_smallest": np.min, "row_sum_largest": np.max}.get(name)
    if extreme:
        return float(extreme(values))
    defined = [value for value in values if np.isfinite(value)]
    return float(np.mean(defined)) if defined else None
