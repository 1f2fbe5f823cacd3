"""What the tests of the token diagnostics share: small backbones, a user's parts, what a recorder gives by name."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from backbones.backbone import Backbone
from backbones.diagnostics.recorder import Recorder
from backbones.diagnostics.statistics import ATTENTION_FIELDS, TOKEN_FIELDS
from tests.backbones import support

IMAGES = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PARTS = """
from torch import nn

class Shared(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.proj, self.act = nn.Conv2d(3, dim, patch, patch), nn.LeakyReLU()

    def forward(self, x):
        return self.act(self.act(self.proj(x)))

class Dead(Shared):
    def forward(self, x):
        return 0 * self.proj(x)

def plain(q, k, v):
    return (q @ k.mT).softmax(-1) @ v

def crooked(q, k, v):
    return (q @ k.mT).softmax(-1) @ v.square()
"""


def user_parts(folder: Path) -> str:
    """Path of a file with parts as users write them."""
    path = folder / "parts.py"
    path.write_text(PARTS)
    return str(path)


tiny = partial(support.tiny, img_size=32)


@torch.inference_mode()
def recorded(backbone: Backbone, class_token: bool = True) -> tuple[Recorder, dict[str, Tensor], dict[str, Tensor]]:
    """The recorder, and [B, fields] of every place and of every attention."""
    recorder = Recorder(backbone, class_token)
    places, attentions = recorder.columns(recorder.rows(IMAGES))
    names, blocks = ([about["place"] for about in found] for found in (recorder.layers, recorder.attentions))
    return recorder, dict(zip(names, places, strict=True)), dict(zip(blocks, attentions, strict=True))


def similarity(rows: Tensor) -> list[float]:
    return rows[:, TOKEN_FIELDS.index("similarity")].tolist()


def row_sums(rows: Tensor) -> list[float]:
    return rows[:, ATTENTION_FIELDS.index("row_sum")].tolist()
