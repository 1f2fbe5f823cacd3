"""Attentions against the formulas, element by element."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from backbones.attention import ATTENTIONS, Attention, HeadNorm, make_attention, normalised, pointwise, softmax
from backbones.errors import UserError, WrongWords

# the seven h of arXiv 2309.08586, Figure 2, on one number
SCALAR = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "identity": lambda x: x,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


def qkv(queries=3, keys=5, head_dim=4, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (2, 2, queries, head_dim), (2, 2, keys, head_dim), (2, 2, keys, head_dim)
    return [scale * torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def by_loops(q, k, v, weigh):
    """o_i = sum_j weigh(row of scores)_j v_j, in plain loops."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for b in range(q.shape[0]):
        for head in range(q.shape[1]):
            for i in range(q.shape[2]):
                row = [float(q[b, head, i] @ k[b, head, j]) / math.sqrt(q.shape[-1]) for j in range(k.shape[2])]
                for j, weight in enumerate(weigh(row)):
                    out[b, head, i] += weight * v[b, head, j]
    return out


@pytest.mark.parametrize("h", SCALAR)
@pytest.mark.parametrize(("alpha", "length"), [(1.0, None), (0.0, None), (0.5, 7), (2.0, 196)])
def test_pointwise_equals_the_double_loop(h, alpha, length):
    q, k, v = qkv()
    factor = (length or k.shape[2]) ** -alpha
    expected = by_loops(q, k, v, lambda row: [factor * SCALAR[h](score) for score in row])
    torch.testing.assert_close(pointwise(q, k, v, h=h, alpha=alpha, length=length), expected)


@pytest.mark.parametrize("h", SCALAR)
def test_normalised_equals_the_double_loop(h):
    q, k, v = qkv()

    def weigh(row):
        weights = [SCALAR[h](score) for score in row]
        return [weight / sum(map(abs, weights)) for weight in weights] if any(weights) else weights

    torch.testing.assert_close(normalised(q, k, v, h=h), by_loops(q, k, v, weigh))


def test_softmax_equals_the_double_loop():
    q, k, v = qkv()

    def weigh(row):
        weights = [math.exp(score) for score in row]
        return [weight / sum(weights) for weight in weights]

    torch.testing.assert_close(softmax(q, k, v), by_loops(q, k, v, weigh))


def test_no_input_is_written_to():
    for core in ATTENTIONS.values():
        q, k, v = qkv()
        before = [x.clone() for x in (q, k, v)]
        core(q, k, v, alpha=1.0, length=None)
        assert all(torch.equal(x, y) for x, y in zip((q, k, v), before))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients(name):
    tensors = [x.requires_grad_() for x in qkv(2, 3, 2, scale=1.0)]
    alpha = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    core = ATTENTIONS[name]
    assert torch.autograd.gradcheck(lambda q, k, v, a: core(q, k, v, alpha=a, length=None), (*tensors, alpha))


def test_a_row_without_weight_gives_zero_and_finite_gradients():
    q, k, v = (x.float() for x in qkv())
    k.zero_()
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = normalised(q, k, v)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert all(torch.isfinite(tensor.grad).all() for tensor in (q, k, v))


@pytest.mark.parametrize("h", SCALAR)
def test_doubled_tokens_leave_the_output_at_alpha_1(h):
    q, k, v = qkv()
    doubled = pointwise(q, torch.cat([k, k], 2), torch.cat([v, v], 2), h=h)
    torch.testing.assert_close(doubled, pointwise(q, k, v, h=h))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_autocast_computes_in_its_own_precision(name):
    q, k, v = (x.float() for x in qkv(64, 64, 32, scale=1.0))
    dtypes = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            result = function(*arguments, **(options or {}))
            if isinstance(result, torch.Tensor) and result.shape[-2:] == (64, 64):
                dtypes.append(result.dtype)
            return result

    with torch.autocast("cpu", torch.bfloat16), Spy():
        out = ATTENTIONS[name](q, k, v, alpha=1.0, length=None)
    assert out.dtype == torch.bfloat16
    assert set(dtypes) <= {torch.bfloat16}
    torch.testing.assert_close(out.float(), ATTENTIONS[name](q, k, v, alpha=1.0, length=None), atol=0.05, rtol=0.05)


