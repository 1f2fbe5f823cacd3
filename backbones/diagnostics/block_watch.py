"""Largest attention logit and gradient norm of each block in a training step (`--watch blocks`).

Training can diverge where the logits grow (ViT-22B, arXiv 2302.05442). Shapes: B images, N queries, L keys, d =
head_dim; q and k are [B, heads, N or L, d], qkv is [B, ..., 3 heads d].
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backbones.backbone import Backbone
from backbones.diagnostics.hook_points import find_hook_points
from backbones.diagnostics.recorder import WITH_ATTENTION, queries_and_keys, shows_queries
from backbones.kernels.functions import without_autocast
from transfer.core.errors import UsageError, errors_naming
from transfer.engine import dist
from transfer.engine.learner import Learner


class BlockWatch:
    """Watches the blocks of the backbone that a learner trains; of student and teacher, the student's.

    Raises:
        UsageError: there is no such backbone, or its blocks are not known.
    """

    def __init__(self, learner: Learner) -> None:
        averages = {part for average, _ in learner.averages() for part in average.modules()}
        trained = (part for part in learner.modules() if isinstance(part, Backbone) and part not in averages)
        with errors_naming("--watch blocks"):
            if (backbone := next(trained, None)) is None:
                raise UsageError(f"{type(learner).__name__} trains no backbone; leave it out")
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
