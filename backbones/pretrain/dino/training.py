"""DINO: self-distillation without labels (Caron et al. 2021, arXiv 2104.14294), scored by online k-NN.

The recipe of the paper's ViT-S/16 is `configs/pretrain/dino.yaml`.
Shapes: V crops (2 global ones first), B images, D channels, K prototypes.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from backbones.backbone import Backbone, check_builds, create
from backbones.flops import flops
from backbones.pretrain.accuracy import TOP, image_outcomes, knn_class_ranks
from backbones.pretrain.dino import loss as dino_loss
from backbones.pretrain.dino.method import METHOD, DinoOptions
from backbones.pretrain.dino.multicrop import MultiCrop
from backbones.pretrain.method import with_train_size
from backbones.spec import BackboneSpec
from backbones.token_shards import Shards
from backbones.vit import share_tokens
from transfer.core.errors import UsageError, UserError
from transfer.core.seeding import seed_torch
from transfer.data.classification import ClassificationData, Split
from transfer.data.loading.loader import RunLoader
from transfer.data.splits.dataset import SplitDataset
from transfer.engine import dist
from transfer.engine.context import Context
from transfer.engine.learner import Batch, Learner, feature_spread
from transfer.engine.outcome import Signs
from transfer.engine.schedule import cosine
from transfer.task import Outcomes, Result, Scores


class Network(nn.Module):
    """A backbone and the projection head on its features."""

    def __init__(self, backbone: Backbone, head: dino_loss.DinoHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, groups: Sequence[Tensor], *, still: Sequence[bool]) -> tuple[Tensor, Tensor]:
        """Run the backbone once for each resolution, and the head once.

        Args:
            groups: for each resolution, images [B * crops, 3, H, W], crop after crop.
            still: for each resolution, whether it leaves the running batch-norm statistics as they are.

        Returns:
            Features [V * B, D] and outputs [V * B, K], crop after crop.
        """
        features = []
        for images, fixed in zip(groups, still):
            with freeze_running_statistics(self.backbone, fixed):
                features.append(self.backbone.pooled(images))
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
    layered = "student.backbone"

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
        crops, *_ = batch
        # neighbours of one resolution go through the backbone together
        groups = [torch.cat([*group]) for _, group in groupby(crops, lambda crop: crop.shape)]
        numbers = {"teacher_momentum": self.momentum(step), "teacher_temp": self.temperature(step)}
        moment = {name: torch.full((), number, device=crops[0].device) for name, number in numbers.items()}
        mean, stats = self._loss_statistics(groups, len(crops), moment["teacher_temp"])
        self.batch_means.append(mean)
        return {**stats, **moment}

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile networks and loss; a graph of the whole would be remade for each step's numbers."""
        self.__dict__["_loss_statistics"] = torch.compile(self._loss_statistics, *arguments, **options)

    def _loss_statistics(
        self, groups: list[Tensor], views: int, temperature: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean of the teacher's outputs [K], and the loss with its statistics."""
        options, images = self.options, sum(map(len, groups)) // views
        with torch.no_grad():
            seen, outputs = self.teacher([groups[0][: 2 * images]], still=[options.teacher_bn != "own"])
        _, predicted = self.student(groups, still=[False, not options.local_bn])
        with torch.autocast(outputs.device.type, enabled=False):
            outputs = outputs.float().unflatten(0, (2, images))
            log_probabilities = dino_loss.teacher_log_probabilities(outputs, self.center, temperature)
            teacher_entropy = dino_loss.entropy(log_probabilities)
            predicted = predicted.unflatten(0, (views, images))
            loss = dino_loss.cross_view_loss(predicted, log_probabilities.exp(), options.student_temp)
        parts = {"loss": loss, "teacher_entropy": teacher_entropy, "kl": loss.detach() - teacher_entropy}
        return outputs.mean((0, 1)), {**parts, "spread": feature_spread(seen)}

    def train(self, mode: bool = True) -> Self:
        """Set the mode as every module does, but keep the teacher's batch norm to `teacher_bn`."""
        super().train(mode)
        if self.options.teacher_bn == "eval":
            for norm in batch_norms(self.teacher):
                norm.eval()
        return self

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
    def scored_backbone(self) -> Backbone:
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


def batch_norms(module: nn.Module) -> Iterator[Any]:
    """Return all batch norms within, synchronised ones included."""
    return (part for part in module.modules() if isinstance(part, _BatchNorm))


@contextmanager
def freeze_running_statistics(module: nn.Module, still: bool = True) -> Iterator[None]:
    """Leave the running statistics of training batch norms as they are within; they still normalise by the batch."""
    moving = [norm for norm in batch_norms(module) if norm.training] if still else []
    norms = [norm for norm in moving if norm.track_running_stats]
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


def check(spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context) -> None:
    """Check that both crop sizes suit the backbone, that the ranks can share a batch, and that there are enough
    images.
    """
    check_builds(spec, options.size, drop_path=options.drop_path)
    if options.local_crops and options.local_size % spec.divisor:
        raise UsageError(f"--local-size {options.local_size}: {spec.name} needs a multiple of {spec.divisor} pixels")
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    images = len(data.needed("train", METHOD.method))
    if images < options.batch_size:
        raise UserError(f"{data.name}: --batch-size {options.batch_size} is too large for {images} training images")
    if data.val is not None and images < options.knn_k:
        raise UserError(f"{data.name}: {images} training images are fewer than --knn-k {options.knn_k}")


def run(spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context) -> Result:
    """Train on the training split, score the validation split by k-NN against it, and export."""
    learner, loader = prepare_training(spec, data, options, context)
    if options.local_crops:
        context.note_lengths("attention_lengths_local", flops(learner.scored_backbone, options.local_size))
    return METHOD.train_and_score(learner, loader, knn_outcomes, data, options, context)


def prepare_training(
    spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context
) -> tuple[DinoLearner, RunLoader]:
    """Return student and teacher, and the loader of their batches."""
    seed_torch(context.seed)
    spec, rates = with_train_size(spec, options.size), (options.drop_path, 0.0)  # only the student has stochastic depth
    student, teacher = (create(spec, img_size=options.size, drop_path=rate) for rate in rates)
    learner = DinoLearner(student, teacher, options, METHOD.epoch_steps(data, options))
    operations = flops(learner.scored_backbone, options.size)
    micro_batch = context.micro_batch(2 * options.batch_size, options.grad_accum_steps)
    context.note_backbone(learner.scored_backbone, operations, micro_batch)
    return learner, train_loader(data.training, options, context)


def rescore(outcomes: Outcomes) -> Scores:
    """Return top-1 and top-5 accuracy from the rank of each image's true class; empty without a validation set."""
    if "rank" not in outcomes:
        return {}
    return {f"knn_top{k}": float((outcomes["rank"] < k).mean()) for k in TOP}


def train_loader(split: Split, options: DinoOptions, context: Context) -> RunLoader:
    """Return the loader of multi-crop batches."""
    chosen = replace(options, image_ops="fast") if split.gives_arrays else options
    crops = MultiCrop(chosen, colors=split.channels == 3 and not split.gives_arrays)
    return context.shuffled(SplitDataset(split, crops, seed=context.seed), options)


def knn_outcomes(backbone: Backbone, data: ClassificationData, options: DinoOptions, context: Context) -> Outcomes:
    """Return the rank of each validation image's true class in its neighbours' votes; the same on every rank.

    Empty without a validation split. Raises NotFinite.
    """
    if data.val is None or data.train is None:
        return {}
    k, temperature = options.knn_k, options.knn_temperature
    ranks = knn_class_ranks(backbone, data, options, context, k=[k], temperature=temperature)
    return {**image_outcomes(data.val), "rank": ranks[k]}
