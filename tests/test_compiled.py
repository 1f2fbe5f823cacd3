"""`--compile`: the forward pass of every method is one graph, which later steps neither break nor make anew."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from backbones.backbone import create
from backbones.pretrain.dino.training import DinoLearner
from backbones.pretrain.supervised.training import SupervisedLearner
from tasks.linear.training import LinearLearner
from tasks.reid.training import ReidLearner
from tasks.segment.training import SegmentLearner
from tests.support import command
from transfer.engine.context import Context
from transfer.engine.learner import Batch, Learner
from transfer.engine.options import FitOptions
from transfer.engine.step import Stepper

make = partial(create, "vit_tiny", weights="random", img_size=32)
DRAW = torch.Generator().manual_seed(0)
IMAGES, SMALL = (torch.rand(4, 3, side, side, generator=DRAW) for side in (32, 16))
LABELS = torch.tensor([0, 0, 1, 1])


def dino(options: FitOptions, **parts: object) -> tuple[Learner, Batch]:
    """Two global crops and two local ones, in two micro-batches."""
    student, teacher = make(**parts), make(**parts | {"drop_path": 0.0})
    return DinoLearner(student, teacher, options, epoch_steps=10), [[IMAGES] * 2 + [SMALL] * 2, LABELS]


def supervised(options: FitOptions, **parts: object) -> tuple[Learner, Batch]:
    """Two classes, mixed."""
    return SupervisedLearner(make(classes=2, **parts), torch.full((2,), 0.5), options, seed=0), (IMAGES, LABELS)


def volo(options: FitOptions, **parts: object) -> tuple[Learner, Batch]:
    """Two classes of images and of their tokens, which are mixed."""
    backbone = create("volo_tiny", weights="random", img_size=32, classes=2, **parts)
    return SupervisedLearner(backbone, torch.full((2,), 0.5), options, seed=0), (IMAGES, LABELS)


def reid(options: FitOptions, **parts: object) -> tuple[Learner, Batch]:
    """Two persons."""
    return ReidLearner(make(**parts), 2, options), ((IMAGES, torch.zeros(4, 4, dtype=torch.long), IMAGES), LABELS)


def linear(options: FitOptions, **parts: object) -> tuple[Learner, Batch]:
    """Two classes on frozen features."""
    return LinearLearner(make(**parts).eval().pooled, 64, np.array([0, 1]), 2), (IMAGES, LABELS)


def segment(options: FitOptions, **parts: object) -> tuple[Learner, Batch]:
    """Two classes of pixels."""
    backbone = make(**parts).eval()
    return SegmentLearner(lambda x: backbone.maps(x, [-1])[0], 64, 2), (IMAGES, LABELS[:, None, None].expand(4, 32, 32))


PARTS = {"patchify": {}, "conv, relu": {"stem": "conv", "attention": "relu"}, "qk-norm": {"qk_norm": True}}
CASES = [(method, part) for method in (supervised, dino) for part in PARTS]
CASES += [(method, "patchify") for method in (volo, reid, linear, segment)]
WORDS = {supervised: ["deit"], dino: ["dino", "--out-dim", "64", "--grad-accum-steps", "2"]}


@pytest.mark.parametrize(("method", "parts"), CASES)
def test_a_step_is_one_graph_and_computes_the_same(
    method: Callable[..., tuple[Learner, Batch]], parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    name, *words = WORDS.get(method, [method.__name__])
    found: list[list[dict[str, float]]] = []
    for compiled in ("--no-compile", "--compile"):
        options = command(name, "--backbone", "tiny", "--precision", "bf16", *words, compiled).options
        torch.manual_seed(0)
        learner, batch = method(options, drop_path=0.5, **PARTS[parts])
        stepper, steps = Stepper(learner, options, Context(torch.device("cpu"), "bf16")), list[dict[str, float]]()
        for number in (1, 2, 7):
            with torch.compiler.set_stance("fail_on_recompile" if number > 1 else "default"):
                steps.append(stepper.step(number, number / 3, batch, 10).read()[0])
        found.append(steps)
    assert (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())) == (1, 0)
    assert found[0] == found[1]
