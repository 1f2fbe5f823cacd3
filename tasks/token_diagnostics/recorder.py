"""Statistics of a backbone's tokens and attention weights while images pass through it.

Shapes: B images, P places, F fields of a place, A attentions, G fields of an attention.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backbones.attention import Attention, UserAttention
from backbones.backbone import Backbone
from tasks.token_diagnostics.attention import has_weights, sums_values, weights_shown
from tasks.token_diagnostics.hook_points import HookPoint, find_hook_points
from tasks.token_diagnostics.statistics import ATTENTION_FIELDS, TOKEN_FIELDS, attention_statistics, token_statistics

WITH_ATTENTION = ("outlooker", "block", "class attention")
CHUNK = 2**24
"""Largest number of values converted to float64 at a time."""


@dataclass
class Recorder:
    """Statistics of the tokens at every place of a backbone, in the order in which an image passes them.

    Attributes:
        class_token: whether class token and registers count among the tokens.
        layers: name, kind, number and channels of the tokens at each place.
        attentions: name of each block whose attention weights can be computed, and its keys L.
        missing: sentences about what cannot be measured in this backbone.
    """

    backbone: Backbone
    class_token: bool
    layers: list[dict[str, Any]] = field(default_factory=list)
    attentions: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def rows(self, images: Tensor) -> Tensor:
        """Return the fields of images [B, 3, H, W], float64 [B, P F + A G]: all places, then all attentions."""
        self.layers, self.attentions, self.missing = [], [], []
        tokens: list[Tensor] = []
        weights: list[Tensor] = []
        with self._watched(tokens, weights):
            self.backbone(images)
        return torch.cat([*tokens, *weights], dim=1)

    def columns(self, values: Any) -> tuple[list[Any], list[Any]]:
        """Split rows [M, P F + A G] into the fields [M, F] of each place and [M, G] of each attention."""
        split = len(self.layers) * len(TOKEN_FIELDS)
        places = values[:, :split].reshape(len(values), -1, len(TOKEN_FIELDS))
        attentions = values[:, split:].reshape(len(values), -1, len(ATTENTION_FIELDS))
        return [places[:, i] for i in range(places.shape[1])], [attentions[:, i] for i in range(attentions.shape[1])]

    @contextmanager
    def _watched(self, tokens: list[Tensor], weights: list[Tensor]) -> Iterator[None]:
        calls: Counter[str] = Counter()

        def show(place: HookPoint, when: str, x: Tensor) -> None:
            name = f"{place.name}{when}"
            calls[name] += 1
            name += "" if calls[name] == 1 else f" (call {calls[name]})"
            shown = place.tokens(x, self.class_token)
            if shown is None:
                kind = "may have its channels first or last" if x.ndim == 4 else "is not a set of tokens"
                self.missing.append(f"{name}: a tensor {list(x.shape)[1:]} for each image {kind}")
                return
            self.layers.append(
                {"place": name, "kind": place.kind, "tokens": shown.shape[1], "channels": shown.shape[2]}
            )
            tokens.append(in_chunks(token_statistics, shown))

        def show_weights(name: str, shown: Tensor) -> None:
            self.attentions.append({"place": name, "keys": shown.shape[-1]})
            weights.append(in_chunks(attention_statistics, shown))

        with ExitStack() as hooks:
            points = find_hook_points(self.backbone)
            for place in points:
                self._watch(place, show, hooks)
            self._watch_attentions([place for place in points if place.kind in WITH_ATTENTION], show_weights, hooks)
            yield

    def _watch(self, place: HookPoint, show: Callable[[HookPoint, str, Tensor], None], hooks: ExitStack) -> None:
        def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            show(place, " before", inputs[0])

        def after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            show(place, " after" if place.kind == "activation" else "", output)

        if place.kind == "activation":
            hooks.callback(place.module.register_forward_pre_hook(before).remove)
        hooks.callback(place.module.register_forward_hook(after).remove)

    def _watch_attentions(self, blocks: list[HookPoint], show: Callable[[str, Tensor], None], hooks: ExitStack) -> None:
        without: dict[str, list[str]] = {}
        for block in blocks:
            attention = getattr(block.module, "attn", None)
            reason = why_no_weights(attention)
            if reason:
                without.setdefault(reason, []).append(block.name)
            else:
                hooks.enter_context(weights_shown(attention, partial(show, block.name)))
        self.missing += [f"attention weights of {', '.join(names)}: {reason}" for reason, names in without.items()]


def why_no_weights(attention: Any) -> str:
    """Return why an attention's weights cannot be computed; empty when they can."""
    if isinstance(attention, UserAttention):
        return "a user's module does not show them"
    if not has_weights(attention):
        return f"those of {type(attention).__name__} are unknown"
    if isinstance(attention, Attention) and not sums_values(attention.core, attention):
        return "the user's function does not sum values with weights that are independent of them"
    return ""


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function` of x [B, ...], called with at most `CHUNK` numbers at a time."""
    images = max(CHUNK // max(x[0].numel(), 1), 1)
    return torch.cat([function(chunk) for chunk in x.split(images)])
