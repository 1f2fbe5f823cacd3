"""The Triton kernels: in Triton's interpreter on a CPU, compiled where there is a GPU."""

import json
import os
import subprocess
import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from backbones.attention import pointwise
from backbones.backbone import create
from backbones.kernels import blocked, operator
from tests.backbones.kernels.test_operator import large_scores
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
def test_a_square_of_float16_does_not_overflow() -> None:
    q, k, v = (x.detach().to(DEVICE) for x in large_scores(torch.float16, heads=1))
    grad = torch.full_like(q, 0.01)
    flat = [x.double().cpu().flatten(0, 1) for x in (grad, q, k, v)]
    expected = (blocked.forward(*flat[1:], "relu2", 1 / 256), *blocked.backward(*flat, "relu2", 1 / 256))
    found = (fused.forward(q, k, v, "relu2", 1 / 256), *fused.backward(grad, q, k, v, "relu2", 1 / 256))
    for ours, theirs in zip(found, expected):
        assert close(ours, theirs.view(ours.shape), torch.float16)


@pytest.mark.parametrize("d", fused.HEAD_DIMS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (64, 64), (130, 70), (37, 197)])
def test_sizes_with_the_tiles_that_users_get(queries: int, keys: int, d: int) -> None:
    q, k, v, grad = inputs(queries, keys, d, torch.float16)
    flat = [x.double().cpu().flatten(0, 1) for x in (q, k, v, grad)]
    assert close(fused.forward(q, k, v, "sigmoid", 0.1), blocked.forward(*flat[:3], "sigmoid", 0.1)[None], q.dtype)
    exact = blocked.backward(flat[3], *flat[:3], "sigmoid", 0.1)
    for ours, theirs in zip(fused.backward(grad, q, k, v, "sigmoid", 0.1), exact):
        assert close(ours, theirs[None], q.dtype)


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


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels wherever the operator runs."""
    monkeypatch.setattr(operator, "_kernels", lambda q: fused)
    monkeypatch.setattr("backbones.attention_functions._prefers_torch_operations", lambda *_: False)
    return fused


def test_padded_keys_change_nothing(everywhere: ModuleType) -> None:
    q, k, v = (torch.randn(2, 2, 20, 32, device=DEVICE, requires_grad=True) for _ in range(3))
    counts = torch.tensor([20, 13], device=DEVICE)
    padded = [x.detach().clone() for x in (k, v)]
    for x in padded:
        x[1, :, 13:] = float("nan")
        x.requires_grad_()
    out = pointwise(q, *padded, h="sigmoid", key_mask=torch.arange(20, device=DEVICE) < counts[:, None])
    out.sum().backward()
    whole = pointwise(q[:1], k[:1], v[:1], h="sigmoid")
    torch.testing.assert_close(out[:1], whole)
    torch.testing.assert_close(out[1:], pointwise(q[1:], k[1:, :, :13], v[1:, :, :13], h="sigmoid"))
    assert all(not x.grad[1, :, 13:].any() and x.grad[1, :, :13].all() for x in padded if x.grad is not None)


@pytest.mark.parametrize("attention", ["relu", "gelu"])
def test_a_backbone_on_the_kernels(everywhere: ModuleType, monkeypatch: pytest.MonkeyPatch, attention: str) -> None:
    """Features and gradients of a model, as on the plain path up to rounding."""
    images = torch.rand(1, 3, 32, 48, device=DEVICE)
    torch.manual_seed(0)
    model = create("tiny", attention=attention, alpha="learned").to(DEVICE).train()
    found = []
    for kernels in (fused, None):
        monkeypatch.setattr(operator, "_kernels", lambda q, kernels=kernels: kernels)
        features = model.pooled(images)
        grads = torch.autograd.grad(features.tanh().sum(), [p for p in model.parameters() if p.requires_grad])
        found.append([features, *grads])
    for ours, plain in zip(*found):
        torch.testing.assert_close(ours, plain, atol=1e-4, rtol=1e-3)


class OnGpu:
    """What the choice of a kernel looks at."""

    def __init__(self, d: int, dtype: torch.dtype) -> None:
        self.device, self.shape, self.dtype = torch.device("cuda"), (1, 1, 1, d), dtype


def test_what_the_kernels_do_not_take_is_said_once() -> None:
    operator._warn_once.cache_clear()
    assert operator._kernels(OnGpu(64, torch.bfloat16)) is fused
    with pytest.warns(UserWarning, match="heads of 80 in bfloat16 runs as blocks"):
        assert operator._kernels(OnGpu(80, torch.bfloat16)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert operator._kernels(OnGpu(80, torch.bfloat16)) is None
    with pytest.warns(UserWarning, match="heads of 64 in float64"):
        assert operator._kernels(OnGpu(64, torch.float64)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert operator._kernels(torch.zeros(1, 1, 1, 80)) is None  # on a CPU there is nothing to say


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    operator._fused.cache_clear()
    operator._warn_once.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert operator._kernels(OnGpu(64, torch.bfloat16)) is None
    operator._fused.cache_clear()


def test_a_tile_that_has_no_room_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not tried again; what has no tile at all is an error."""
    from triton.runtime.errors import OutOfResources

    tried: list[int] = []

    class Kernel:
        class fn:
            __name__ = "forward"

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def run(*_: Any, M: int, **__: Any) -> None:
                tried.append(M)
                if M > 32:
                    raise OutOfResources(1, 1, "shared memory")

            return run

    monkeypatch.setattr(fused, "_tiles_too_large", set())
    x = torch.zeros(1, 1, 4, 32)
    for _ in range(2):
        fused._launch(Kernel(), [x, x], 4, 4, "relu", 1.0)
    assert tried == [32] * 2
    tried.clear()
    half = x.half()
    for _ in range(2):
        fused._launch(Kernel(), [half, half], 4, 4, "relu", 1.0)
    assert tried == [128, 64, 64, 32, 32]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "head_dim", "hs"),
    [
        ("bf16", "64", tuple(SCALAR)),
        ("bf16", "128x64", ("relu",)),
        ("fp32", "128", ("relu",)),
    ],
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
