"""The operator as torch sees it: gradients, compilation, checkpointing, autocast, operations, odd inputs."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from backbones.kernels import blocked
from backbones.kernels.functions import SCORE_FUNCTIONS, normalised_pointwise, pointwise
from backbones.kernels.operator import attend


def qkv(queries: int = 5, keys: int = 7, d: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 3, n, d) for n in (queries, keys, keys))
    return [torch.randn(size, generator=generator, dtype=dtype).requires_grad_() for size in sizes]


def plain(q: Tensor, k: Tensor, v: Tensor, h: str, factor: float) -> Tensor:
    return factor * SCORE_FUNCTIONS[h](q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])) @ v


@pytest.fixture(params=[None, 64], ids=["at once", "in blocks"])
def height(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Rows of a block: so few that several are needed, or all."""
    if request.param:
        monkeypatch.setattr(blocked, "_MINIMUM_ROWS", 2)
        monkeypatch.setitem(blocked.BUDGET, "cpu", request.param)
    return request.param


@pytest.mark.parametrize("h", blocked.BUFFERED_FUNCTIONS)
def test_value_and_gradients(h: str, height: int | None) -> None:
    tensors = qkv()
    torch.testing.assert_close(attend(*tensors, h, 0.3, 0.5), plain(*tensors, h, 0.3))
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, h, 0.3, 0.5), tensors)


def test_blocks_hold_no_more_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.zeros(6, 300, 8), torch.zeros(6, 200, 8)
    for budget in (2**10, 2**16, 2**18, 2**20):
        monkeypatch.setitem(blocked.BUDGET, "cpu", budget)
        for buffers in (1, 2, 3):
            seen = torch.zeros(6, 300)
            for some, rows, found in blocked._blocks(q, k, buffers):
                seen[some, rows] += 1
                assert len(found) == buffers
                assert found[0].shape == (*seen[some, rows].shape, 200)
                least = 4 * 200 * 64 * buffers  # rows that are worth a matrix product
                assert sum(buffer.numel() * 4 for buffer in found) <= max(budget, least)
            assert (seen == 1).all()


def large_scores(dtype: torch.dtype, heads: int = 2) -> list[Tensor]:
    """Scores of about 400 over 256 keys: their squares are beyond float16, the mean of these is not."""
    generator = torch.Generator().manual_seed(0)
    q, k = (10 + torch.randn(1, heads, n, 32, generator=generator) for n in (8, 256))
    v = 0.1 * torch.randn(1, heads, 256, 32, generator=generator) + 0.1
    return [x.to(dtype).requires_grad_() for x in (q * 0.7, k, v)]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("attention", [pointwise, normalised_pointwise])
def test_a_square_of_float16_does_not_overflow(few: bool, attention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backbones.kernels.functions._prefers_torch_operations", lambda *_: few)
    tensors = large_scores(torch.float16)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    squares = F.relu(exact[0] @ exact[1].mT / math.sqrt(32)).square()
    assert squares.max() > 65504
    total = squares.sum(-1, keepdim=True) if attention is normalised_pointwise else 256
    expected = squares / total @ exact[2]
    found = attention(*tensors, h="relu2")
    assert found.dtype == torch.float16
    largest = 10.0 if attention is normalised_pointwise else 0.1  # as the scaler has it: gradients within float16
    weights = torch.linspace(0, largest, found.numel(), dtype=torch.float64).view(found.shape)
    ours = torch.autograd.grad((found.double() * weights).sum(), tensors)
    theirs = torch.autograd.grad((expected * weights).sum(), exact)
    assert all(grad.isfinite().all() for grad in ours)
    if attention is normalised_pointwise:  # weights so alike that those of q and k are differences of equal numbers
        ours, theirs = ours[2:], theirs[2:]
    for a, b in zip((found, *ours), (expected, *theirs)):
        assert (a.double() - b).norm() < 0.01 * b.norm()


@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
def test_no_tokens_give_zeros(queries: int, keys: int) -> None:
    tensors = qkv(queries, keys)
    out = attend(*tensors, "sigmoid", 1.0, 0.5)
    assert out.shape == (2, 3, queries, 4)
    assert not any(x.any() for x in (out, *torch.autograd.grad(out.sum(), tensors)))


def test_values_of_another_width_and_a_scale(height: int | None) -> None:
    q, k, v = qkv()
    v = torch.cat([v, 2 * v], dim=-1)[..., :6].detach().requires_grad_()
    found = attend(q, k, v, "sigmoid", 0.3, 0.7)
    torch.testing.assert_close(found, 0.3 * torch.sigmoid(0.7 * q @ k.mT) @ v)
    assert torch.autograd.gradcheck(lambda q, k, v: attend(q, k, v, "gelu", 0.3, 0.7), (q, k, v))
    single = [x.detach().float().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(attend, (*single, "relu", 0.5, 1.0))
    with FlopCounterMode(display=False) as forward:
        attend(*single, "relu", 1.0, 1.0)
    assert forward.get_total_flops() == 2 * 2 * 3 * 5 * 7 * (4 + 6)


@pytest.mark.nightly
def test_compiled() -> None:
    tensors = qkv(33, 33, 8, torch.float32)

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (attend(q * 2, k, v, "relu", 0.5, 0.25) + 1).transpose(1, 2).flatten(2)

    outs = block(*tensors), torch.compile(block, fullgraph=True, backend="aot_eager")(*tensors)
    plain, compiled = ((out, *torch.autograd.grad(out.square().sum(), tensors)) for out in outs)
    torch.testing.assert_close(compiled, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_learned_exponent_gets_the_gradient_of_float64(size: float, dtype: torch.dtype) -> None:
    """A sum over all outputs, beyond float16 at `size` 1e4, where none of its terms is."""
    q, k, v = (torch.randn(4, 2, 64, 32, generator=torch.Generator().manual_seed(n)).to(dtype) for n in range(3))
    grads = []
    for kind in (dtype, torch.float64):
        alpha = torch.tensor(0.9, dtype=torch.float32 if kind == dtype else kind, requires_grad=True)
        out = pointwise(q.to(kind), k.to(kind), v.to(kind), h="relu", alpha=alpha)
        weights = size * torch.sign(pointwise(q.double(), k.double(), v.double(), h="relu"))
        (out.double() * weights).sum().backward()
        grads.append(float(alpha.grad))
    assert (abs(grads[1]) > 65504) == (size > 1)
    assert grads[0] == pytest.approx(grads[1], rel=torch.finfo(dtype).eps / 4)
