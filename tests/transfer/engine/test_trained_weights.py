"""Backbone and head apart in an export, and together again."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from backbones.backbone import Backbone, create
from backbones.trained_weights import export_frozen, export_trained, load_head, read_head
from backbones.weights.locate import head_digest
from tests.support import context
from transfer.core.errors import UserError


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


@pytest.mark.parametrize("wrapped", [False, True])
def test_all_tensors_come_back_and_the_backbone_builds_without_the_task(tmp_path: Path, wrapped: bool) -> None:
    backbone = create("tiny", img_size=32, attention="relu", alpha="learned")
    plain = set(backbone.model.state_dict())
    if wrapped:
        backbone.model.blocks[0].attn = Wrapped(backbone.model.blocks[0].attn)
    learner = Learner(backbone)
    export_trained(learner, backbone, context(tmp_path), classes=["a", "b"])
    loaded = create(str(tmp_path), img_size=32)
    again, state = loaded.model.state_dict(), learner.state_dict()
    assert set(again) == plain
    inner = {name.replace(".inner.", "."): value for name, value in state.items()}
    assert all(torch.equal(again[name], inner[f"within.deep.model.{name}"]) for name in plain)
    head = read_head(str(tmp_path))
    assert len(head) == len(state) - len(plain)
    assert all(torch.equal(head[name], state[name]) for name in head)
    assert loaded.untrained == []


def test_weights_of_a_frozen_backbone_are_not_named_as_the_runs(tmp_path: Path) -> None:
    backbone, tensors, made = create("tiny", img_size=32), {"head.weight": torch.rand(2, 3)}, context(tmp_path)
    export_frozen(backbone, tensors, made)
    assert read_head(str(tmp_path)).keys() == tensors.keys()
    assert create(str(tmp_path), img_size=32).fingerprint == backbone.fingerprint
    assert made.exported is None


def test_a_head_comes_back_into_a_learner_of_its_own_kind_alone(tmp_path: Path) -> None:
    learner = Learner(create("tiny", img_size=32))
    export_trained(learner, learner.within["deep"], context(tmp_path))  # type: ignore[arg-type]
    again = Learner(create(str(tmp_path), img_size=32))
    load_head(again, again.within["deep"], context(tmp_path))  # type: ignore[arg-type]
    assert torch.equal(again.head.weight, learner.head.weight)
    again.head = nn.Linear(again.head.in_features, 4)
    with pytest.raises(UserError, match=r"of another task or of other options; head\.weight, head\.bias differ"):
        load_head(again, again.within["deep"], context(tmp_path))  # type: ignore[arg-type]
    load_head(learner, learner.within["deep"], made := context(tmp_path))  # type: ignore[arg-type]
    assert "the weights random have no saved task head" in made.notes[0]


def test_nothing_is_left_where_nothing_is_asked_for(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32)
    export_trained(Learner(backbone), backbone, context(tmp_path, save_weights=False))
    export_frozen(backbone, {}, context(tmp_path, save_weights=False))
    assert not list(tmp_path.iterdir())


def test_a_head_that_was_replaced_since_it_was_named(tmp_path: Path) -> None:
    backbone = create("tiny", img_size=32)
    for name in ("one", "two"):
        export_trained(Learner(backbone), backbone, context(tmp_path / name))
    named, file = head_digest(str(tmp_path / "one")), tmp_path / "one" / "export" / "head.safetensors"
    assert read_head(str(tmp_path / "one"), named).keys() == {"head.weight", "head.bias"}
    state = file.stat()
    file.write_bytes((tmp_path / "two" / "export" / "head.safetensors").read_bytes())
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert head_digest(str(tmp_path / "one")) != named
    with pytest.raises(UserError, match=r"head.safetensors: modified while the command was running"):
        read_head(str(tmp_path / "one"), named)
    file.unlink()
    with pytest.raises(UserError, match=r"head.safetensors: modified while the command was running"):
        read_head(str(tmp_path / "one"), named)
