"""Layer decay is one rule in every task and method, timm's; detection's is in `tests/tasks/detect/test_learner.py`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.optim import param_groups_layer_decay

from backbones.backbone import create
from backbones.pretrain.dino.training import DinoLearner
from backbones.pretrain.supervised.training import SupervisedLearner
from backbones.spec import resolve
from tasks.reid.training import ReidLearner
from tests.support import command, fit_options
from transfer.engine.learner import Learner

DECAY = 0.5
SPECS = {name: resolve(name, weights="random") for name in ("volo_tiny", "resnet18")}
SPECS["tiny"] = resolve("tiny", stem="conv", attention="relu", alpha="learned")


def options(name: str) -> Any:
    return command(name, "--backbone", "tiny", "--smoke").options


def supervised(name: str) -> Learner:
    return SupervisedLearner(create(SPECS[name], classes=5), torch.full((5,), 0.2), options("cifar_deit"), 0)


def reid(name: str) -> Learner:
    return ReidLearner(create(SPECS[name]), 5, options("reid"))


def dino(name: str) -> Learner:
    return DinoLearner(create(SPECS[name]), create(SPECS[name]), options("dino"), 2)


TASKS = [supervised, reid, dino]


def scales(learner: Learner) -> dict[str, float]:
    """The layer decay of every parameter that trains."""
    names = {parameter: name for name, parameter in learner.named_parameters()}
    groups = learner.parameter_groups(fit_options(layer_decay=DECAY))
    return {names[parameter]: group["scale"] for group in groups for parameter in group["params"]}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SPECS)
def test_the_scales_are_timms(task: Callable[[str], Learner], name: str) -> None:
    with torch.device("meta"):
        learner = task(name)
        # timm's last layer is the classifier's: with one, as with ours, the last block is one below it
        whole = create(SPECS[name], classes=5).model
    inside = f"{learner.layered}."
    groups = param_groups_layer_decay(whole, layer_decay=DECAY)
    theirs = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    expected = {f"{inside}model.{name}": theirs[id(parameter)] for name, parameter in whole.named_parameters()}
    found = scales(learner)
    own = {name for name in found if name.startswith(inside)}
    assert own
    assert own <= expected.keys()
    assert {name: found[name] for name in own} == {name: pytest.approx(expected[name]) for name in own}
    assert {scale for name, scale in found.items() if name not in own} <= {1.0}
