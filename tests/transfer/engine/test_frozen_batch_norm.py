"""What does not train stays as it was, running statistics included."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from tests.backbones.pretrain.dino_support import crops, dino_options, make
from tests.support import context, fit_options
from transfer.engine.dist import SyncBatchNorm
from transfer.engine.learner import Learner
from transfer.engine.step import Stepper, frozen_batch_norms

IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class Probe(Learner):
    """A backbone with two batch norms in its stem, and a neck."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = create("tiny", stem="conv", weights="random", img_size=32)
        self.neck = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8))

    def forward(self, batch: Tensor, step: int) -> dict[str, Tensor]:
        return {"loss": (self.neck(self.backbone.pooled(batch)) - 1).square().mean()}


def batches(steps: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        yield 3 * torch.rand(8, 3, 32, 32, generator=generator) - 1


def features(backbone: Backbone) -> Tensor:
    with torch.no_grad():
        return backbone.eval().pooled(IMAGES)


def statistics(module: nn.Module) -> list[Tensor]:
    return [value.clone() for name, value in module.named_buffers() if "running_" in name or "num_batches" in name]


@pytest.mark.parametrize(("options", "synchronised"), [({"sam": "sam"}, False), ({"grad_accum_steps": 2}, True)])
def test_a_frozen_backbone_gives_the_same_features_to_the_bit(options: dict[str, Any], synchronised: bool) -> None:
    learner = Probe()
    if synchronised:
        norm = learner.backbone.model.patch_embed.conv
        for place, part in enumerate(norm):
            if isinstance(part, nn.BatchNorm2d):
                norm[place] = SyncBatchNorm(part.num_features)
    where = context()
    stepper = Stepper(learner, fit_options(lr=0.1, trainable=("*neck*",), epochs=20, **options), where)
    before, moved = features(learner.backbone), statistics(learner.neck)
    kept = statistics(learner.backbone)
    for number, batch in enumerate(batches(20), 1):
        stepper.step(number, 0.0, batch, 20)
    assert all(torch.equal(a, b) for a, b in zip(statistics(learner.backbone), kept, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(statistics(learner.neck), moved, strict=True))
    assert torch.equal(features(learner.backbone), before)
    (note,) = where.notes
    assert note.startswith("batch norms of frozen parts normalise by their statistics, and keep them: backbone.model.")
    assert "neck" not in note


def test_dinos_teacher_normalises_as_its_student_does() -> None:
    """Nothing of it ever trains: its norms are frozen where the student's are."""
    learner = make(dino_options(), stem="conv")
    assert not frozen_batch_norms(learner, learner.averages())
    options = dino_options(trainable=("student.head.*",))
    where = context()
    stepper = Stepper(learner, options, where)
    kept = [statistics(learner.student), statistics(learner.teacher)]
    before = features(learner.teacher.backbone)
    for number in range(1, 4):
        stepper.step(number, 0.0, (crops(), torch.zeros(4)), 4)
    assert len(where.notes) == 1
    for network, old in zip((learner.student, learner.teacher), kept, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(statistics(network), old, strict=True))
    assert torch.equal(features(learner.teacher.backbone), before)
