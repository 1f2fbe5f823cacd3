"""What timm promises of every model it makes, kept by ours: devices, types, tracing, first layers, pooling, pruning."""

import pytest
import timm
import torch

import backbones.vit  # noqa: F401
from tests.backbones.test_vit import VARIANTS

MODELS = [
    *(("vit_tiny", options) for options in VARIANTS),
    ("vit_tiny", {"stem": "conv_srelu", "attention": "relu", "alpha": "learned"}),
    ("volo_tiny", {}),
    ("volo_tiny", {"stem": "conv_gelu", "ffn": "conv1d_bn"}),
]
PARTS = """
from torch import nn
import torch

class Stem(nn.Conv2d):
    def __init__(self, dim, patch):
        super().__init__(3, dim, patch, patch)

class FFN(nn.Linear):
    def __init__(self, dim, hidden):
        super().__init__(dim, dim)

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * self.scale
"""


def make(name, options, **more):
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=5, img_size=(64, 32), **options, **more)


def users_parts(folder):
    (folder / "mine.py").write_text(PARTS)
    return {kind.lower(): f"{folder}/mine.py:{kind}" for kind in ("Stem", "Attention", "FFN")}


def assert_made_on(model, device, dtype):
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    assert {name for name, tensor in tensors.items() if tensor.device.type != device} == set()
    assert {name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dtype != dtype} == set()


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_every_part_is_made_on_the_device_and_in_the_type(name, options):
    assert_made_on(make(name, options, device="meta", dtype=torch.bfloat16), "meta", torch.bfloat16)
    model = make(name, options, dtype=torch.float64).eval()
    assert_made_on(model, "cpu", torch.float64)
    assert model(torch.rand(2, 3, 64, 32, dtype=torch.float64)).dtype == torch.float64


def test_so_are_users_parts(tmp_path):
    assert_made_on(make("vit_tiny", users_parts(tmp_path), device="meta", dtype=torch.float64), "meta", torch.float64)
