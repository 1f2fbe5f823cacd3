"""Feed-forward networks of a block, as in Table 5 and Algorithm 2 of "Scaled ReLU Matters" (arXiv 2109.03810).

Shapes: B images, N tokens, D channels, F hidden channels.
"""

from collections.abc import Callable
from functools import partial

from timm.layers import GELUTanh, Mlp
from torch import Tensor, nn

from backbones.initialisation import make_users
from transfer.core import user_code


class ConvFFN(nn.Module):
    """Maps [B, ..., D] to the same by two convolutions of width 1 over the tokens, each with (BN1d and) GELU (Algorithm
    2).

    Unlike in the MLP an activation follows the second one too. The printed algorithm is that with BN; the variant
    without is read as the same less the two norms. BN statistics run over all B * N tokens, the class token included.
    """

    def __init__(self, dim: int, hidden: int, *, norm: bool) -> None:
        super().__init__()
        # torch's initialisation of convolutions: DeiT's covers linear layers only
        self.conv1 = nn.Conv1d(dim, hidden, 1)
        self.norm1 = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.conv2 = nn.Conv1d(hidden, dim, 1)
        self.norm2 = nn.BatchNorm1d(dim) if norm else nn.Identity()
        self.act = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x.flatten(1, -2).transpose(1, 2)
        x = self.act(self.norm1(self.conv1(x)))
        x = self.act(self.norm2(self.conv2(x)))
        return x.transpose(1, 2).reshape(shape)


FFNS: dict[str, Callable[[int, int], nn.Module]] = {
    "mlp": Mlp,
    "mlp_tanh": partial(Mlp, act_layer=GELUTanh),  # flax's GELU, so big_vision's
    "relu": partial(Mlp, act_layer=nn.ReLU),
    "conv1d_bn": partial(ConvFFN, norm=True),
    "conv1d": partial(ConvFFN, norm=False),
    "no_norm": Mlp,  # the LayerNorm in front is left out
}
WITHOUT_NORM = ("no_norm",)


def make_ffn(name: str, dim: int, hidden: int) -> nn.Module:
    """Return the FFN of one block: an entry of `FFNS`, or a user's class `file.py:Name`, called with (dim, hidden)."""
    user_code.check_name("ffn", name)
    if not user_code.is_user_part(name):
        return FFNS[name](dim, hidden)
    return make_users("ffn", name, dim, hidden)
