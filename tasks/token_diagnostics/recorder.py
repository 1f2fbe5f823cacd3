"""What a backbone shows of its tokens while images pass through it.

Letters: B images, P places, F fields of a place, A attentions, G fields of an attention.
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
PART = 2**24
"""Most numbers that are brought to float64 at a time."""


@dataclass
class Recorder:
    """Statistics of the tokens at every place of a backbone, in the order in which an image passes them.

    Attributes:
        class_token: whether class token and registers are among the tokens, where they are there.
        layers: name, kind, number and channels of the tokens at each place.
        attentions: name of each block whose attention weights can be had, and its keys L.
        missing: what cannot be had of this backbone, in words.
    """

    backbone: Backbone
    class_token: bool
    layers: list[dict[str, Any]] = field(default_factory=list)
    attentions: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def rows(self, images: Tensor) -> Tensor:
        """Statistics of images [B, 3, H, W], float64 [B, P F + A G]: `TOKEN_FIELDS` of every place, then
        `ATTENTION_FIELDS` of every attention.
        """
        self.layers, self.attentions, self.missing = [], [], []
        tokens: list[Tensor] = []
        weights: list[Tensor] = []
        with self._watched(tokens, weights):
            self.backbone(images)
        return torch.cat([*tokens, *weights], dim=1)

    def columns(self, values: Any) -> tuple[list[Any], list[Any]]:
        """The [M, F] of each place and the [M, G] of each attention, of [M, P F + A G]."""
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
            found = place.tokens(x, self.class_token)
            if found is None:
                kind = "may have its channels first or last" if x.ndim == 4 else "is no set of tokens"
                self.missing.append(f"{name}: a tensor {list(x.shape)[1:]} for each image {kind}")
                return
            self.layers.append(
                {"place": name, "kind": place.kind, "tokens": found.shape[1], "channels": found.shape[2]}
            )
            tokens.append(in_parts(token_statistics, found))

        def show_weights(name: str, found: Tensor) -> None:
            self.attentions.append({"place": name, "keys": found.shape[-1]})
            weights.append(in_parts(attention_statistics, found))

        with ExitStack() as hooks:
            found = find_hook_points(self.backbone)
            for place in found:
                self._watch(place, show, hooks)
            self._watch_attentions([place for place in found if place.kind in WITH_ATTENTION], show_weights, hooks)
            self._say_what_the_stem_hides(found)
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

    def _say_what_the_stem_hides(self, found: list[HookPoint]) -> None:
        users = getattr(self.backbone.model.patch_embed, "user", "")
        if users and not any(place.kind == "activation" for place in found):
            self.missing.append(
                "activations of the user's stem: none is a module whose class says so (relu, gelu, ...); functions are "
                "not seen"
            )


def why_no_weights(attention: Any) -> str:
    """In words; nothing where they can be had."""
    if isinstance(attention, UserAttention):
        return "a user's module does not show them"
    if not has_weights(attention):
        return f"those of {type(attention).__name__} are not known here"
    if isinstance(attention, Attention) and not sums_values(attention.core, attention):
        return "the user's function does not sum values with weights that are independent of them"
    return ""


def in_parts(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of x [B, ...] over few enough images at a time."""
    images = max(PART // max(x[0].numel(), 1), 1)
    return torch.cat([function(part) for part in x.split(images)])
