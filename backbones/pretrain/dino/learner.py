"""Self-distillation without labels (DINO; Caron et al. 2021, arXiv 2104.14294): what its training step computes.

Shapes: V crops (2 global ones first), B images, D channels, K prototypes.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbones.backbone import Backbone
from backbones.pretrain.dino import loss as dino_loss
from backbones.pretrain.dino.method import DinoOptions
from backbones.token_shards import Shards
from backbones.vit import share_tokens
from transfer.engine import dist
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.optim import parameter_groups
from transfer.engine.options import FitOptions
from transfer.engine.outcome import Signs
from transfer.engine.schedule import cosine


class Network(nn.Module):
    """A backbone and the projection head on its features."""

    def __init__(self, backbone: Backbone, head: dino_loss.DinoHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, crops: Sequence[Tensor], *, still: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """Run the backbone once for each resolution, and the head once.

        Args:
            crops: V batches of images [B, 3, H, W]; neighbours of one resolution go through the backbone together.
            still: for each resolution, whether it leaves the running batch-norm statistics as they are.

        Returns:
            Features [V * B, D] and outputs [V * B, K], crop after crop.
        """
        groups: list[list[Tensor]] = []
        for crop in crops:
            if groups and groups[-1][0].shape == crop.shape:
                groups[-1].append(crop)
            else:
                groups.append([crop])
        features = []
        for group, fixed in zip(groups, still):
            with freeze_running_statistics(self.backbone, fixed):
                features.append(self.backbone.pooled(torch.cat(group)))
        joined = torch.cat(features)
        return joined, self.head(joined)


class DinoLearner(Learner):
    """A student and its exponential moving average, the teacher.

    Args:
        student: the backbone that is trained.
        teacher: the same without stochastic depth; gets the student's weights here.
        options: the options of the run.
        epoch_steps: steps per epoch, which set a step's schedule position.
    """

    center: Tensor

    def __init__(self, student: Backbone, teacher: Backbone, options: DinoOptions, epoch_steps: int) -> None:
        super().__init__()
        shape, fixed = (student.dim, options.out_dim), options.norm_last_layer
        heads = [dino_loss.DinoHead(*shape, norm_last_layer=fixed, exact=exact) for exact in (False, True)]
        self.student, self.teacher = Network(student, heads[0]), Network(teacher, heads[1])
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.register_buffer("center", torch.zeros(options.out_dim))
        self.options, self.epoch_steps = options, epoch_steps
        self.batch_means: list[Tensor] = []  # [K] of the teacher's outputs, one for each micro-batch of the step

    def forward(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Return the loss of ([crops [B, 3, H, W], ...], labels): two global crops, then local ones; labels are not
        used.
        """
        options, (crops, *_) = self.options, batch
        momentum, temperature = self._moment(step, crops[0].device)
        with torch.no_grad():
            seen, outputs = self.teacher(crops[:2], still=[options.teacher_bn != "own"])
        _, predicted = self.student(crops, still=[False, not options.local_bn])
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = outputs.float().unflatten(0, (2, -1))
            self.batch_means.append(outputs.mean((0, 1)))
            log_probabilities = dino_loss.teacher_log_probabilities(outputs, self.center, temperature)
            teacher_entropy = dino_loss.entropy(log_probabilities)
            loss = dino_loss.cross_view_loss(
                predicted.unflatten(0, (len(crops), -1)), log_probabilities.exp(), options.student_temp
            )
        return {
            "loss": loss,
            "teacher_entropy": teacher_entropy,
            "kl": loss.detach() - teacher_entropy,
            "spread": feature_spread(seen),
            "teacher_momentum": momentum,
            "teacher_temp": temperature,
        }

    def train(self, mode: bool = True) -> Self:
        """Set the mode as every module does, but keep the teacher's batch norm to `teacher_bn`."""
        super().train(mode)
        if self.options.teacher_bn == "eval":
            for norm in batch_norms(self.teacher):
                norm.eval()
        return self

    def parameter_groups(self, options: FitOptions) -> list[dict[str, Any]]:
        """Return the student's parameters, with layer decay over its backbone; its head lies behind it."""
        return parameter_groups(self, options, self.student.backbone, "student.backbone.")

    @cached_property
    def _averaged(self) -> tuple[list[Tensor], list[Tensor]]:
        """The parameters of teacher and student; to find them takes time in every step."""
        return [*self.teacher.parameters()], [*self.student.parameters()]

    def averages(self) -> list[tuple[nn.Module, nn.Module]]:
        """Return the teacher, which averages the student."""
        return [(self.teacher, self.student)]

    def share_tokens(self, ranks: int) -> None:
        """Shard tokens across ranks in the blocks of student and teacher."""
        for network in (self.student, self.teacher):
            share_tokens(network.backbone.model, Shards(ranks))

    @property
    def exported(self) -> Backbone:
        """The backbone that is evaluated and exported."""
        return self.teacher.backbone if self.options.export == "teacher" else self.student.backbone

    def after_backward(self, step: int) -> None:
        """Drop the last layer's gradients in the first epochs."""
        if self._epoch(step) < self.options.freeze_last_layer:
            for parameter in self.student.head.last_layer.parameters():
                parameter.grad = None

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Move the teacher towards the student, and the center towards the mean of the teacher's outputs."""
        share = 1 - self.momentum(step)
        torch._foreach_lerp_(*self._averaged, share)
        if self.options.teacher_bn != "own":
            average_running_statistics(self.teacher, self.student, share)
        mean = dist.mean_over_ranks(torch.stack(self.batch_means).mean(0))
        self.center.lerp_(mean, 1 - self.options.center_momentum)
        self.batch_means.clear()

    def signs(self) -> Signs:
        """Return the entropy of the teacher, between constant (0) and uniform (ln K): the two collapses of section 5.3
        (arXiv 2104.14294).
        """
        uniform = math.log(self.options.out_dim)
        return Signs(moving_targets=True, bounds={"teacher_entropy": (0.01 * uniform, 0.99 * uniform)})

    def momentum(self, step: int) -> float:
        """Return the share of its own weights that the teacher keeps in a step (from 1)."""
        return cosine(self.options.teacher_momentum, 1.0, (step - 1) / (self.options.epochs * self.epoch_steps))

    def temperature(self, step: int) -> float:
        """Return the teacher's temperature in a step (from 1): in each warm-up epoch its own, on a line from the first
        to the last.
        """
        start, end = self.options.warmup_teacher_temp, self.options.teacher_temp
        epoch, warm = self._epoch(step), self.options.warmup_teacher_temp_epochs
        return end if epoch >= warm else start + (end - start) * epoch / max(warm - 1, 1)

    def _epoch(self, step: int) -> int:
        return (step - 1) // self.epoch_steps

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _moment(self, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return momentum and temperature as scalars on the device; a compiled graph would be remade for each Python
        number.
        """
        return torch.full((), self.momentum(step), device=device), torch.full((), self.temperature(step), device=device)


def batch_norms(module: nn.Module) -> Iterator[Any]:
    """Return all batch norms within, synchronised ones included."""
    return (part for part in module.modules() if isinstance(part, _BatchNorm))


@contextmanager
def freeze_running_statistics(module: nn.Module, still: bool = True) -> Iterator[None]:
    """Leave the running statistics of training batch norms as they are within; they still normalise by the batch."""
    norms = [norm for norm in batch_norms(module) if norm.training and norm.track_running_stats] if still else []
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def average_running_statistics(teacher: nn.Module, student: nn.Module, share: float) -> None:
    """Move the teacher's running batch-norm statistics towards the student's by `share`."""
    for mine, theirs in zip(batch_norms(teacher), batch_norms(student), strict=True):
        if mine.running_mean is not None:
            mine.running_mean.lerp_(theirs.running_mean, share)
            mine.running_var.lerp_(theirs.running_var, share)
            mine.num_batches_tracked.copy_(theirs.num_batches_tracked)
