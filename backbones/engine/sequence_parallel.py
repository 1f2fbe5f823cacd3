"""Has the blocks of a plain ViT share the tokens of an image over ranks; see `backbones.token_shards` for how."""

from typing import Any

from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbones.attention import Attention
from backbones.errors import UsageError
from backbones.token_shards import Shards


def share_tokens(model: nn.Module, shards: Shards) -> None:
    """Make the blocks of a plain ViT work on their rank's tokens while it trains; in evaluation each rank has all
    tokens.

    Raises:
        UsageError: blocks that mix tokens outside this suite's attention.
    """
    blocks = attach_shards(model, shards)

    def split(block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (shards.split(inputs[0]), *inputs[1:]) if block.training else inputs

    def join(block: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        return output if shards.tokens is None else shards.join(output)

    blocks[0].register_forward_pre_hook(split)
    blocks[-1].register_forward_hook(join)


def attach_shards(model: nn.Module, shards: Shards) -> list[Any]:
    """Give the ranks to the attention of a plain ViT and return its blocks. Raises as `share_tokens` does."""
    blocks: list[Any] = list(model.blocks) if isinstance(model, VisionTransformer) else []
    if not blocks or not all(isinstance(block.attn, Attention) for block in blocks):
        raise UsageError("--sequence-parallel: only plain ViTs whose attention is of this suite share their tokens")
    for block in blocks:
        if any(isinstance(part, _BatchNorm) for part in block.modules()):
            raise UsageError("--sequence-parallel: a batch norm within the blocks would see this rank's tokens alone")
        shards.distribute(block.attn.core)
        block.attn.shards = shards
    return blocks
