"""Feed-forward networks of arXiv 2109.03810, Table 5 and Algorithm 2."""

import pytest
import torch
import torch.nn.functional as F

from backbones.ffn import make_ffn


def count(name: str) -> int:
    return sum(p.numel() for p in make_ffn(name, 384, 1536).parameters())


def test_parameters():
    assert count("conv1d_bn") - count("mlp") == 3_840
    assert count("conv1d") == count("relu") == count("mlp") == 2 * 384 * 1536 + 384 + 1536


def tanh_gelu(x):
    return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("name", ["mlp", "relu", "no_norm", "mlp_tanh"])
def test_mlps(name):
    activation = {"relu": F.relu, "mlp_tanh": tanh_gelu}.get(name, F.gelu)
    ffn = make_ffn(name, 6, 10)
    x = torch.randn(2, 3, 6)
    expected = activation(x @ ffn.fc1.weight.T + ffn.fc1.bias) @ ffn.fc2.weight.T + ffn.fc2.bias
    torch.testing.assert_close(ffn(x), expected)


@pytest.mark.parametrize("name", ["conv1d", "conv1d_bn"])
def test_algorithm_2(name):
    ffn = make_ffn(name, 6, 10).train()
    x = torch.randn(4, 3, 6)

    def standardised(tokens):
        rows = tokens.reshape(-1, tokens.shape[-1])
        return (tokens - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-5).sqrt()

    norm = standardised if name == "conv1d_bn" else lambda tokens: tokens
    hidden = F.gelu(norm(x @ ffn.conv1.weight[:, :, 0].T + ffn.conv1.bias))
    expected = F.gelu(norm(hidden @ ffn.conv2.weight[:, :, 0].T + ffn.conv2.bias))
    torch.testing.assert_close(ffn(x), expected)
    torch.testing.assert_close(ffn(x.view(4, 1, 3, 6)), expected.view(4, 1, 3, 6))  # tokens on their grid
