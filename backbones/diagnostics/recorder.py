"""Statistics of a backbone's tokens and attention weights while images pass through it, and their means over images.

Shapes: M images, B at a time, P places, F fields of a place, A attentions, G fields of an attention, N queries, L keys,
d = head_dim; q, k, v are [B, heads, N or L, d], weights [B, heads, N, L].
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.layers import Attention as TimmAttention
from timm.models.volo import Attention as VoloAttention
from torch import Tensor, nn
from torch.utils.data import Subset

from backbones.attention import ATTENTIONS, Attention, UserAttention
from backbones.backbone import CPU_BATCH, Backbone, create
from backbones.diagnostics import statistics
from backbones.diagnostics.hook_points import HookPoint, find_hook_points
from backbones.diagnostics.stem import stem_facts
from backbones.kernels.functions import without_autocast
from backbones.spec import BackboneSpec
from transfer.core.errors import UsageError, errors_naming
from transfer.core.grouped import grouped_by
from transfer.data.classification import ClassificationData
from transfer.data.loading.augment import view_of
from transfer.data.splits.dataset import SplitDataset
from transfer.engine import dist
from transfer.engine.context import Context
from transfer.engine.extract import compute_rows
from transfer.engine.learner import Learner

Core = Callable[..., Tensor]


@contextmanager
def weights_shown(attention: Any, receive: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `receive` with the attention's weights in every forward pass within the block."""

    def show(module: Any, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        receive(attention_weights(module, inputs[0], options.get("image_tokens")))

    with attention.register_forward_pre_hook(show, with_kwargs=True):
        yield


def weights_of(core: Core, q: Tensor, k: Tensor) -> Tensor:
    """Return the weights of a function of (q, k, v) that sums values with weights: its results for unit vectors as v.

    They are computed in float32 at least, so that half-precision queries and keys are not rounded again.
    """
    keys, d = k.shape[-2:]
    wide = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(wide), k.to(wide)
    base = torch.eye(keys, dtype=wide, device=q.device)
    base = nn.functional.pad(base, (0, -keys % d))
    with without_autocast(q):
        columns = [core(q, k, unit.expand_as(k).contiguous()) for unit in base.split(d, dim=1)]
    return torch.cat(columns, dim=-1)[..., :keys]


def sums_values(core: Core, attention: Attention) -> bool:
    """Return whether a function of (q, k, v) sums values with weights independent of them; the shipped ones do."""
    core = getattr(core, "inner", core)  # of relative positions, which weigh otherwise and sum alike
    if core in ATTENTIONS.values():
        return True
    q, k, v = attention.random_inputs(7)
    core = partial(core, **attention.core_options(7))
    with without_autocast(q):  # independent of the run's precision
        return bool(torch.allclose(weights_of(core, q, k) @ v, core(q, k, v), rtol=1e-3, atol=1e-4))


def shows_queries(attention: Any) -> bool:
    """Return whether queries and keys are known: of attentions of this suite and timm's, but not a user's module."""
    return isinstance(attention, Attention) or type(attention) in (TimmAttention, VoloAttention)


def queries_and_keys(attention: Any, qkv: Tensor) -> tuple[Tensor, Tensor]:
    """Return q and k as the scores take them, of the projection [B, ..., 3 heads d] of an attention that shows them."""
    q, k, _ = qkv.flatten(1, -2).unflatten(2, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    if hasattr(attention, "q_norm"):
        q, k = attention.q_norm(q), attention.k_norm(k)
    return q, k


def attention_weights(attention: Any, x: Tensor, image_tokens: int | None = None) -> Tensor:
    """Return the weights of an attention of this suite or of timm for tokens [B, N, D] or a map [B, h, w, D], by its
    projection of q and k.
    """
    x = x.flatten(1, -2)
    q, k = queries_and_keys(attention, attention.qkv(x))
    if isinstance(attention, Attention):
        return weights_of(partial(attention.core, **attention.core_options(x.shape[1], image_tokens)), q, k)
    with without_autocast(q):
        return (q.float() * attention.scale @ k.float().mT).softmax(-1)


WITH_ATTENTION = ("outlooker", "block", "class attention")
CONVERTED_VALUES = 2**24
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
        tokens, weights, calls = list[Tensor](), list[Tensor](), Counter[str]()

        def show(place: HookPoint, when: str, x: Tensor) -> None:
            name = f"{place.name}{when}"
            calls[name] += 1
            name += "" if calls[name] == 1 else f" (call {calls[name]})"
            shown = place.tokens(x, self.class_token)
            if shown is None:
                kind = "may have its channels first or last" if x.ndim == 4 else "is not a set of tokens"
                self.missing.append(f"{name}: a tensor {list(x.shape)[1:]} for each image {kind}")
                return
            _, tokens_here, channels = shown.shape
            self.layers.append({"place": name, "kind": place.kind, "tokens": tokens_here, "channels": channels})
            tokens.append(in_chunks(statistics.token_statistics, shown))

        def show_weights(name: str, shown: Tensor) -> None:
            self.attentions.append({"place": name, "keys": shown.shape[-1]})
            weights.append(in_chunks(statistics.attention_statistics, shown))

        with ExitStack() as hooks:
            points = find_hook_points(self.backbone)
            for place in points:
                self._watch(place, show, hooks)
            self._watch_attentions([place for place in points if place.kind in WITH_ATTENTION], show_weights, hooks)
            self.backbone(images)
        return torch.cat([*tokens, *weights], dim=1)

    def columns(self, values: Any) -> tuple[list[Any], list[Any]]:
        """Split rows [M, P F + A G] into the fields [M, F] of each place and [M, G] of each attention."""
        split = len(self.layers) * len(statistics.TOKEN_FIELDS)
        places = values[:, :split].reshape(len(values), -1, len(statistics.TOKEN_FIELDS))
        attentions = values[:, split:].reshape(len(values), -1, len(statistics.ATTENTION_FIELDS))
        return [places[:, i] for i in range(places.shape[1])], [attentions[:, i] for i in range(attentions.shape[1])]

    def _watch(self, place: HookPoint, show: Callable[[HookPoint, str, Tensor], None], hooks: ExitStack) -> None:
        after = ""
        if place.kind == "activation":
            after = " after"
            before = place.module.register_forward_pre_hook(lambda _, inputs: show(place, " before", inputs[0]))
            hooks.enter_context(before)
        hooks.enter_context(place.module.register_forward_hook(lambda _, inputs, output: show(place, after, output)))

    def _watch_attentions(self, blocks: list[HookPoint], show: Callable[[str, Tensor], None], hooks: ExitStack) -> None:
        reasons = grouped_by(blocks, lambda block: why_no_attention_weights(getattr(block.module, "attn", None)))
        for block in reasons.pop("", []):
            hooks.enter_context(weights_shown(block.module.attn, partial(show, block.name)))
        for reason, without in reasons.items():
            self.missing.append(f"attention weights of {', '.join(block.name for block in without)}: {reason}")


def why_no_attention_weights(attention: Any) -> str:
    """Return why an attention's weights cannot be computed; empty when they can."""
    if isinstance(attention, UserAttention):
        return "a user's module does not show them"
    if not shows_queries(attention):
        return f"those of {type(attention).__name__} are unknown"
    if isinstance(attention, Attention) and not sums_values(attention.core, attention):
        return "the user's function does not sum values with weights that are independent of them"
    return ""


def in_chunks(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function` of x [B, ...], called with at most `CONVERTED_VALUES` numbers at a time."""
    images = max(CONVERTED_VALUES // max(x[0].numel(), 1), 1)
    return torch.cat([function(chunk) for chunk in x.split(images)])


def spaced_places(images: int, total: int) -> NDArray[Any]:
    """Return the places of `images` images, evenly spaced in a list of `total`."""
    return np.arange(images) * total // images


def observe(
    recorder: Recorder, images: Subset[tuple[Tensor, Tensor]], context: Context, *, batch_size: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], dict[str, Any]]:
    """Return the fields [M, F] of each place and [M, G] of each attention, the same on every rank; and `stem_facts`."""

    def compute(pixels: Tensor, labels: Tensor) -> Tensor:
        size = CPU_BATCH if pixels.device.type == "cpu" else len(pixels)
        return torch.cat([recorder.rows(chunk) for chunk in pixels.split(size)])

    values = compute_rows(compute, images, context, batch_size=batch_size, label="tokens").numpy()
    first = images[0][0][None].to(context.device)
    with torch.inference_mode(), context.scoring():
        recorder.rows(first)  # tells a rank without an image the places, too
        return *recorder.columns(values), stem_facts(recorder.backbone, first)


IMAGES = 64
"""Number of images measured, evenly spaced in the validation split, or in the training split without one."""


def check_hook_points(spec: BackboneSpec, size: int) -> None:
    """Raise UsageError for a backbone whose hook points are not known."""
    find_hook_points(create(spec, img_size=size, weights="random", load="strict"))


class TokenWatch:
    """Measures of the tokens of the same images after some epochs; for `Context.observer`.

    The backbone is the learner's `scored_backbone`, or the one that it trains. Neither weights nor random numbers
    change, so the training is the same as without it.
    """

    def __init__(self, at: Sequence[int], data: ClassificationData, options: Any, context: Context, learner: Learner):
        """Choose the images. Raises UsageError for a learner without a backbone.

        Args:
            at: epochs as in `check_epochs`.
            data: dataset of the training.
            options: options of a pretraining method.
            context: device, ranks and notes of the run.
        """
        self.epochs = {epoch if epoch > 0 else options.last_epoch + 1 + epoch for epoch in at}
        self.batch, self.context = options.eval_batch_size, context
        self.backbone: Any = learner.scored_backbone or trained_backbone(learner, "--tokens-at")
        split = data.val or data.train
        assert split is not None
        if data.val is None:
            context.note(f"{data.name} has no validation split: tokens are measured on training images")
        view = SplitDataset(split, view_of(options), preload=False)
        self.images = Subset(view, spaced_places(min(IMAGES, len(split)), len(split)).tolist())

    def __call__(self, epoch: int) -> dict[str, Any]:
        """Return `layers`, `attention` and `stem` as in the details of task `tokens`, without per-channel values."""
        if epoch + 1 not in self.epochs:
            return {}
        recorder = Recorder(self.backbone.eval(), class_token=True)
        places, attentions, stem = observe(recorder, self.images, self.context, batch_size=self.batch)
        if last := stem["last_activation"]:
            last = _without_channels(last) | {"weights": [*map(_without_channels, last["weights"])]}
        return {
            "layers": statistics.layer_facts(recorder.layers, places),
            "attention": statistics.attention_facts(recorder.attentions, attentions),
            "stem": {"norms": stem["norms"], "last_activation": last},
        }


def _without_channels(facts: dict[str, Any]) -> dict[str, Any]:
    """Return facts without the lists that have a value for each channel."""
    return {name: value for name, value in facts.items() if not isinstance(value, list)}


def trained_backbone(learner: Learner, flag: str) -> Backbone:
    """Return the backbone that a learner trains; of student and teacher, the student's. Raises UsageError."""
    averages = {*chain.from_iterable(average.modules() for average, _ in learner.averages())}
    backbones = (part for part in learner.modules() if isinstance(part, Backbone) and part not in averages)
    if (backbone := next(backbones, None)) is None:
        raise UsageError(f"{flag}: {type(learner).__name__} trains no backbone; leave it out")
    return backbone


class BlockWatch:
    """Measures the largest attention logit and the gradient norm of each block in a training step (`--watch blocks`).

    The blocks are those of `trained_backbone`. Training can diverge where the logits grow (ViT-22B, arXiv 2302.05442).
    qkv is [B, ..., 3 heads d].

    Raises:
        UsageError: there is no such backbone, or its blocks are not known.
    """

    def __init__(self, learner: Learner) -> None:
        backbone = trained_backbone(learner, "--watch blocks")
        with errors_naming("--watch blocks"):
            points = find_hook_points(backbone)
        self.blocks = {point.name: point.module for point in points if point.kind in WITH_ATTENTION}
        self.logits: dict[str, Tensor] = {}

    @contextmanager
    def forward_passes(self) -> Iterator[None]:
        """Keep the largest logits of all forward passes within, those of activation checkpointing included."""
        self.logits.clear()

        def keep(name: str, attention: Any, qkv: nn.Module, inputs: Any, output: Tensor) -> None:
            largest = largest_logit(attention, output)
            self.logits[name] = torch.maximum(largest, self.logits.get(name, largest))

        with ExitStack() as hooks:
            for name, block in self.blocks.items():
                attention: Any = getattr(block, "attn", None)
                # a rank with a share of the tokens lacks the other ranks' keys
                if shows_queries(attention) and getattr(attention, "shards", None) is None:
                    hooks.enter_context(attention.qkv.register_forward_hook(partial(keep, name, attention)))
            yield

    def values(self) -> dict[str, Tensor]:
        """Return both scalars of each block after the backward pass, the maxima over ranks; nan where there is none."""
        values: dict[str, Tensor] = {}
        for name, block in self.blocks.items():
            missing = torch.full((), math.nan, device=next(block.parameters()).device)
            gradients = [parameter.grad for parameter in block.parameters() if parameter.grad is not None]
            norm = nn.utils.get_total_norm(gradients, foreach=True) if gradients else missing
            values[f"max_attention_logit/{name}"] = self.logits.get(name, missing)
            values[f"grad_norm/{name}"] = norm
        return dict(zip(values, dist.max_over_ranks(torch.stack([*values.values()]))))


@torch.no_grad()
def largest_logit(attention: Any, qkv: Tensor) -> Tensor:
    """Return the maximum of |scale * q k^T| over images, heads, queries and keys, in float32, one head at a time."""
    q, k = queries_and_keys(attention, qkv)
    with without_autocast(q):
        heads = zip(q.float().unbind(1), k.float().unbind(1))
        extremes = [torch.stack(torch.aminmax(queries @ keys.mT)) for queries, keys in heads]
    return torch.stack(extremes).abs().amax() * attention.scale
