"""Token diagnostics anew: tokens and attention weights in float64, looked at image by image."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backbones.backbone import Backbone
from backbones.pretrain.augment import eval_transform
from tasks.reference.metrics.tokens import attention_facts, facts, similarity
from tasks.reference.recomputed import Recomputed, Row, Values, close, compare
from tasks.reference.run_inputs import BATCH, RunInputs
from tasks.token_diagnostics.attention import weights_shown
from tasks.token_diagnostics.hook_points import HookPoint, find_hook_points

SCORED = {"stem": "similarity_stem", "positions": "similarity_positions", "block": "similarity_last"}
Found = dict[str, list[dict[str, float]]]
"""Place -> what is found of each image."""


def recompute(run: RunInputs) -> Recomputed:
    """The three similarities of the images looked at; of all images also the means at every place."""
    options, split = run.options, run.dataset.val
    backbone = run.frozen(options.size)
    transform = eval_transform(options.size, options.resize)
    total = options.images or len(split)
    chosen = (np.arange(total) * len(split) // total)[run.places(total)]
    tokens: Found = {}
    weights: Found = {}
    with ExitStack() as hooks, torch.inference_mode():
        last = _watch(backbone, options.class_token, tokens, weights, run, hooks)
        for start in range(0, len(chosen), BATCH):
            backbone(
                torch.stack([transform(split.read(int(place))).double() for place in chosen[start : start + BATCH]])
            )
    found: list[Row] = []
    for kind, name in SCORED.items():
        if name not in run.outcomes:
            continue
        values, off = Values(), 4 * run.error
        for one in tokens[last[kind]]:
            values.add(one["similarity"], one["similarity"] - off, one["similarity"] + off)
        places = run.places(total)
        if not np.isnan(values.found).all():
            per_sample = run.outcomes[name]
            found += compare(
                name, run.scores.get(name), per_sample, values, places, run.outcomes["sample"], run.precision
            )
    if len(chosen) < total:
        return Recomputed(f"{run.weights}: {len(chosen)} images", found, ["the means at every place: they are of all"])
    return Recomputed(f"{run.weights}: {total} images", found + _places(run, tokens, weights))


def _watch(
    backbone: Backbone, class_token: bool, tokens: Found, weights: Found, run: RunInputs, hooks: ExitStack
) -> dict[str, str]:
    """Has a forward pass fill in what is found; returns for each kind of place the last one's name."""
    last = {}
    for place in find_hook_points(backbone):
        last[place.kind] = place.name
        if place.kind == "activation":
            show = _shower(place, f"{place.name} before", class_token, tokens)
            hooks.callback(place.module.register_forward_pre_hook(_input(show)).remove)
        after = " after" if place.kind == "activation" else ""
        show = _shower(place, f"{place.name}{after}", class_token, tokens)
        hooks.callback(place.module.register_forward_hook(_output(show)).remove)
        if any(about["place"] == place.name for about in run.details.get("attention", [])):
            hooks.enter_context(weights_shown(place.module.attn, _weights(place.name, weights)))
    return last


def _input(show: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, inputs: show(inputs[0])


def _output(show: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, inputs, output: show(output)


def _shower(place: HookPoint, name: str, class_token: bool, tokens: Found) -> Callable[[Tensor], None]:
    def show(x: Tensor) -> None:
        found = place.tokens(x, class_token)
        for image in [] if found is None else found.numpy():
            tokens.setdefault(name, []).append({"similarity": similarity(image), **facts(image)})

    return show


def _weights(name: str, weights: Found) -> Callable[[Tensor], None]:
    def saw(found: Tensor) -> None:
        weights.setdefault(name, []).extend(attention_facts(image) for image in found.double().numpy())

    return saw


def _places(run: RunInputs, tokens: Found, weights: Found) -> list[Row]:
    """A row for each place at which a mean is another one."""
    share, found = 100 * run.error, []
    for kind, recorded, images in (
        ("tokens", run.details["layers"], tokens),
        ("attention", run.details["attention"], weights),
    ):
        for about in recorded:
            mine = images.get(about["place"], [])
            if len(mine) != len(run.outcomes["sample"]):
                continue  # a module that an image passes more than once, or that is no set of tokens
            means = {name: _mean(name, [one[name] for one in mine]) for name in mine[0]}
            if difference := close(about, means, means, share):
                found.append(Row(f"{kind} of {about['place']}", None, None, share, difference))
    return found


def _mean(name: str, values: list[float]) -> Any:
    """Over the images; of the smallest and largest row sum the extremes."""
    extreme = {"row_sum_smallest": np.min, "row_sum_largest": np.max}.get(name)
    if extreme:
        return float(extreme(values))
    defined = [value for value in values if np.isfinite(value)]
    return float(np.mean(defined)) if defined else None
