"""The Triton kernels: in Triton's interpreter on a CPU, compiled where there is a GPU."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from backbones.kernels import blocked, operator

pytest.importorskip("triton")
from backbones.kernels import fused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter multiplies bfloat16 wrongly, and without a word
DTYPES = [pytest.param(torch.float32), pytest.param(torch.float16), pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
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


CASES = [pytest.param(h, 32, *dtype.values, marks=dtype.marks) for h in blocked.BUFFERED_FUNCTIONS for dtype in DTYPES]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("h", "d", "dtype"), [*CASES, ("relu", 256, torch.float32)], ids=str)
def test_values_and_gradients_are_those_of_the_plain_path(h: str, d: int, dtype: torch.dtype) -> None:
    """Which `test_operator.py` checks against formula and finite differences.

    Keys of 256 stand beside values of 64, as heads of 64 with the relative positions of 64 rows and columns have them.
    """
    (q, k, *_), (*_, v, grad) = inputs(21, 37, d, dtype), inputs(21, 37, min(d, 64), dtype)
    exact = [x.double().cpu().flatten(0, 1) for x in (q, k, v, grad)]
    scaled = (h, 0.3, d**-0.5)
    found = [fused.forward(q, k, v, *scaled), *fused.backward(grad, q, k, v, *scaled)]
    theirs = [blocked.forward(*exact[:3], *scaled), *blocked.backward(exact[3], *exact[:3], *scaled)]
    for ours, other in zip(found, theirs):
        assert ours.dtype == dtype
        assert close(ours, other.view(ours.shape), dtype)


@pytest.mark.usefixtures("small_tiles")
def test_strides_and_what_is_not_finite() -> None:
    packed = torch.randn(2, 19, 3, 2, 32, device=DEVICE)  # images, tokens, q k v, heads, head_dim: as a projection's
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    across = q.transpose(2, 3).contiguous().transpose(2, 3)
    for h in blocked.BUFFERED_FUNCTIONS:
        out = fused.forward(q, k, v, h, 0.5, 0.2)
        assert torch.equal(fused.forward(across, k, v, h, 0.5, 0.2), out)
        assert out.transpose(1, 2).is_contiguous()
    spoilt = k.clone()
    spoilt[0, 1, 18, 3] = -float("nan")
    for h in blocked.BUFFERED_FUNCTIONS:
        assert fused.forward(q, spoilt, v, h, 0.5, 0.2).isnan().all((2, 3)).tolist() == [[False, True], [False, False]]


def chosen(d: int, dtype: torch.dtype, device: str = "cuda") -> Any:
    return operator._kernels_for(SimpleNamespace(device=torch.device(device), shape=(1, 1, 1, d), dtype=dtype))


@pytest.mark.parametrize(
    ("capability", "fault", "d", "dtype", "said"),
    [
        ((8, 0), None, 80, torch.bfloat16, "heads of 80 in bfloat16; the fused kernels take 32, 64, 128, 256 in"),
        ((8, 0), None, 64, torch.float64, "heads of 64 in float64"),
        ((7, 5), None, 64, torch.float16, "need compute capability 8.0; this GPU has 7.5"),
        ((8, 0), RuntimeError("Failed to find C compiler"), 64, torch.float16, r"\(RuntimeError: Failed to find C"),
    ],
)
def test_why_the_kernels_do_not_run_is_said(capability, fault, d, dtype, said, monkeypatch) -> None:
    operator._fused.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(fused, "compile_one", Mock(side_effect=fault))
    with pytest.warns(UserWarning, match=f"runs as blocks of matrix products: .*{said}"):
        assert chosen(d, dtype) is None
    on_gpu = SimpleNamespace(device=torch.device("cuda"))
    assert operator.padded_width(on_gpu, 192) == (256 if said.startswith("heads") else 192)
    operator._fused.cache_clear()


@pytest.mark.nightly
def test_translated_for_a_gpu_that_is_not_here() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.backbones.kernels.translate"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
