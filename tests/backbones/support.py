"""What the tests of backbones share: images, small models, a Hugging Face cache, a file of a user's parts."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.support import context, stopped_after, tensors
from transfer.core.errors import Stopped
from transfer.data.loading.loader import RunLoader
from transfer.engine.checkpoint import STATE
from transfer.engine.context import Context
from transfer.engine.learner import Learner
from transfer.engine.loop import fit
from transfer.engine.options import FitOptions

SIZE = (64, 32)
IMAGES = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
IMAGENET = (IMAGENET_MEAN, IMAGENET_STD)
HALF = ((0.5,) * 3, (0.5,) * 3)
"""The mean and std with which images become 2 x - 1."""
USERS = """
import timm
import torch
from torch import nn

class Tanh(nn.Sequential):
    def __init__(self, dim, patch):
        super().__init__(nn.Conv2d(3, dim, patch, patch), nn.Tanh())

class Shared(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.proj, self.act = nn.Conv2d(3, dim, patch, patch), nn.LeakyReLU()

    def forward(self, x):
        return self.act(self.act(self.proj(x)))

class Dead(Shared):
    def forward(self, x):
        return 0 * self.proj(x)

class Breaks(Shared):
    def forward(self, x):
        return (float("nan") if len(x) > 2 else 1) * self.proj(x)

class Odd(nn.Conv2d):
    def __init__(self, dim, patch):
        super().__init__(3, dim, patch, 2 * patch)

class Wide(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, 2 * hidden), nn.SiLU(), nn.Linear(2 * hidden, dim))

def linear(q, k, v):
    return q @ (k.transpose(-2, -1) @ v)

def plain(q, k, v, scale=1.0):
    return (scale * q @ k.mT).softmax(-1) @ v

def crooked(q, k, v):
    return (q @ k.mT).softmax(-1) @ v.square()

class Mean(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        return self.out(x.mean(1, keepdim=True).expand_as(x))

class Net(nn.Module):
    stride = 8

    def __init__(self, in_chans=3):
        super().__init__()
        self.body, self.num_features = nn.Conv2d(in_chans, 6, 8, 8), 6

    def forward(self, x):
        return self.body(x).mean((2, 3))

class Grey(Net):
    def __init__(self):
        super().__init__(1)

def resnet():
    return timm.create_model("resnet18", num_classes=10)

def maps():
    return nn.Conv2d(3, 6, 8, 8)

def number():
    return 3
"""


def users_file(folder: Path) -> Path:
    """Stems, an FFN, attentions and whole models as users write them."""
    path = folder / "mine.py"
    path.write_text(USERS)
    return path


def tiny(name: str = "tiny", **options: object) -> Backbone:
    """A backbone of random weights from a seed, for `IMAGES`."""
    torch.manual_seed(0)
    return create(name, **({"img_size": SIZE, "weights": "random"} | options)).eval()


def trained(model: nn.Module) -> nn.Module:
    """Weights that differ from every initialisation."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.1 + 0.05)
    return model.eval()


def below(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state with every name behind a prefix."""
    return {prefix + name: tensor for name, tensor in state.items()}


def hub(folder: Path, monkeypatch, repository: str, state: dict[str, Tensor], config: str = "") -> Path:
    """A Hugging Face cache that holds one repository; the file of its weights."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    root = folder / f"models--{repository.replace('/', '--')}"
    snapshot = root / "snapshots" / "abc123"
    for needed in (root / "refs", snapshot):
        needed.mkdir(parents=True)
    (root / "refs" / "main").write_text("abc123")
    if config:
        (snapshot / "config.json").write_text(config)
    save_file(state, snapshot / "model.safetensors")
    return snapshot / "model.safetensors"


Start = Callable[[Context], tuple[Learner, RunLoader]]


def in_pieces(
    folder: Path, stops: tuple[int, ...], options: FitOptions, start: Start
) -> tuple[list[Tensor], list[str]]:
    """The tensors of the last state, and the history, of a training that is stopped after some steps and taken up."""
    folder.mkdir()
    for stop in (*stops, 0):
        here = context(folder)
        with stopped_after(stop), pytest.raises(Stopped) if stop else nullcontext():
            fit(*start(here), options, here)
    return [*tensors(torch.load(folder / STATE))], (folder / "history.jsonl").read_text().splitlines()
