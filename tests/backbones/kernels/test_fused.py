"""The Triton kernels: in Triton's interpreter on a CPU, compiled where there is a GPU."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from backbones.kernels import blocked, operator
from tests.backbones.test_attention import SCALAR, by_loops

pytest.importorskip("triton")
from backbones.kernels import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter multiplies bfloat16 wrongly, and without a word
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles to few tokens; on a GPU those that users get."""
    if DEVICE == "cpu":
        monkeypatch.setattr(fused, "TILES", dict.fromkeys(fused.TILES, (fused.Tile(16, 16, 4, 1),)))


def inputs(queries: int, keys: int, d: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(queries)
    sizes = [(1, 2, n, d) for n in (queries, keys, keys, queries)]
    return [torch.randn(size, generator=generator).to(DEVICE, dtype) for size in sizes]


def close(ours: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    return bool((ours.double().cpu() - exact).norm() <= TOLERANCE[dtype] * exact.norm())


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("h", SCALAR)
def test_forward_equals_the_double_loop(h: str, dtype: torch.dtype) -> None:
    q, k, v, _ = inputs(21, 37, 32, dtype)
    exact = by_loops(*(x.double().cpu() for x in (q, k, v)), lambda row: [0.3 * SCALAR[h](s) for s in row])
    out = fused.forward(q, k, v, h, 0.3)
    assert out.dtype == dtype
    assert close(out, exact, dtype)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("h", SCALAR)
def test_gradients_are_those_of_the_plain_path(h: str, dtype: torch.dtype) -> None:
    """Which `test_operator.py` checks against finite differences."""
    q, k, v, grad = inputs(21, 37, 32, dtype)
    exact = blocked.backward(*(x.double().cpu().flatten(0, 1) for x in (grad, q, k, v)), h, 0.3)
    for ours, theirs in zip(fused.backward(grad, q, k, v, h, 0.3), exact):
        assert ours.dtype == dtype
        assert close(ours, theirs.view(ours.shape), dtype)


@pytest.mark.usefixtures("small_tiles")
def test_strides_and_what_is_not_finite() -> None:
    packed = torch.randn(2, 19, 3, 2, 32, device=DEVICE)  # images, tokens, q k v, heads, head_dim: as a projection's
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    across = q.transpose(2, 3).contiguous().transpose(2, 3)
    for h in blocked.SCORE_FUNCTIONS:
        out = fused.forward(q, k, v, h, 0.5)
        assert torch.equal(fused.forward(across, k, v, h, 0.5), out)
        assert out.transpose(1, 2).is_contiguous()
    spoilt = k.clone()
    spoilt[0, 1, 18, 3] = -float("nan")
    for h in blocked.SCORE_FUNCTIONS:
        assert fused.forward(q, spoilt, v, h, 0.5).isnan().all((2, 3)).tolist() == [[False, True], [False, False]]


def test_what_the_kernels_do_not_take_is_said_once() -> None:
    operator._warn_once.cache_clear()

    def chosen(d: int, dtype: torch.dtype, device: str = "cuda") -> Any:
        return operator._kernels(SimpleNamespace(device=torch.device(device), shape=(1, 1, 1, d), dtype=dtype))

    calls = [(80, torch.bfloat16), (80, torch.bfloat16), (64, torch.bfloat16), (80, torch.float64, "cpu")]
    with pytest.warns(UserWarning, match="heads of 80 in bfloat16 runs as blocks") as said:
        found = [chosen(*call) for call in calls]
    assert (found, len(said)) == ([None, None, fused, None], 1)
    with pytest.warns(UserWarning, match="heads of 64 in float64"):
        assert chosen(64, torch.float64) is None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "head_dim", "hs"),
    [("bf16", "64", tuple(SCALAR)), ("bf16", "128x64", ("relu",)), ("fp32", "128", ("relu",))],
)
def test_translated_for_a_gpu_that_is_not_here(kind: str, head_dim: str, hs: tuple[str, ...]) -> None:
    """For compute capability 9.0: matrix units of that generation are used, and no register is spilled to memory."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backbones.kernels.translate", "90", head_dim, kind, *hs]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 3 * len(hs)
    for what in found:
        assert what["wgmma"] or kind == "fp32", what
        assert what["spilled_bytes"] == 0, what
        assert what["shared_bytes"] <= 227 * 1024, what
