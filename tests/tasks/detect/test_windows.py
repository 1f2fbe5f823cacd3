"""Windows that end behind the image: what their own tokens give, and nothing else."""

import pytest
import torch
from torch import Tensor, nn

from backbones.attention import Attention, make_attention
from backbones.backbone import create
from tasks.detect.feature_maps import MapOptions, RelativePositions, VitMaps

DIM, HEADS, SIZE = 16, 2, 3
GRID = (5, 7)
TRAIN = 11


def attend(attention: nn.Module, x: Tensor, size: int, padding: str = "masked") -> Tensor:
    options = MapOptions(out_indices=(-1,), window=size, global_blocks=(), padding=padding)  # type: ignore[arg-type]
    maps = VitMaps(create("tiny", weights="random", depth=1), options)
    with torch.no_grad():
        return maps._attend(attention, x, size)


def an_attention(name: str = "softmax", **given) -> Attention:
    torch.manual_seed(0)
    attention = make_attention(name, DIM, HEADS, train_tokens=TRAIN, **given)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    return attention.eval()


def stated(attention: Attention, x: Tensor, name: str, image: int) -> Tensor:
    """The tokens [N, D] of one window, in float64, by the formula. `image`: tokens of the whole image."""
    weights = {key: value.double() for key, value in attention.state_dict().items()}
    q, k, v = (x @ weights["qkv.weight"].T + weights["qkv.bias"]).view(len(x), 3, HEADS, -1).permute(1, 2, 0, 3)
    if "q_norm.weight" in weights:
        q, k = (
            (one - one.mean(-1, keepdim=True)) / (one.var(-1, correction=0, keepdim=True) + 1e-6).sqrt() * weights[norm]
            for one, norm in ((q, "q_norm.weight"), (k, "k_norm.weight"))
        )
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if name == "softmax":
        mixed = scores.softmax(-1)
    elif name == "relu_sum":
        mixed = scores.relu() / scores.relu().sum(-1, keepdim=True).clamp_min(1e-30)
    else:
        length = {"tokens": len(x), "image": image, "train": TRAIN}[attention.length]
        alpha = weights.get("alpha", attention.alpha)
        mixed = scores.relu() * length**-alpha
    out = (mixed @ v).transpose(0, 1).reshape(len(x), -1)
    if "gate.weight" in weights:
        out = out * (x @ weights["gate.weight"].T + weights["gate.bias"]).sigmoid()
    return out @ weights["proj.weight"].T + weights["proj.bias"]


def by_window(x: Tensor, size: int, of_window) -> Tensor:
    """[B, h, w, D]: a function of the tokens [N, D] that each window has, and of its (h, w), put back in place."""
    out = torch.empty(x.shape, dtype=torch.float64)
    for image in range(len(x)):
        for top in range(0, x.shape[1], size):
            for left in range(0, x.shape[2], size):
                part = x[image, top : top + size, left : left + size].double()
                found = of_window(part.flatten(0, 1), part.shape[:2])
                out[image, top : top + size, left : left + size] = found.view(part.shape)
    return out


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("softmax", {}),
        ("softmax", {"qk_norm": True, "gate": "sigmoid"}),
        ("relu", {}),
        ("relu", {"length": "image"}),
        ("relu", {"length": "train"}),
        ("relu", {"alpha": "learned", "qk_norm": True}),
        ("relu_sum", {}),
    ],
)
@pytest.mark.parametrize("grid", [GRID, (2, 2)])
def test_every_window_gives_what_its_tokens_alone_give(name: str, given: dict[str, object], grid) -> None:
    attention = an_attention(name, **given)
    x = torch.randn(2, *grid, DIM)
    expected = by_window(x, SIZE, lambda tokens, _: stated(attention, tokens, name, grid[0] * grid[1]))
    torch.testing.assert_close(attend(attention, x, SIZE).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grid", [GRID, (2, 2)])
def test_relative_positions_of_a_window_that_ends_early_are_those_of_a_full_one(grid) -> None:
    attention = an_attention()
    attention.core = core = RelativePositions(attention.core, DIM // HEADS, (SIZE, SIZE))
    for table in (core.rel_pos_h, core.rel_pos_w):
        nn.init.normal_(table)
    x = torch.randn(2, *grid, DIM)

    def of_window(tokens: Tensor, shape: tuple[int, int]) -> Tensor:
        weights = {key: value.double() for key, value in attention.state_dict().items()}
        q, k, v = (tokens @ weights["qkv.weight"].T + weights["qkv.bias"]).view(len(tokens), 3, HEADS, -1).unbind(1)
        row, column = (torch.arange(len(tokens)) // shape[1], torch.arange(len(tokens)) % shape[1])
        apart = [place[:, None] - place + SIZE - 1 for place in (row, column)]
        placed = core.rel_pos_h[apart[0]].double() + core.rel_pos_w[apart[1]].double()
        scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5 + torch.einsum("ihd,ijd->hij", q, placed)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
        return out.flatten(1) @ weights["proj.weight"].T + weights["proj.bias"]

    with torch.no_grad():
        expected = by_window(x, SIZE, of_window)
    torch.testing.assert_close(attend(attention, x, SIZE).double(), expected, rtol=1e-5, atol=1e-5)
