"""Parts of vision transformers: stems and their grammar; attentions and feed-forward networks against the formulas."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from backbones.attention import ATTENTIONS, Attention, make_attention, normalised_pointwise
from backbones.ffn import make_ffn
from backbones.spec import resolve
from backbones.stem_layers import ScaledReLU, StemEmbed
from backbones.stems import ACTIVATIONS, STEM_NORMS, STEMS, StemSpec, find_stem, parse_stem
from tests.backbones.support import users_file
from transfer.core.errors import UsageError, UserError


def parameters(stem: str, dim: int = 384, patch: int = 16) -> int:
    return sum(p.numel() for p in StemEmbed(stem, patch_size=patch, embed_dim=dim).parameters())


# arXiv 2109.03810, rows of Tables 2, 3 and 4: parameters more than the patchify stem of DeiT-S (295,296); the backbones
# of Table 4
ROWS = [
    ("1Proj", 0, "dino_s16"),
    ("1Proj+1ReLU", 0, "dino_s16_stem_proj_relu"),
    ("1Proj+1BN+1ReLU", 768, "dino_s16_stem_proj_bn_relu"),
    ("3Conv+3BN+3ReLU+1Proj@2,1,1,8", 1_361_472, "dino_s16_convstem"),
    ("3Conv+3BN+1Proj@2,1,1,8", 1_361_472, "dino_s16_stem_conv_bn"),
    ("3Conv+3ReLU+1Proj@2,1,1,8", 1_361_088, "dino_s16_stem_conv_relu"),
    ("3Conv+1Proj@2,1,1,8", 1_361_088, "dino_s16_stem_conv_linear"),
    ("3Conv+1Proj+1ReLU@2,1,1,8", 1_361_088, None),
    ("3Conv+3BN+3ReLU+1Proj@(2,2,2,2)", 1_361_472, None),
    ("3Conv+1Proj@2,2,2,2", 1_361_088, None),
    ("3Conv+1Proj+1ReLU@2,2,2,2", 1_361_088, None),
]


@pytest.mark.parametrize(("stem", "more", "backbone"), ROWS)
def test_rows_of_the_paper_have_the_parameters_of_the_paper(stem, more, backbone):
    assert parameters(stem) == 295_296 + more
    if backbone:
        spec = resolve(backbone)
        assert spec.identity()["stem"] == str(find_stem(stem).sized(16))
        assert (spec.arch, spec.attention, spec.patch, spec.depth) == ("vit_s", "softmax", 16, 12)


ANY_PATCH = [name for name in STEMS if "@" not in STEMS[name]]


@pytest.mark.parametrize("name", STEMS)
def test_every_stem_divides_the_image_by_the_patch(name):
    for patch in (4, 8, 16, 32) if name in ANY_PATCH else (16,):
        embed = StemEmbed(name, patch_size=patch, embed_dim=16, img_size=None)
        assert embed(torch.zeros(2, 3, 3 * patch, 2 * patch)).shape == (2, 6, 16)


def test_full_stem_is_algorithm_1():
    ours = StemEmbed("3Conv+3BN+3ReLU+1Proj", patch_size=16, embed_dim=24).eval()
    convolutions = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
    ).eval()  # fmt: skip
    projection = nn.Conv2d(64, 24, 8, 8)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.1)
    convolutions.load_state_dict(ours.conv.state_dict())
    projection.load_state_dict(ours.proj.state_dict())
    images = torch.randn(2, 3, 224, 224)
    expected = projection(convolutions(images)).flatten(2).transpose(1, 2)
    torch.testing.assert_close(ours(images), expected)


def test_after_the_projection_norm_and_activation_act_on_the_map():
    stem = StemEmbed("1Proj+1BN+1ReLU", patch_size=8, embed_dim=4, img_size=None).train()
    images = torch.randn(3, 3, 16, 24)
    projected = stem.proj(images)
    expected = nn.functional.batch_norm(projected, None, None, training=True).clamp_min(0)
    torch.testing.assert_close(stem(images), expected.flatten(2).transpose(1, 2))


def test_scaled_relu():
    layer = ScaledReLU(2)
    x = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(layer(x), x.clamp_min(0))
    with torch.no_grad():
        layer.alpha.copy_(torch.tensor([0.5, -1.0]).view(2, 1, 1))
        layer.beta.copy_(torch.tensor([2.0, -3.0]).view(2, 1, 1))
    expected = torch.stack([2 * (x[:, 0] + 0.5).clamp_min(0), -3 * (x[:, 1] - 1).clamp_min(0)], dim=1)
    torch.testing.assert_close(layer(x), expected)


@st.composite
def stems(draw) -> StemSpec:
    convs = draw(st.integers(0, 5))
    some = lambda known, least, most: tuple(draw(st.lists(st.sampled_from(known), min_size=least, max_size=most)))  # noqa: E731
    norms, activations = some(STEM_NORMS, 0, convs), some(ACTIVATIONS, 0, convs)
    sizes = lambda count: some(range(1, 100), count, count) if draw(st.booleans()) else ()  # noqa: E731
    return StemSpec(
        norms=("",) * (convs - len(norms)) + norms + (draw(st.sampled_from(("", *STEM_NORMS))),),
        activations=("",) * (convs - len(activations)) + activations + (draw(st.sampled_from(("", *ACTIVATIONS))),),
        strides=sizes(convs + 1),
        kernels=sizes(convs + 1),
        widths=some(("64", "12", "D", "D/4"), convs, convs) if draw(st.booleans()) else (),
    )


@settings(deadline=None)
@given(stems())
def test_what_is_printed_is_parsed_back(spec):
    assert parse_stem(str(spec)) == spec


def test_spellings_of_one_stem_have_one_canonical_form():
    whole = "3Conv+3BN+3ReLU+1Proj"
    spellings = ["conv", whole, "3Conv + 3BN+3ReLU+Proj@(2, 1, 1, 8)", f"{whole}@w64,64,64@k7,3,3,8"]
    assert {str(find_stem(text).sized(16)) for text in spellings} == {"3Conv+3BN+3ReLU+1Proj@2,1,1,8"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3Conv+3BNN+1Proj", r"'3BNN'.*did you mean 'BN'"),
        ("3Conv++1Proj", "'' is not a count and a component"),
        ("3Conv+3ReLU+3BN+1Proj", "in this order"),
        ("3Conv+3BN", "then one Proj"),
        ("2Conv+3BN+1Proj", "no more of each than Conv"),
        ("1Proj+2ReLU", "an activation at most"),
        ("3Conv+1Proj@2,1,1,8@2,1,1,8", "give the strides once, 4 numbers"),
        ("3Conv+1Proj@w64,64,64,64", "give the widths once, 3 numbers"),
        ("patchfy", "did you mean 'patchify'"),
        ("3Conv+1Proj@2,1,1,4", "2,1,1,4 multiply to 8, not to the patch size 16"),
        ("3Conv+1Proj@k7,2,3,8", "even kernel"),
        ("3Conv+1Proj@wD/3,64,64", "32 is not a multiple of 3"),
    ],
)
def test_errors_say_where_and_what(text, said):
    with pytest.raises(UsageError, match=said):
        find_stem(text).layers(32, 16)


def test_a_users_stem(tmp_path):
    mine, images = users_file(tmp_path), torch.randn(1, 3, 32, 16)
    stem = StemEmbed(f"{mine}:Tanh", patch_size=16, embed_dim=8, img_size=None)
    torch.testing.assert_close(stem(images), stem.conv(images).flatten(2).transpose(1, 2))
    odd = StemEmbed(f"{mine}:Odd", patch_size=16, embed_dim=8, img_size=None)
    with pytest.raises(UserError, match=r"must accept \(dim, patch\) .*got \[1, 8, 1, 1\] instead of \[1, 8, 2, 1\]"):
        odd(images)


# the h of arXiv 2309.08586, Figure 2, on one number; of GELU both forms
SCALAR = {
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "identity": lambda x: x,
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}


def qkv(queries=3, keys=5, head_dim=4, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (2, 2, queries, head_dim), (2, 2, keys, head_dim), (2, 2, keys, head_dim)
    return [scale * torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_weighs_values_by_its_function_of_each_score(name):
    q, k, v = qkv()

    def weigh(row):
        weights = [math.exp(score) if name == "softmax" else SCALAR[name.removesuffix("_sum")](score) for score in row]
        total = 1 if name in SCALAR else sum(map(abs, weights)) or 1
        return [weight / total for weight in weights]

    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = [weigh(row) for row in scores.flatten(0, 2).tolist()]
    sums = torch.tensor(weights, dtype=torch.float64).view_as(scores) @ v
    torch.testing.assert_close(ATTENTIONS[name](q, k, v), sums / k.shape[2] if name in SCALAR else sums)
    for alpha, length in ((0.0, None), (0.5, 7), (2.0, 196)) if name in SCALAR else ():
        found = ATTENTIONS[name](q, k, v, alpha=alpha, length=length)
        torch.testing.assert_close(found, (length or k.shape[2]) ** -alpha * sums)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_gradients(name):
    tensors, core = [x.requires_grad_() for x in qkv(2, 3, 2, scale=1.0)], ATTENTIONS[name]
    assert torch.autograd.gradcheck(core, tensors)
    if name in SCALAR:
        alpha = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda q, k, v, a: core(q, k, v, alpha=a), (*tensors, alpha))


def test_a_row_without_weight_gives_zero_and_finite_gradients():
    q, k, v = (x.float() for x in qkv())
    k.zero_()
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = normalised_pointwise(q, k, v)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(out))
    assert all(torch.isfinite(tensor.grad).all() for tensor in (q, k, v))


@pytest.mark.parametrize(
    ("name", "qk_norm", "gate"),
    [
        *(("relu", qk_norm, gate) for qk_norm in (False, True) for gate in ("off", "sigmoid", "silu", "linear")),
        ("softmax", True, "silu"),
        ("sigmoid_sum", True, "silu"),
    ],
)
def test_the_module_is_projections_around_the_function(name, qk_norm, gate):
    module = make_attention(name, 12, 3, qk_norm=qk_norm, gate=gate)
    norms = [module.q_norm, module.k_norm] if qk_norm else []
    for norm in norms:
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 7, 12)
    q, k, v = (F.linear(x, w, b) for w, b in zip(module.qkv.weight.chunk(3), module.qkv.bias.chunk(3)))
    heads = []
    for columns in torch.arange(12).chunk(3):
        head = [t[:, :, columns] for t in (q, k, v)]
        head[: len(norms)] = [F.layer_norm(t, (4,), norm.weight, eps=1e-6) for t, norm in zip(head, norms)]
        heads.append(ATTENTIONS[name](*(t[:, None] for t in head))[:, 0])
    out = torch.cat(heads, dim=2)
    if gate != "off":
        by = module.gate(x)
        out = out * {"silu": by / (1 + torch.exp(-by)), "linear": by}.get(gate, 1 / (1 + torch.exp(-by)))
    torch.testing.assert_close(module(x), module.proj(out))


@pytest.mark.parametrize("given", [{}, {"alpha": "learned"}])
@pytest.mark.parametrize(("length", "expected"), [("tokens", 7), ("image", 50), ("train", 197)])
def test_what_length_counts_and_that_alpha_begins_at_one(length, expected, given):
    x = torch.randn(1, 7, 8)
    module = make_attention("relu", 8, 2, length=length, train_tokens=197, **given)
    nn.init.zeros_(module.proj.bias)
    plain = make_attention("relu", 8, 2, alpha=0.0)
    plain.load_state_dict(module.state_dict(), strict=False)
    torch.testing.assert_close(module(x, image_tokens=50), plain(x) / expected)


def test_a_users_attention(tmp_path):
    mine, x = users_file(tmp_path), torch.randn(2, 5, 8)
    function = make_attention(f"{mine}:linear", 8, 2)
    assert isinstance(function, Attention)
    nn.init.zeros_(function.proj.bias)
    identity = make_attention("identity", 8, 2, alpha=0.0)
    identity.load_state_dict(function.state_dict())
    torch.testing.assert_close(function(x), identity(x) * 2)  # sqrt(d) = 2
    module = make_attention(f"{mine}:Mean", 8, 2)
    torch.testing.assert_close(module(x, attn_mask=None), module.body(x))
    with pytest.raises(UsageError, match=r"`alpha: 0\.5` has no effect"):
        make_attention(f"{mine}:linear", 8, 2, alpha=0.5)
    for option in ({"gate": "sigmoid"}, {"length": "train"}):
        with pytest.raises(UsageError, match="do not reach"):
            make_attention(f"{mine}:Mean", 8, 2, **option)


@pytest.mark.parametrize("name", ["relu", "relu_sum", "softmax"])
def test_tensors_that_do_not_fit(name):
    q, k, v = qkv()
    with pytest.raises(ValueError, match=r"different types, without autocast: torch.float64, torch.float32"):
        ATTENTIONS[name](q, k.float(), v)
    for wrong in (k[0], k[:1], k[:, :1], k[..., :2]):
        with pytest.raises(ValueError, match=r"not \(2, 2, 3, 4\)"):
            ATTENTIONS[name](q, wrong, v)


@pytest.mark.parametrize("name", ["relu", "relu_sum", "softplus_sum", "softmax", "sigmoid"])
def test_half_precision_does_not_overflow_where_the_result_does_not(name):
    """Sums over all keys reach beyond 65,504 before L^-alpha or the total weight divides them."""
    for tokens in (20, 2000):
        q = torch.full((1, 1, tokens, 16), 4.0, dtype=torch.float16)
        v = torch.full((1, 1, tokens, 16), 400.0, dtype=torch.float16)
        out = ATTENTIONS[name](q, q, v)
        exact = ATTENTIONS[name](q.double(), q.double(), v.double())
        torch.testing.assert_close(out.double(), exact, rtol=5e-3, atol=1.0)


class _Stack(nn.Module):
    """Every h, and each meaning of L, on the same tokens."""

    def __init__(self):
        super().__init__()
        lengths = [{"length": "image"}, {"length": "train", "train_tokens": 197}, {"alpha": "learned"}]
        kinds = [*((name, {}) for name in SCALAR), *(("relu", options) for options in lengths)]
        self.blocks = nn.ModuleList(make_attention(name, 8, 2, qk_norm=True, **options) for name, options in kinds)

    def forward(self, x):
        return torch.stack([block(x) for block in self.blocks])


def test_an_exported_graph_holds_for_every_batch():
    """130 tokens: above 22 images a CPU computes these scores in blocks, by an operator that only the suite has."""
    model = _Stack().eval()
    dimension = torch.export.Dim("b", min=1, max=64)
    program = torch.export.export(model, (torch.randn(2, 130, 8),), dynamic_shapes=({0: dimension},))
    assert not [node for node in program.graph.nodes if "transfer" in str(node.target)]
    for batch in (1, 2, 33):
        x = torch.randn(batch, 130, 8)
        torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("name", ["mlp", "relu", "no_norm", "mlp_tanh"])
def test_mlps(name):
    activation = {"relu": F.relu, "mlp_tanh": partial(F.gelu, approximate="tanh")}.get(name, F.gelu)
    ffn = make_ffn(name, 6, 10)
    x = torch.randn(2, 3, 6)
    expected = activation(x @ ffn.fc1.weight.T + ffn.fc1.bias) @ ffn.fc2.weight.T + ffn.fc2.bias
    torch.testing.assert_close(ffn(x), expected)


@pytest.mark.parametrize("name", ["conv1d", "conv1d_bn"])
def test_algorithm_2(name):
    ffn = make_ffn(name, 6, 10).train()
    x = torch.randn(4, 3, 6)

    def norm(tokens):
        rows = tokens.flatten(0, 1)
        return (F.batch_norm(rows, None, None, training=True) if name == "conv1d_bn" else rows).view(tokens.shape)

    hidden = F.gelu(norm(x @ ffn.conv1.weight[:, :, 0].T + ffn.conv1.bias))
    expected = F.gelu(norm(hidden @ ffn.conv2.weight[:, :, 0].T + ffn.conv2.bias))
    torch.testing.assert_close(ffn(x), expected)
    torch.testing.assert_close(ffn(x.view(4, 1, 3, 6)), expected.view(4, 1, 3, 6))  # tokens on their grid
