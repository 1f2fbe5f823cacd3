"""Backbone and head apart in an export, and together again."""

from pathlib import Path

import pytest
import torch
from torch import nn

from backbones.backbone import Backbone, create
from backbones.engine.context import Context
from backbones.engine.trained_weights import export_head, export_trained, load_trained
from backbones.errors import MissingInput


class Wrapped(nn.Module):
    """Takes the place of a module of the backbone, as relative positions do."""

    wraps_inner = True

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.table = inner, nn.Parameter(torch.ones(3))


class Learner(nn.Module):
    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.within = nn.ModuleDict({"deep": backbone})
        self.head = nn.Linear(backbone.dim, 5)


def context(folder: Path, **given: bool) -> Context:
    return Context(device=torch.device("cpu"), precision="fp32", folder=folder, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrapped", [False, True])
def test_all_tensors_come_back_and_the_backbone_builds_without_the_task(tmp_path: Path, wrapped: bool) -> None:
    backbone = create("tiny", img_size=32, attention="relu", alpha="learned")
    plain = set(backbone.model.state_dict())
    if wrapped:
        backbone.model.blocks[0].attn = Wrapped(backbone.model.blocks[0].attn)
    learner = Learner(backbone)
    export_trained(learner, backbone, context(tmp_path), classes=["a", "b"])
    again, state = load_trained(tmp_path), learner.state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[name], state[name]) for name in state)
    loaded = create(str(tmp_path), img_size=32)
    assert set(loaded.model.state_dict()) == plain
    assert loaded.untrained == []


def test_a_head_alone_leaves_no_backbone(tmp_path: Path) -> None:
    tensors = {"head.weight": torch.rand(2, 3)}
    export_head(tensors, context(tmp_path))
    assert torch.equal(load_trained(tmp_path)["head.weight"], tensors["head.weight"])
    assert sorted(path.name for path in (tmp_path / "export").iterdir()) == ["export.json", "head.safetensors"]


def test_nothing_is_left_where_nothing_is_asked_for(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32)
    export_trained(Learner(backbone), backbone, context(tmp_path, save_weights=False))
    export_head({}, context(tmp_path, save_weights=False))
    assert not list(tmp_path.iterdir())
    with pytest.raises(MissingInput, match="runs of --save-weights none leave none"):
        load_trained(tmp_path)