def test_qk_norm_is_a_layer_norm_without_bias():
    norm = HeadNorm(8)
    nn.init.normal_(norm.weight)
    x = torch.randn(2, 3, 5, 8)
    deviation = x.var(-1, unbiased=False, keepdim=True).add(1e-6).sqrt()
    torch.testing.assert_close(norm(x), (x - x.mean(-1, keepdim=True)) / deviation * norm.weight)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("name", ["softmax", "relu", "sigmoid_sum"])
def test_the_module_is_projections_around_the_function(name, qk_norm, gate):
    module = make_attention(name, 12, 3, qk_norm=qk_norm, gate=gate)
    assert isinstance(module, Attention)
    x = torch.randn(2, 7, 12)
    q, k, v = (F.linear(x, w, b) for w, b in zip(module.qkv.weight.chunk(3), module.qkv.bias.chunk(3)))
    heads = []
    for columns in torch.arange(12).chunk(3):
        head = [t[:, :, columns] for t in (q, k, v)]
        if qk_norm:
            head[:2] = [F.layer_norm(t, (4,), eps=1e-6) for t in head[:2]]
        heads.append(ATTENTIONS[name](*(t[:, None] for t in head), alpha=1.0, length=7)[:, 0])
    out = torch.cat(heads, dim=2)
    if gate:
        out = out * torch.sigmoid(module.gate(x))
    torch.testing.assert_close(module(x), module.proj(out))


@pytest.mark.parametrize(("length", "expected"), [("tokens", 7), ("image", 50), ("train", 197)])
def test_what_length_counts(length, expected):
    x = torch.randn(1, 7, 8)
    module = make_attention("relu", 8, 2, length=length, train_tokens=197)
    plain = make_attention("relu", 8, 2, alpha=0.0)
    plain.load_state_dict(module.state_dict())
    nn.init.zeros_(module.proj.bias)
    nn.init.zeros_(plain.proj.bias)
    torch.testing.assert_close(module(x, image_tokens=50), plain(x) / expected)


def test_alpha_can_be_learned():
    module = make_attention("relu", 8, 2, alpha="learned")
    fixed = make_attention("relu", 8, 2, alpha=1.0)
    fixed.load_state_dict({name: value for name, value in module.state_dict().items() if name != "alpha"})
    x = torch.randn(1, 5, 8)
    torch.testing.assert_close(module(x), fixed(x))
    module(x).square().sum().backward()
    assert module.alpha.grad is not None
    assert module.alpha.grad != 0


@pytest.mark.parametrize("name", ["softmax", "relu_sum"])
def test_alpha_without_effect_is_refused(name):
    with pytest.raises(WrongWords, match="alpha"):
        make_attention(name, 8, 2, alpha=0.5)


def test_masks_are_refused():
    with pytest.raises(ValueError, match="mask"):
        make_attention("relu", 8, 2)(torch.randn(1, 3, 8), is_causal=True)


USERS = """
import torch
from torch import nn
def linear(q, k, v):
    return q @ (k.transpose(-2, -1) @ v)
class Mean(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.out = nn.Linear(dim, dim)
    def forward(self, x):
        return self.out(x.mean(1, keepdim=True).expand_as(x))
class NoModule:
    def __init__(self, dim, heads):
        pass
"""


def test_a_users_attention(tmp_path):
    (tmp_path / "mine.py").write_text(USERS)
    x = torch.randn(2, 5, 8)
    function = make_attention(f"{tmp_path}/mine.py:linear", 8, 2)
    assert isinstance(function, Attention)
    identity = make_attention("identity", 8, 2, alpha=0.0)
    identity.load_state_dict(function.state_dict())
    nn.init.zeros_(identity.proj.bias)
    nn.init.zeros_(function.proj.bias)
    torch.testing.assert_close(function(x), identity(x) * 2)  # sqrt(d) = 2
    module = make_attention(f"{tmp_path}/mine.py:Mean", 8, 2)
    torch.testing.assert_close(module(x, attn_mask=None), module.body(x))
    with pytest.raises(UserError, match=r"Name\(dim, heads\)"):
        make_attention(f"{tmp_path}/mine.py:NoModule", 8, 2)
    with pytest.raises(WrongWords, match=r"`alpha: 0\.5` has no effect"):
        make_attention(f"{tmp_path}/mine.py:linear", 8, 2, alpha=0.5)
    with pytest.raises(WrongWords, match="do not reach"):
        make_attention(f"{tmp_path}/mine.py:Mean", 8, 2, gate=True)


def test_an_unknown_name():
    with pytest.raises(WrongWords, match="did you mean 'relu'"):
        make_attention("reluu", 8, 2)
