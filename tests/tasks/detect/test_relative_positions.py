"""Relative positions with every attention, against the formula written out."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from backbones.attention import ATTENTIONS
from backbones.backbone import create
from backbones.kernels import operator
from backbones.kernels.functions import SCORE_FUNCTIONS
from tasks.detect.feature_maps import MapOptions, RelativePositions, VitMaps
from transfer.core.errors import UsageError

GRID = (5, 4)


def inputs(dtype: torch.dtype, d: int = 8, grid: tuple[int, int] = GRID) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = grid[0] * grid[1]
    found = [torch.randn(2, 3, tokens, d, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [x.to(dtype).requires_grad_() for x in found]


def a_core(name: str, dtype: torch.dtype, d: int = 8, grid: tuple[int, int] = GRID) -> RelativePositions:
    core = RelativePositions(ATTENTIONS[name], d, grid).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for table in (core.rel_pos_h, core.rel_pos_w):
        nn.init.normal_(table, 0, 0.5, generator=generator)
    return core


def written_out(
    core: RelativePositions, q: Tensor, k: Tensor, v: Tensor, name: str, alpha: float | Tensor, length: int
) -> Tensor:
    """The scores of every pair of tokens, one by one; then the weights, and the sums."""
    h, w = core.grid
    rows = torch.stack([core.rel_pos_h[i // w - j // w + h - 1] for i in range(h * w) for j in range(h * w)])
    columns = torch.stack([core.rel_pos_w[i % w - j % w + w - 1] for i in range(h * w) for j in range(h * w)])
    placed = (rows + columns).unflatten(0, (h * w, h * w))  # [N, N, d]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + torch.einsum("bnid,ijd->bnij", q, placed)
    if name == "softmax":
        return scores.softmax(-1) @ v
    weights = SCORE_FUNCTIONS[name.removesuffix("_sum")](scores)
    if name.endswith("_sum"):
        return weights / weights.abs().sum(-1, keepdim=True) @ v
    return float(length) ** -alpha * (weights @ v)


@pytest.fixture(params=["few", "blocks"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """torch's own operations, as for few scores, or the operator's blocks."""
    if request.param == "blocks":
        monkeypatch.setattr("backbones.kernels.functions._prefers_torch_operations", lambda *_: False)
    return str(request.param)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["softmax", *SCORE_FUNCTIONS, "relu_sum"])
def test_values_and_gradients_are_those_of_the_formula(name: str, dtype: torch.dtype, path: str) -> None:
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-11}
    core, exact = a_core(name, dtype), a_core(name, torch.float64)
    exact.load_state_dict(core.state_dict())
    ours, theirs = inputs(dtype), [x.detach().double().requires_grad_() for x in inputs(dtype)]
    alphas = [torch.tensor(0.8, dtype=one, requires_grad=True) for one in (dtype, torch.float64)]
    out = core(*ours, alpha=alphas[0], length=7)
    expected = written_out(exact, *theirs, name, alphas[1], 7)
    torch.testing.assert_close(out.double(), expected, **close)
    learned = [[*ours, *core.parameters()], [*theirs, *exact.parameters()]]
    if name in SCORE_FUNCTIONS:
        learned = [[*one, alpha] for one, alpha in zip(learned, alphas, strict=True)]
    towards = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    found, wanted = (
        torch.autograd.grad((one.double() * towards).sum(), parameters)
        for one, parameters in zip((out, expected), learned, strict=True)
    )
    for mine, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-4 if dtype == torch.float32 else 1e-9, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_kernels_give_what_blocks_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys of 8 + 5 + 4 filled up to 32 beside values of 32, in Triton's interpreter."""
    pytest.importorskip("triton")
    from backbones.kernels import fused

    monkeypatch.setattr(fused, "TILES", dict.fromkeys(fused.TILES, (fused.Tile(16, 16, 4, 1),)))
    monkeypatch.setattr("backbones.kernels.functions._prefers_torch_operations", lambda *_: False)
    grid, d = (3, 6), 32
    core = a_core(name, torch.float32, d, grid)
    found: list[list[Tensor]] = []
    for kernels in (fused, None):
        monkeypatch.setattr(operator, "_kernels_for", lambda *_, kernels=kernels: kernels)
        monkeypatch.setattr("tasks.detect.feature_maps.padded_width", lambda q, width, on=kernels: 64 if on else width)
        tensors = inputs(torch.float32, d, grid)
        out = core(*tensors, alpha=1.0, length=None)
        found.append([out, *torch.autograd.grad(out.tanh().sum(), [*tensors, *core.parameters()])])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


USERS = """
import torch

def fixed(q, k, v):
    return torch.tanh(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5) @ v

def scaled(q, k, v, scale=None):
    return torch.tanh(q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)) @ v

class Whole(torch.nn.Module):
    def __init__(self, dim, heads, scale=1.0):
        super().__init__()

    def forward(self, x):
        return x
"""


def test_a_users_function_that_takes_the_scale_has_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USERS)
    options = MapOptions(out_indices=(-1,), window=2, global_blocks=(1,), relative=True, grid=(4, 4))
    given = {"weights": "random", "attention": f"{tmp_path}/mine.py:scaled"}
    maps = VitMaps(create("tiny", **given), options).eval()
    core = maps.backbone.model.blocks[0].attn.core
    nn.init.normal_(core.rel_pos_h)
    core.grid = core.size = (2, 2)
    q, k, v = inputs(torch.float32, 32, (2, 2))
    w, i = 2, torch.arange(4)
    placed = core.rel_pos_h[i[:, None] // w - i // w + 1] + core.rel_pos_w[i[:, None] % w - i % w + 1]
    scores = q @ k.mT / 32**0.5 + torch.einsum("bnid,ijd->bnij", q, placed)
    torch.testing.assert_close(core(q, k, v), scores.tanh() @ v, rtol=1e-5, atol=1e-5)
    for name in ("fixed", "Whole"):
        with pytest.raises(UsageError, match="relative positions need an attention of this suite"):
            VitMaps(create("tiny", weights="random", attention=f"{tmp_path}/mine.py:{name}"), options)
