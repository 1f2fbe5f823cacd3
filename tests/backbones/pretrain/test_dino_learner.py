"""DINO: the loss and the head, and the step of student and teacher."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from backbones.pretrain.dino.loss import DinoHead, WeightNormLinear, cross_view_loss, teacher_log_probabilities
from backbones.pretrain.dino.training import DinoLearner, batch_norms
from tests.backbones.pretrain.dino_support import crops, dino_options, feed, make
from tests.backbones.support import in_pieces
from tests.support import context
from transfer.core.seeding import seed_torch
from transfer.engine.outcome import FEWEST, judge
from transfer.engine.step import Stepper

LABELS = torch.zeros(4, dtype=torch.int64)


def statistics(network: nn.Module) -> list[Tensor]:
    return [norm.running_mean.clone() for norm in batch_norms(network)]


def same(ones: list[Tensor], others: list[Tensor]) -> bool:
    assert len(ones) == len(others) > 0
    return all(torch.equal(a, b) for a, b in zip(ones, others))


def update(learner: DinoLearner, views: list[Tensor], step: int = 1) -> None:
    """A plain step of gradient descent, and what follows it."""
    learner.zero_grad()
    learner((views, LABELS), step)["loss"].backward()
    learner.after_backward(step)
    with torch.no_grad():
        for parameter in learner.student.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    learner.after_step(step)


@pytest.mark.parametrize(("student", "teacher"), [(0.1, 0.04), (1.0, 0.5)])
def test_the_loss_is_that_of_crops_sent_one_by_one(student: float, teacher: float) -> None:
    """Algorithm 1 of arXiv 2104.14294 with multi-crop."""
    options = dino_options(student_temp=student, teacher_temp=teacher, warmup_teacher_temp=teacher)
    learner, views = make(options).eval(), crops()
    with torch.no_grad():
        for parameter in learner.student.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        learner.center.normal_(std=0.1)
        found = learner((views, LABELS), 1)

        def outputs(network: Any, view: Tensor) -> Tensor:
            return network.head(network.backbone.pooled(view))

        terms, entropies = [], []
        for i in range(2):
            q = ((outputs(learner.teacher, views[i]) - learner.center) / teacher).softmax(-1)
            entropies.append(-(q * q.log()).sum(-1).mean())
            for j, view in enumerate(views):
                if i != j:
                    p = (outputs(learner.student, view) / student).log_softmax(-1)
                    terms.append(-(q * p).sum(-1).mean())
    assert len(terms) == 6
    assert float(found["loss"]) == pytest.approx(float(torch.stack(terms).mean()), rel=1e-5)
    assert float(found["teacher_entropy"]) == pytest.approx(float(torch.stack(entropies).mean()), rel=1e-4)
    assert float(found["kl"]) == pytest.approx(float(found["loss"] - found["teacher_entropy"]), rel=1e-5)


def test_only_the_student_is_trained_and_the_head_is_behind_the_backbone() -> None:
    learner = make(dino_options(layer_decay=0.5))
    update(learner, crops())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in learner.teacher.parameters())
    assert all(parameter.grad is not None for parameter in learner.student.parameters())
    groups = learner.parameter_groups(learner.options)
    assert sum(len(group["params"]) for group in groups) == len([*learner.student.parameters()])


def test_the_last_layer_is_frozen_in_the_first_epochs() -> None:
    learner = make(dino_options(freeze_last_layer=1, norm_last_layer=False), epoch_steps=2)
    moved = []
    for step in (1, 2, 3):
        before = [parameter.clone() for parameter in learner.student.head.last_layer.parameters()]
        update(learner, crops(seed=step), step)
        moved.append(not same(before, [*learner.student.head.last_layer.parameters()]))
    assert moved == [False, False, True]


@pytest.mark.parametrize(("step", "moves"), [(1, False), (5, True)])
def test_sam_moves_the_last_layer_once_it_trains(step: int, moves: bool) -> None:
    options = dino_options(freeze_last_layer=1, sam="sam", sam_rho=0.5)
    learner, passes = make(options, epoch_steps=4), list[Tensor]()
    learner.student.head.last_layer.register_forward_hook(lambda layer, *_: passes.append(layer.weight_v.clone()))
    Stepper(learner, options, context()).step(step, 0.5, [crops(), LABELS])
    assert torch.equal(*passes) != moves


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_momentum_and_temperature_follow_the_papers_schedules(epochs: int) -> None:
    warm_up = {"warmup_teacher_temp": 0.04, "teacher_temp": 0.07, "warmup_teacher_temp_epochs": epochs}
    options = dino_options(epochs=5, teacher_momentum=0.996, **warm_up)
    learner, total = make(options, epoch_steps=4), 20
    iterations = np.arange(total)
    momentum = 1 + 0.5 * (0.996 - 1) * (1 + np.cos(np.pi * iterations / total))
    temperature = np.repeat([*np.linspace(0.04, 0.07, epochs), *[0.07] * (5 - epochs)], 4)
    assert np.allclose([learner.momentum(i + 1) for i in iterations], momentum, atol=1e-12)
    assert np.allclose([learner.temperature(i + 1) for i in iterations], temperature, atol=1e-12)
    stats = learner((crops(), LABELS), 10)
    assert float(stats["teacher_momentum"]) == pytest.approx(momentum[9], abs=1e-7)
    assert float(stats["teacher_temp"]) == pytest.approx(temperature[9], abs=1e-7)


def test_the_teacher_and_the_center_are_moving_averages() -> None:
    learner = make(dino_options(teacher_momentum=0.8))
    expected = {name: parameter.clone() for name, parameter in learner.teacher.named_parameters()}
    center = torch.zeros(24)
    for step in (1, 2, 3):
        views = crops(seed=step)
        with torch.no_grad():
            seen = torch.cat([learner.teacher.head(learner.teacher.backbone.pooled(view)) for view in views[:2]])
        update(learner, views, step)
        center = 0.9 * center + 0.1 * seen.mean(0)
        m = 1 - (1 - 0.8) * (math.cos(math.pi * (step - 1) / 12) + 1) / 2
        for name, parameter in learner.student.named_parameters():
            expected[name] = m * expected[name] + (1 - m) * parameter.detach()
    for name, parameter in learner.teacher.named_parameters():
        assert torch.allclose(parameter, expected[name], atol=1e-6), name
    assert torch.allclose(learner.center, center, atol=1e-6)


def test_the_center_sees_all_micro_batches() -> None:
    whole, parts = make(dino_options()), make(dino_options())
    views = crops()
    update(whole, views)
    for rows in (slice(0, 2), slice(2, 4)):
        parts(([view[rows] for view in views], LABELS[rows]), 1)
    parts.after_step(1)
    assert torch.allclose(whole.center, parts.center, atol=1e-7)


@pytest.mark.parametrize("teacher_bn", ["own", "ema", "eval"])
def test_forward_is_a_function_of_batch_step_and_random_numbers(teacher_bn: str) -> None:
    learner = make(dino_options(drop_path=0.5, teacher_bn=teacher_bn), stem="conv").train()
    results = []
    for _ in range(2):
        buffers = [buffer.clone() for buffer in learner.buffers()]
        seed_torch(3)
        results.append(learner((crops(), LABELS), 2))
        for buffer, value in zip(learner.buffers(), buffers):
            buffer.copy_(value)  # as SAM does
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name
    learner.after_step(2)
    once = make(dino_options(drop_path=0.5, teacher_bn=teacher_bn), stem="conv").train()
    seed_torch(3)
    once((crops(), LABELS), 2)
    once.after_step(2)
    assert torch.allclose(learner.center, once.center, atol=1e-7)


# Batch norm: which running statistics move in a step, and which statistics normalise.


@pytest.mark.parametrize(("local_bn", "updates"), [(True, 2), (False, 1)])
def test_whether_local_crops_move_the_students_statistics(local_bn: bool, updates: int) -> None:
    learner = make(dino_options(local_bn=local_bn), stem="conv").train()
    globals_only = make(dino_options(local_bn=local_bn), stem="conv").train()
    views = crops()
    found = learner((views, LABELS), 1)
    globals_only((views[:2], LABELS), 1)
    assert all(int(norm.num_batches_tracked) == updates for norm in batch_norms(learner.student))
    assert same(statistics(learner.student), statistics(globals_only.student)) != local_bn
    other = make(dino_options(local_bn=not local_bn), stem="conv").train()
    assert torch.equal(found["loss"], other((views, LABELS), 1)["loss"])  # the batch normalises in either case
    assert all(norm.track_running_stats for norm in batch_norms(learner))


# Collapse


def test_a_constant_teacher_collapses_onto_ln_k_and_a_healthy_start_does_not() -> None:
    learner = make(dino_options(out_dim=1000)).train()

    def why(views: list[Tensor]) -> str:
        stats = {name: [value.item()] * FEWEST for name, value in learner((views, LABELS), 1).items()}
        return judge(stats, learner.signs(), FEWEST).reason

    assert why(crops()) == ""
    with torch.no_grad():  # every image gets one output, which the center then takes away
        for head in (learner.student.head, learner.teacher.head):
            head.mlp[0].weight.zero_()
        learner.center.copy_(learner.teacher.head(torch.zeros(1, 64))[0])
    assert why(crops()).startswith("teacher_entropy 6.908 is not between")
    assert why([torch.zeros_like(view) for view in crops()]).startswith("the features of a batch became equal")


# Whole runs


@pytest.mark.parametrize(
    "given",
    [
        {"sam": "sam", "grad_accum_steps": 2, "teacher_bn": "ema", "local_bn": False},
        pytest.param({"teacher_bn": "eval", "norm_last_layer": False}, marks=pytest.mark.nightly),
    ],
)
def test_a_resumed_run_ends_as_an_undisturbed_one_to_the_bit(tmp_path: Path, given: dict[str, Any]) -> None:
    options = dino_options(epochs=2, drop_path=0.3, freeze_last_layer=1, **given)
    how = options, lambda _: (make(options, stem="conv"), feed(parts=options.grad_accum_steps))
    whole, history = in_pieces(tmp_path / "whole", [], *how)
    pieces, again = in_pieces(tmp_path / "pieces", [3, 5], *how)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))
    assert history == again
    assert len(history) == 8


def test_large_outputs_stay_finite_in_half_precision() -> None:
    student = torch.randn(3, 2, 50, dtype=torch.bfloat16) * 100
    probabilities = teacher_log_probabilities(student[:2], torch.zeros(50), 0.04).exp()
    loss = cross_view_loss(student, probabilities, 0.1)
    assert torch.isfinite(loss)
    assert loss.dtype == torch.float32


def test_outputs_are_cosines_while_the_norms_are_fixed() -> None:
    torch.manual_seed(0)
    head = DinoHead(24, 40, norm_last_layer=True)
    nn.init.normal_(head.last_layer.weight_v, std=3.0)
    features = torch.randn(6, 24)
    hidden = head.mlp(features)
    cosines = nn.functional.cosine_similarity(hidden[:, None], head.last_layer.weight_v[None], dim=-1)
    assert torch.allclose(head(features), cosines, atol=1e-5)
    assert [name for name, _ in head.last_layer.named_parameters()] == ["weight_v"]


def test_the_layer_is_torchs_weight_norm() -> None:
    torch.manual_seed(0)
    ours, x = WeightNormLinear(7, 5, fixed_norm=False), torch.randn(3, 7, requires_grad=True)
    torchs = nn.utils.parametrizations.weight_norm(nn.Linear(7, 5, bias=False))
    with torch.no_grad():
        torchs.parametrizations.weight.original0.copy_(ours.weight_g)
        torchs.parametrizations.weight.original1.copy_(ours.weight_v)
    for layer in (ours, torchs):
        layer(x).square().sum().backward()
    assert torch.allclose(ours(x), torchs(x), atol=1e-6)
    assert torch.allclose(ours.weight_v.grad, torchs.parametrizations.weight.original1.grad, atol=1e-5)
    assert torch.allclose(ours.weight_g.grad, torchs.parametrizations.weight.original0.grad, atol=1e-5)


def test_the_parts_are_those_of_the_paper() -> None:
    head = DinoHead(384, 65536, norm_last_layer=True)
    linear = head.mlp[::2]
    assert [layer.weight.shape for layer in linear] == [(2048, 384), (2048, 2048), (256, 2048)]
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in head.modules())
    assert head.last_layer.weight_v.shape == (65536, 256)
    assert all(abs(layer.weight.std().item() - 0.02) < 1e-3 for layer in linear)
    assert not any(layer.bias.any() for layer in linear)


def test_features_of_zero_give_finite_outputs_in_half_precision() -> None:
    head = DinoHead(8, 4, norm_last_layer=True)
    with torch.autocast("cpu", torch.float16):
        outputs = head(torch.zeros(2, 8))
    assert torch.isfinite(outputs).all()
