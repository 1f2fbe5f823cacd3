"""Feature maps: windows that end behind the image, and relative positions with every attention, against formulas."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from backbones.attention import ATTENTIONS, Attention, make_attention
from backbones.backbone import create
from backbones.diagnostics.maps import token_maps
from backbones.kernels import operator
from backbones.kernels.functions import SCORE_FUNCTIONS
from tasks.detect.feature_maps import RelativePositions, VitMapOptions, VitMaps, make_maps
from tests.backbones.support import users_file
from transfer.core.errors import UsageError


def backbone(**given):
    torch.manual_seed(0)
    return create("tiny", **{"weights": "random", "depth": 4, **given}).eval()


@pytest.mark.parametrize("given", [{}, {"attention": "relu"}, {"stem": "conv"}])
def test_without_windows_the_maps_are_the_backbones_own(given) -> None:
    images = torch.rand(2, 3, 96, 64)
    expected = backbone(pool="gap", **given).maps(images, [1, 3])
    with torch.no_grad():
        found = make_maps(backbone(pool="gap", **given), VitMapOptions(out_indices=(1, -1)))(images)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_taps_end_with_the_last_block_as_the_export_does() -> None:
    with pytest.raises(UsageError, match="--out-indices 0 2: end with block 3, the last, or take fewer by --depth"):
        make_maps(backbone(), VitMapOptions(out_indices=(0, 2)))


@pytest.mark.parametrize("attention", ["softmax", "relu"])
def test_attention_is_drawn_with_relative_positions_and_not_of_windows(attention: str) -> None:
    images = torch.rand(2, 3, 96, 64)
    plain, relative, windowed = (
        VitMaps(backbone(attention=attention), VitMapOptions(out_indices=(-1,), grid=(4, 4), **given))
        for given in ({}, {"relative": True}, {"relative": True, "window": 2, "global_blocks": (0,)})
    )
    with torch.no_grad():
        expected, same, without = (token_maps(maps.backbone, images, maps) for maps in (plain, relative, windowed))
        torch.nn.init.normal_(relative.backbone.model.blocks[-1].attn.core.rel_pos_h)
        moved = token_maps(relative.backbone, images, relative)
    assert expected["attention"].shape == (2, 6, 4)
    torch.testing.assert_close(same, expected)  # tables begin at zero
    assert not torch.allclose(moved["attention"], expected["attention"], atol=1e-4)
    assert without.keys() == {"similarity"}


def test_the_last_block_of_each_quarter_is_global() -> None:
    maps = VitMaps(backbone(depth=12), VitMapOptions(out_indices=(-1,), window=14))
    assert [number for number, windowed in enumerate(maps.windowed) if not windowed] == [2, 5, 8, 11]
    chosen = VitMaps(backbone(), VitMapOptions(out_indices=(-1,), window=2, global_blocks=(0, -1)))
    assert chosen.windowed == [False, True, True, False]


def test_checkpointing_changes_no_gradient_and_no_running_statistics() -> None:
    images = torch.rand(1, 3, 64, 64)
    gradients = []
    for checkpoint in (False, True):
        options = VitMapOptions(out_indices=(-1,), window=2, global_blocks=(1,), grad_checkpointing=checkpoint)
        maps = make_maps(backbone(ffn="conv1d_bn"), options).train()
        maps(images)[0].square().sum().backward()
        trained = [parameter.grad for parameter in maps.parameters() if parameter.requires_grad]
        gradients.append([*trained, *maps.buffers()])
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two)


DIM, HEADS, SIZE = 16, 2, 3
GRID = (5, 7)
TRAIN = 11


def attend(attention: nn.Module, x: Tensor, size: int, padding: str = "masked") -> Tensor:
    options = VitMapOptions(out_indices=(-1,), window=size, global_blocks=(), padding=padding)  # type: ignore[arg-type]
    maps = VitMaps(create("tiny", weights="random", depth=1), options)
    with torch.no_grad():
        return maps._attend(attention, x, size)


def an_attention(name: str = "softmax", **given) -> Attention:
    torch.manual_seed(0)
    attention = make_attention(name, DIM, HEADS, train_tokens=TRAIN, **given)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    return attention.eval()


@torch.no_grad()
def by_window(x: Tensor, size: int, of_window: Callable[[Tensor, tuple[int, int]], Tensor]) -> Tensor:
    """[B, h, w, D]: a function of the tokens [N, D] that each window has, and of its (h, w), put back in place."""
    out = torch.empty_like(x)
    for image in range(len(x)):
        for top in range(0, x.shape[1], size):
            for left in range(0, x.shape[2], size):
                part = x[image, top : top + size, left : left + size]
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
    expected = by_window(x, SIZE, lambda tokens, _: attention(tokens[None], image_tokens=grid[0] * grid[1])[0])
    torch.testing.assert_close(attend(attention, x, SIZE), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grid", [GRID, (2, 2)])
def test_relative_positions_of_a_window_that_ends_early_are_those_of_a_full_one(grid) -> None:
    attention = an_attention()
    attention.core = core = RelativePositions(attention.core, DIM // HEADS, (SIZE, SIZE))
    for table in (core.rel_pos_h, core.rel_pos_w):
        nn.init.normal_(table)
    x = torch.randn(2, *grid, DIM)
    found = attend(attention, x, SIZE)

    def of_window(tokens: Tensor, shape: tuple[int, int]) -> Tensor:
        """By tables of the window's own distances."""
        attention.core = small = RelativePositions(core.inner, DIM // HEADS, shape)
        for side, (mine, whole) in zip(shape, ((small.rel_pos_h, core.rel_pos_h), (small.rel_pos_w, core.rel_pos_w))):
            mine.data = whole.data[SIZE - side : SIZE + side - 1]
        return attention(tokens[None])[0]

    torch.testing.assert_close(found, by_window(x, SIZE, of_window), rtol=1e-5, atol=1e-5)


TOKENS = (5, 4)


def drawn(dtype: torch.dtype, d: int = 8, grid: tuple[int, int] = TOKENS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = grid[0] * grid[1]
    found = [torch.randn(2, 3, tokens, d, generator=generator, dtype=torch.float64) for _ in range(3)]
    return [x.to(dtype).requires_grad_() for x in found]


def a_core(name: str, dtype: torch.dtype, d: int = 8, grid: tuple[int, int] = TOKENS) -> RelativePositions:
    core = RelativePositions(ATTENTIONS[name], d, grid).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for table in (core.rel_pos_h, core.rel_pos_w):
        nn.init.normal_(table, 0, 0.5, generator=generator)
    return core


def placed_scores(core: RelativePositions, q: Tensor, k: Tensor) -> Tensor:
    """The scores of every pair of tokens, one by one."""
    h, w = core.grid
    rows = torch.stack([core.rel_pos_h[i // w - j // w + h - 1] for i in range(h * w) for j in range(h * w)])
    columns = torch.stack([core.rel_pos_w[i % w - j % w + w - 1] for i in range(h * w) for j in range(h * w)])
    placed = (rows + columns).unflatten(0, (h * w, h * w))  # [N, N, d]
    return q @ k.mT / math.sqrt(q.shape[-1]) + torch.einsum("bnid,ijd->bnij", q, placed)


def written_out(core: RelativePositions, q, k, v, name: str, alpha: float | Tensor, length: int) -> Tensor:
    """The scores with their positions; then the weights, and the sums."""
    scores = placed_scores(core, q, k)
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
    ours, theirs = drawn(dtype), [x.detach().double().requires_grad_() for x in drawn(dtype)]
    alphas = [torch.tensor(0.8, dtype=one, requires_grad=True) for one in (dtype, torch.float64)]
    out = core(*ours, **({"alpha": alphas[0], "length": 7} if name in SCORE_FUNCTIONS else {}))
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
        tensors = drawn(torch.float32, d, grid)
        out = core(*tensors, alpha=1.0, length=None)
        found.append([out, *torch.autograd.grad(out.tanh().sum(), [*tensors, *core.parameters()])])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_a_users_function_that_takes_the_scale_has_them(tmp_path: Path) -> None:
    mine = users_file(tmp_path)
    options = VitMapOptions(out_indices=(-1,), window=2, global_blocks=(1,), relative=True, grid=(4, 4))
    given = {"weights": "random", "attention": f"{mine}:plain"}
    maps = VitMaps(create("tiny", **given), options).eval()
    core = maps.backbone.model.blocks[0].attn.core
    nn.init.normal_(core.rel_pos_h)
    core.grid = core.size = (2, 2)
    q, k, v = drawn(torch.float32, 32, (2, 2))
    torch.testing.assert_close(core(q, k, v), placed_scores(core, q, k).softmax(-1) @ v, rtol=1e-5, atol=1e-5)
    for name in ("linear", "Mean"):
        with pytest.raises(UsageError, match="relative positions need an attention of this suite"):
            VitMaps(create("tiny", weights="random", attention=f"{mine}:{name}"), options)
